"""Arrays from .npz files, which may be anyone's.

NumPy takes the memory that an array's header asks for before it looks how much there is. Here
headers are read first, compared with the lengths of the archive's members and with what is wanted,
and only then is an array read. Objects (pickles) are never read.
"""

import math
import struct
import tokenize
import zipfile
import zlib
from pathlib import Path
from typing import IO, Any, Protocol, runtime_checkable

import numpy as np

from surestep.base.errors import ConfigurationError, RunFolderError
from surestep.base.machine import require_room
from surestep.storage.files import require_plain

Form = tuple[np.dtype[Any], tuple[int, ...]]
"""The dtype and the shape that a header announces."""

# All that archives and headers which are none have been seen to raise.
BROKEN = (
    OSError, ValueError, TypeError, LookupError, ArithmeticError, EOFError, SyntaxError,
    RuntimeError, MemoryError, struct.error, zlib.error, zipfile.BadZipFile, tokenize.TokenError,
)  # fmt: skip


@runtime_checkable
class Inspect(Protocol):
    """A look at what a file announces, before any of it is read."""

    def __call__(self, announced: dict[str, Form]) -> None:
        """Raise what is to be raised."""
        ...


def read_npz(path: Path, inspect: Inspect | None = None) -> dict[str, np.ndarray]:
    """The arrays of numbers in an .npz file, by name."""
    try:
        require_plain(path)
        with zipfile.ZipFile(path) as archive:
            members = {_name(info): info for info in archive.infolist()}
            if len(members) != len(archive.infolist()):
                raise ValueError("two of its arrays have the same name")
            announced = {name: _announced(archive, info) for name, info in members.items()}
            sizes = [math.prod(shape) * kind.itemsize for kind, shape in announced.values()]
            require_room(sum(sizes), str(path))
            if inspect is not None:
                inspect(announced)
            return {name: _array(archive, info) for name, info in members.items()}
    except ConfigurationError:
        raise
    except (*BROKEN, RunFolderError) as error:
        raise ConfigurationError(f"{path} cannot be read as an .npz file: {error}") from error


def _name(info: zipfile.ZipInfo) -> str:
    if not info.filename.endswith(".npy"):
        raise ValueError(f"{info.filename[:100]!r} in it is no array")
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        # NumPy writes no others, and some take as much memory as their header asks for.
        raise ValueError(f"{info.filename[:100]!r} is compressed in a way that NumPy does not use")
    return info.filename.removesuffix(".npy")


def _announced(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> Form:
    with archive.open(info) as member:
        kind, shape = _header(member)
        left = info.file_size - member.tell()
    if kind.kind not in "fiub":
        raise ValueError(f"{info.filename} holds {kind}, not numbers")
    if any(length < 0 for length in shape) or math.prod(shape) * kind.itemsize != left:
        raise ValueError(f"{info.filename} announces {kind} {shape} and has {left} bytes")
    return kind, shape


def _header(member: IO[bytes] | zipfile.ZipExtFile) -> Form:
    version = np.lib.format.read_magic(member)
    if version == (1, 0):
        shape, _, kind = np.lib.format.read_array_header_1_0(member)
    elif version == (2, 0):
        shape, _, kind = np.lib.format.read_array_header_2_0(member)
    else:
        raise ValueError(f"version {version} of the format is not for arrays of numbers")
    return kind, shape


def _array(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> np.ndarray:
    with archive.open(info) as member:
        return np.lib.format.read_array(member, allow_pickle=False)
