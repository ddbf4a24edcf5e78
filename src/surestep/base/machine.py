"""What computes: its memory, its versions, and which optional libraries it has."""

import importlib
import os
import platform
from types import ModuleType

import jax
import numpy as np

from surestep.__about__ import __version__
from surestep.base.errors import ConfigurationError


def require(module: str, package: str, what_for: str, extra: str = "problems") -> ModuleType:
    """Import a module of an optional package; without it, say what to install."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ConfigurationError(
            f"{what_for} needs {package}, which is not installed: pip install 'surestep[{extra}]'"
        ) from error


def installed() -> int:
    """Bytes of memory that this machine has."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def require_room(size: int, what: str) -> None:
    """Refuse what could not be held even if there were nothing else."""
    if size > installed():
        raise ConfigurationError(
            f"{what} would take {size / 2**30:.3g} GiB of memory, and this machine has "
            f"{installed() / 2**30:.3g}"
        )


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
