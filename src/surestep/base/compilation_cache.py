"""Compiled programs are kept between processes, so that the same command compiles nothing again.

JAX does the keeping; this says where. The folder is the user's own, because what lies there is run.
It is chosen before JAX is imported, which reads it from the environment.
"""

import contextlib
import hashlib
import os
import platform
import stat
import sys
import warnings
from pathlib import Path

FOLDER = "JAX_COMPILATION_CACHE_DIR"
"""JAX's name for it: who sets this themselves is left alone."""
SWITCH = "SURESTEP_CACHE"
"""Set to `off` to keep nothing, or to a folder."""
LARGEST = 2 * 1024**3
"""Bytes that are kept; beyond that, what was not used for the longest time goes."""


def keep_compiled_programs() -> Path | None:
    """Tell JAX where to keep compiled programs; None if they are not kept."""
    if FOLDER in os.environ:
        return Path(os.environ[FOLDER])
    folder = own_folder()
    if folder is None:
        return None
    with contextlib.suppress(OSError):
        _make_room(folder)
    # A program that was cut short when it was written is compiled again; nobody needs to know.
    warnings.filterwarnings("ignore", message=".*persistent compilation cache.*")
    os.environ[FOLDER] = str(folder)
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.1")
    return folder


def own_folder() -> Path | None:
    """Where this user keeps what was found out on this kind of machine; None if nowhere."""
    wish = os.environ.get(SWITCH, "")
    if wish == "off":
        return None
    folder = (Path(wish) if wish else _users_own()) / _machine()
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return folder if _private(folder) else None
    except OSError:
        # A home that cannot be written to is no reason not to run.
        return None


def _users_own() -> Path:
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if base else Path.home() / ".cache") / "surestep" / "compiled"


def _machine() -> str:
    """A name for this kind of processor: a program for another may use instructions it lacks."""
    facts = [platform.machine(), platform.processor(), sys.platform]
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        facts += [line for line in lines if line.startswith(("model name", "flags", "Features"))][
            :3
        ]
    return hashlib.sha256("\n".join(facts).encode()).hexdigest()[:16]


def _private(folder: Path) -> bool:
    """Whether nobody else can put programs there."""
    if not hasattr(os, "getuid"):
        return True
    found = folder.stat()
    return found.st_uid == os.getuid() and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _make_room(folder: Path) -> None:
    files = [(path, path.stat()) for path in folder.iterdir() if path.is_file()]
    excess = sum(found.st_size for _, found in files) - LARGEST
    for path, found in sorted(files, key=lambda file: file[1].st_atime):
        if excess <= 0:
            break
        path.unlink(missing_ok=True)
        excess -= found.st_size
