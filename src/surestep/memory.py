"""How much fits into this machine: looked at before it is asked for."""

import os

from surestep.errors import ConfigurationError


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
