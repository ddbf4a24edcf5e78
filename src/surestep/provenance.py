"""What computes: versions and device."""

import platform

import jax
import numpy as np

from surestep.__about__ import __version__


def provenance() -> dict[str, str]:
    """What computes: versions and device."""
    device = jax.devices()[0]
    return {
        "surestep": __version__,
        "jax": jax.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "device": f"{device.platform} {device.device_kind}",
        "machine": platform.machine(),
    }
