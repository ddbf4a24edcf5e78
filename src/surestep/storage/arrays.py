"""Files of arrays: safetensors with a checksum, written atomically, read with suspicion."""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import safetensors

from surestep.base.errors import RunFolderError
from surestep.storage.files import require_plain, write_bytes

LARGEST_HEADER = 16 * 2**20
"""Bytes of the largest header of a file of arrays that is read."""

Announced = tuple[str, tuple[int, ...]]
"""The dtype and the shape that a file announces for one of its arrays."""

_KINDS = {
    **{f"F{bits}": f"float{bits}" for bits in (16, 32, 64)},
    **{f"I{bits}": f"int{bits}" for bits in (8, 16, 32, 64)},
    **{f"U{bits}": f"uint{bits}" for bits in (8, 16, 32, 64)},
    "BOOL": "bool",
}

_CODES = {kind: code for code, kind in _KINDS.items()}


def write_arrays(
    path: Path,
    arrays: dict[str, np.ndarray],
    metadata: dict[str, str],
    previous: Path | None = None,
) -> None:
    """Write arrays atomically, with a checksum; the file before can be kept as `previous`."""
    unknown = {array.dtype.name for array in arrays.values()} - set(_CODES)
    if unknown:
        raise RunFolderError(f"{path} cannot hold arrays of {', '.join(sorted(unknown))}")
    write_bytes(path, _pieces(arrays, metadata), previous)


def pack_arrays(arrays: dict[str, np.ndarray], metadata: dict[str, str]) -> bytes:
    """What `write_arrays` writes."""
    return b"".join(_pieces(arrays, metadata))


def _pieces(
    arrays: dict[str, np.ndarray], metadata: dict[str, str]
) -> Iterator[bytes | memoryview]:
    """A safetensors file: the length of its header, the header, the arrays' bytes as they lie.

    The library would copy them twice; the evidence of a certificate can be gigabytes.
    """
    plain = {
        name: np.asarray(array, array.dtype.newbyteorder("<"), order="C")
        for name, array in arrays.items()
    }
    metadata = metadata | {"sha256": _checksum(plain, metadata)}
    # The widest first: then every array begins at a multiple of its width.
    names = sorted(plain, key=lambda name: (-plain[name].itemsize, name))
    entries: dict[str, Any] = {"__metadata__": {"surestep": json.dumps(metadata, sort_keys=True)}}
    first = 0
    for name in names:
        last = first + plain[name].nbytes
        entries[name] = {
            "dtype": _CODES[plain[name].dtype.name],
            "shape": list(plain[name].shape),
            "data_offsets": [first, last],
        }
        first = last
    header = json.dumps(entries, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    yield len(header).to_bytes(8, "little") + header
    for name in names:
        yield plain[name].reshape(-1).view(np.uint8).data


@runtime_checkable
class Inspect(Protocol):
    """A look at a file's metadata and at the arrays it announces, before any is read."""

    def __call__(self, metadata: dict[str, Any], announced: dict[str, Announced]) -> None:
        """Raise what is to be raised."""
        ...


def read_arrays(
    path: Path, inspect: Inspect | None = None
) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Read arrays and metadata; a file that is damaged is refused.

    What is announced in the file's header can be inspected before memory is taken for it.
    """
    try:
        _require_header(path)
        with safetensors.safe_open(path, framework="numpy") as file:
            metadata = json.loads((file.metadata() or {}).get("surestep", "{}"))
            if not isinstance(metadata, dict) or not all(map(_is_text, metadata.values())):
                raise ValueError("its metadata are not texts")
            names = list(file.keys())
            if inspect is not None:
                inspect(metadata, {name: _announced(file.get_slice(name)) for name in names})
            arrays = {name: file.get_tensor(name) for name in names}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError,
            safetensors.SafetensorError) as error:  # fmt: skip
        raise RunFolderError(f"{path} cannot be read: {error}") from error
    if metadata.pop("sha256", None) != _checksum(arrays, metadata):
        raise RunFolderError(f"{path} is damaged: its checksum does not fit")
    return arrays, metadata


def _require_header(path: Path) -> None:
    """The arrays are as large as the file; only the header is taken apart before it is checked."""
    require_plain(path)
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
    if length > LARGEST_HEADER:
        raise ValueError(f"it announces a header of {length} bytes, {LARGEST_HEADER} are allowed")


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _announced(part: Any) -> Announced:
    kind = str(part.get_dtype())
    return _KINDS.get(kind, kind), tuple(part.get_shape())


def _checksum(arrays: dict[str, np.ndarray], metadata: dict[str, str]) -> str:
    digest = hashlib.sha256(json.dumps(metadata, sort_keys=True).encode())
    for name in sorted(arrays):
        digest.update(f"{name} {arrays[name].dtype} {arrays[name].shape}\n".encode())
        # The bytes themselves, not a copy of them: the evidence of a certificate can be large.
        digest.update(np.asarray(arrays[name], order="C").reshape(-1).view(np.uint8).data)
    return digest.hexdigest()
