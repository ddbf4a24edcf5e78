"""The run folder: configuration, results and certificate, written so that nothing is lost.

Every file is written atomically and has a checksum; facts have a copy, checkpoints the one before.
Arrays are safetensors, facts are JSON: opening a folder from a stranger runs none of their code.
"""

import contextlib
import dataclasses
import hashlib
import json
import logging
import os
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import jax
import numpy as np
import safetensors

from surestep.errors import RunFolderError
from surestep.files import exclusive, parse_json, require_plain, write_bytes, write_text
from surestep.kept import Kept
from surestep.records import from_plain, to_json, to_plain

__all__ = ["Checkpoint", "FileCheckpoint", "NoCheckpoint", "RunFolder", "axes", "read_arrays",
           "write_arrays", "write_bytes", "write_text"]  # fmt: skip

log = logging.getLogger("surestep")

if TYPE_CHECKING:
    import xarray

SCHEMA = 1
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

Tree = TypeVar("Tree")
Result = TypeVar("Result")


class Checkpoint(Protocol):
    """Where a stage leaves its state, to go on from after an interruption."""

    def load(self, like: Tree) -> Tree | None:
        """The state left last, in the structure of `like`; None if there is none."""
        ...

    def save(self, tree: Any) -> None:
        """Leave the state."""
        ...


class NoCheckpoint:
    """Keeps nothing; what library calls use by default."""

    def load(self, like: Tree) -> Tree | None:
        """There never is a state."""
        return None

    def save(self, tree: Any) -> None:
        """Nothing is kept."""


@dataclasses.dataclass(frozen=True)
class FileCheckpoint:
    """A stage's state in a file of the run folder, and the state before it in another."""

    path: Path

    @property
    def previous(self) -> Path:
        """Where the state before lies, for the case that the last one is damaged."""
        return self.path.with_suffix(f".previous{self.path.suffix}")

    def load(self, like: Tree) -> Tree | None:
        """Read the last state that is not damaged; the leaves must be those of `like`.

        Where every state is damaged there is none: the stage begins again, and ends the same.
        """
        for path in (self.path, self.previous):
            if path.exists():
                try:
                    arrays, _ = read_arrays(path)
                except RunFolderError as error:
                    log.warning("%s; the stage goes on from an earlier point", error)
                    continue
                return _restored(arrays, like, path)
        return None

    def save(self, tree: Any) -> None:
        """Write the state."""
        leaves = jax.tree_util.tree_leaves_with_path(tree)
        arrays = {
            f"{i}{jax.tree_util.keystr(path)}": np.asarray(leaf)
            for i, (path, leaf) in enumerate(leaves)
        }
        write_arrays(self.path, arrays, {}, self.previous)

    def remove(self) -> None:
        """Forget the states: the stage has ended."""
        self.path.unlink(missing_ok=True)
        self.previous.unlink(missing_ok=True)


def _restored(arrays: dict[str, np.ndarray], like: Tree, path: Path) -> Tree:
    leaves = jax.tree_util.tree_leaves_with_path(like)
    names = [f"{i}{jax.tree_util.keystr(place)}" for i, (place, _) in enumerate(leaves)]
    wanted = {
        name: (np.shape(leaf), np.asarray(leaf).dtype)
        for name, (_, leaf) in zip(names, leaves, strict=True)
    }
    if wanted != {name: (array.shape, array.dtype) for name, array in arrays.items()}:
        raise RunFolderError(f"{path} belongs to another run or version: remove it")
    restored = [
        jax.numpy.asarray(arrays[name]) if isinstance(leaf, jax.Array) else arrays[name]
        for name, (_, leaf) in zip(names, leaves, strict=True)
    ]
    return jax.tree.unflatten(jax.tree.structure(like), restored)


def axes(*names: str) -> dict[str, tuple[str, ...]]:
    """Metadata for an array field of a result: the names of its axes."""
    return {"axes": names}


@dataclasses.dataclass(frozen=True)
class RunFolder:
    """One run on disk."""

    path: Path

    @property
    def config_path(self) -> Path:
        """The configuration."""
        return self.path / "config.json"

    @property
    def certificate_path(self) -> Path:
        """The certificate, once there is one."""
        return self.path / "certificate.json"

    @property
    def solver_path(self) -> Path:
        """The solver, ready to be used elsewhere, once there is one."""
        return self.path / "solver.safetensors"

    @property
    def plan_path(self) -> Path:
        """What is going to be certified."""
        return self.path / "plan.json"

    @property
    def charges_path(self) -> Path:
        """Which certificates have been paid for with which instances."""
        return self.path / "charges.json"

    @property
    def figures(self) -> Path:
        """The folder of figures."""
        return self.path / "figures"

    @contextlib.contextmanager
    def claimed(self, config: Any) -> Iterator[None]:
        """Make the folder this configuration's, or find that it is, and keep others out."""
        # Looked at before anything is written: a folder that is refused is left as it was.
        self._require_ours(config)
        with self.locked():
            self._require_ours(config)
            if not self.kept(self.config_path).exists():
                self.kept(self.config_path).write(to_json(config))
            facts = (self.config_path, self._status_path, self.plan_path, self.charges_path)
            for path in (*facts, self.certificate_path):
                self.kept(path).mend()
            yield

    def _require_ours(self, config: Any) -> None:
        for place in (self.path, *self.path.parents):
            if place.exists() and not place.is_dir():
                raise RunFolderError(f"{place} is a file, not a folder for a run")
        if self.kept(self.config_path).exists():
            self._require_same(self.read_kept(self.config_path), json.loads(to_json(config)))
        # Names with a dot are the lock and what an interrupted write may leave behind.
        elif self.path.exists() and any(p.name[0] != "." for p in self.path.iterdir()):
            raise RunFolderError(
                f"{self.path} is not empty and holds no run: choose another folder (--out)"
            )

    def _require_same(self, found: Any, wanted: Any) -> None:
        differences = list(_differences(found, wanted))
        if differences:
            shown = "\n  ".join(differences[:8])
            raise RunFolderError(
                f"{self.path} holds a run with another configuration:\n  {shown}\n"
                "Choose another folder (--out), or give the same settings to go on with it."
            )

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes out of the folder for as long as this lasts."""
        with exclusive(self.path / ".lock", self.path):
            self._require_no_way_out()
            for left in self.path.rglob(".*.new"):
                # Of a process that was killed while it wrote; nobody else is at work here.
                left.unlink()
            yield

    def _require_no_way_out(self) -> None:
        """Nothing that is written into the folder may land elsewhere."""
        inside = self.path.resolve()
        for place, folders, files in os.walk(self.path):
            for found in (Path(place) / name for name in (*folders, *files)):
                if found.is_symlink() and not found.resolve().is_relative_to(inside):
                    raise RunFolderError(
                        f"{found} is a link that leads out of the run's folder: remove it"
                    )

    def kept(self, path: Path) -> Kept:
        """One of the folder's files of facts, with its checksum and copy."""
        return Kept(path)

    def read_kept(self, path: Path) -> Any:
        """What one of them holds."""
        return parse_json(self.kept(path).read(), path)

    def checkpoint(self, stage: str) -> FileCheckpoint:
        """Where a stage leaves its state while it runs."""
        return FileCheckpoint(self.path / f"{stage}.partial.safetensors")

    def has(self, stage: str) -> bool:
        """Whether a stage has its result."""
        return self._result_path(stage).exists()

    def save(self, stage: str, result: Any) -> None:
        """Keep a stage's result; its checkpoint is no longer needed."""
        fields = {f.name: getattr(result, f.name) for f in dataclasses.fields(result)}
        arrays = {name: value for name, value in fields.items() if isinstance(value, np.ndarray)}
        facts = {name: to_plain(v) for name, v in fields.items() if name not in arrays}
        names = {f.name: f.metadata.get("axes", ()) for f in dataclasses.fields(result)}
        metadata = {
            "schema": str(SCHEMA),
            "facts": json.dumps(facts, sort_keys=True, allow_nan=False),
            "axes": json.dumps({name: list(names[name]) for name in arrays}, sort_keys=True),
        }
        write_arrays(self._result_path(stage), arrays, metadata)
        self.checkpoint(stage).remove()

    def load(self, stage: str, kind: type[Result]) -> Result:
        """A stage's result."""
        path = self._result_path(stage)
        arrays, metadata = read_arrays(path)
        facts = parse_json(metadata.get("facts", ""), path)
        hints = typing.get_type_hints(kind)
        fields = dataclasses.fields(typing.cast(Any, kind))
        named = {f.name: f.metadata["axes"] for f in fields if "axes" in f.metadata}
        if not isinstance(facts, dict) or set(arrays) != set(named):
            raise RunFolderError(f"{path} holds another result than that of the stage {stage}")
        _require_axes(path, arrays, named)
        values: dict[str, Any] = dict(arrays)
        for name in (field.name for field in fields if field.name not in arrays):
            if name not in facts:
                raise RunFolderError(f"{path}: {stage}.{name} is missing")
            values[name] = from_plain(hints[name], facts[name], f"{stage}.{name}")
        return kind(**values)

    def dataset(self, stage: str) -> "xarray.Dataset":
        """A stage's arrays with the names of their axes."""
        import xarray  # noqa: PLC0415  (pandas comes with it, which takes half a second)

        path = self._result_path(stage)
        arrays, metadata = read_arrays(path)
        names = parse_json(metadata.get("axes", ""), path)
        try:
            return xarray.Dataset(
                {name: (tuple(names[name]), array) for name, array in arrays.items()}
            )
        except (KeyError, TypeError, ValueError) as error:
            raise RunFolderError(f"{path}: its axes cannot be read: {error!r}") from error

    def mark(self, stage: str, **facts: Any) -> None:
        """Write a stage's state into `status.json`."""
        self.kept(self._status_path).write(to_json(self.status() | {stage: facts}))

    def status(self) -> dict[str, dict[str, Any]]:
        """Everything `mark` has written."""
        if not self.kept(self._status_path).exists():
            return {}
        return from_plain(
            dict[str, dict[str, Any]], self.read_kept(self._status_path), self._status_path.name
        )

    @property
    def _status_path(self) -> Path:
        return self.path / "status.json"

    def _result_path(self, stage: str) -> Path:
        return self.path / f"{stage}.safetensors"


def _require_axes(
    path: Path, arrays: dict[str, np.ndarray], named: dict[str, tuple[str, ...]]
) -> None:
    """Arrays of numbers, and axes of one name of one length."""
    lengths: dict[str, int] = {}
    for name, array in arrays.items():
        if len(named[name]) != array.ndim or array.dtype.kind not in "fiub":
            raise RunFolderError(
                f"{path}: {name} should have the axes {', '.join(named[name])}, not the shape "
                f"{array.shape}"
            )
        for axis, length in zip(named[name], array.shape, strict=True):
            if lengths.setdefault(axis, length) != length:
                raise RunFolderError(
                    f"{path}: the axis {axis} of {name} has {length} places, elsewhere "
                    f"{lengths[axis]}"
                )


def _differences(found: Any, wanted: Any, where: str = "") -> Iterator[str]:
    if isinstance(found, dict) and isinstance(wanted, dict):
        for name in sorted(found.keys() | wanted.keys()):
            inner = f"{where}.{name}" if where else name
            yield from _differences(found.get(name), wanted.get(name), inner)
    elif found != wanted:
        yield f"{where}: {found!r} there, {wanted!r} asked for"


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
