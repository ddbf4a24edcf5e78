"""Libraries that surestep needs for some problems only."""

import importlib
from types import ModuleType

from surestep.errors import ConfigurationError


def require(module: str, package: str, what_for: str, extra: str = "problems") -> ModuleType:
    """Import a module of an optional package; without it, say what to install."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ConfigurationError(
            f"{what_for} needs {package}, which is not installed: pip install 'surestep[{extra}]'"
        ) from error
