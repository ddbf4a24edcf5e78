"""The run folder: configuration, results and certificate, written so that nothing is lost.

Every file is written beside its place and renamed into it, so a reader (or a run that goes on
after a power cut) sees the old file or the new one, never half of one. Arrays are safetensors,
facts are JSON: opening a folder from a stranger runs none of their code.
"""

import contextlib
import dataclasses
import fcntl
import hashlib
import json
import os
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol, TypeVar

import jax
import numpy as np
import safetensors
import safetensors.numpy
import xarray

from surestep.errors import RunFolderError
from surestep.records import from_plain, to_json, to_plain

SCHEMA = 1

Announced = tuple[str, tuple[int, ...]]
"""The dtype and the shape that a file announces for one of its arrays."""

_KINDS = {
    **{f"F{bits}": f"float{bits}" for bits in (16, 32, 64)},
    **{f"I{bits}": f"int{bits}" for bits in (8, 16, 32, 64)},
    **{f"U{bits}": f"uint{bits}" for bits in (8, 16, 32, 64)},
    "BOOL": "bool",
}

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
    """A stage's state in a file of the run folder."""

    path: Path

    def load(self, like: Tree) -> Tree | None:
        """Read the state back; the leaves must be those of `like`."""
        if not self.path.exists():
            return None
        arrays, _ = read_arrays(self.path)
        leaves = jax.tree_util.tree_leaves_with_path(like)
        names = [f"{i}{jax.tree_util.keystr(path)}" for i, (path, _) in enumerate(leaves)]
        if sorted(names) != sorted(arrays):
            raise RunFolderError(f"{self.path} belongs to another run or version: remove it")
        restored = [
            jax.numpy.asarray(arrays[name]) if isinstance(leaf, jax.Array) else arrays[name]
            for name, (_, leaf) in zip(names, leaves, strict=True)
        ]
        return jax.tree.unflatten(jax.tree.structure(like), restored)

    def save(self, tree: Any) -> None:
        """Write the state."""
        leaves = jax.tree_util.tree_leaves_with_path(tree)
        arrays = {
            f"{i}{jax.tree_util.keystr(path)}": np.asarray(leaf)
            for i, (path, leaf) in enumerate(leaves)
        }
        write_arrays(self.path, arrays, {})


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
            if not self.config_path.exists():
                write_text(self.config_path, to_json(config))
            yield

    def _require_ours(self, config: Any) -> None:
        for place in (self.path, *self.path.parents):
            if place.exists() and not place.is_dir():
                raise RunFolderError(f"{place} is a file, not a folder for a run")
        if self.config_path.exists():
            try:
                found = json.loads(self.config_path.read_text())
            except (OSError, ValueError) as error:
                raise RunFolderError(f"{self.config_path} cannot be read: {error}") from error
            self._require_same(found, json.loads(to_json(config)))
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
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            lock = (self.path / ".lock").open("w")
        except OSError as error:
            reason = error.strerror or error
            raise RunFolderError(f"{self.path} cannot be written: {reason}") from error
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise RunFolderError(f"another process is working in {self.path}") from error
            yield

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
        self.checkpoint(stage).path.unlink(missing_ok=True)

    def load(self, stage: str, kind: type[Result]) -> Result:
        """A stage's result."""
        arrays, metadata = read_arrays(self._result_path(stage))
        facts = json.loads(metadata["facts"])
        hints = typing.get_type_hints(kind)
        values = {
            field.name: arrays[field.name]
            if field.name in arrays
            else from_plain(hints[field.name], facts[field.name], f"{stage}.{field.name}")
            for field in dataclasses.fields(typing.cast(Any, kind))
        }
        return kind(**values)

    def dataset(self, stage: str) -> xarray.Dataset:
        """A stage's arrays with the names of their axes."""
        arrays, metadata = read_arrays(self._result_path(stage))
        names = json.loads(metadata["axes"])
        return xarray.Dataset({name: (tuple(names[name]), array) for name, array in arrays.items()})

    def mark(self, stage: str, **facts: Any) -> None:
        """Write a stage's state into `status.json`."""
        write_text(self._status_path, to_json(self.status() | {stage: facts}))

    def status(self) -> dict[str, Any]:
        """Everything `mark` has written."""
        return json.loads(self._status_path.read_text()) if self._status_path.exists() else {}

    @property
    def _status_path(self) -> Path:
        return self.path / "status.json"

    def _result_path(self, stage: str) -> Path:
        return self.path / f"{stage}.safetensors"


def _differences(found: Any, wanted: Any, where: str = "") -> Iterator[str]:
    if isinstance(found, dict) and isinstance(wanted, dict):
        for name in sorted(found.keys() | wanted.keys()):
            inner = f"{where}.{name}" if where else name
            yield from _differences(found.get(name), wanted.get(name), inner)
    elif found != wanted:
        yield f"{where}: {found!r} there, {wanted!r} asked for"


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically."""
    _write(path, text.encode())


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file atomically."""
    _write(path, content)


def write_arrays(path: Path, arrays: dict[str, np.ndarray], metadata: dict[str, str]) -> None:
    """Write arrays atomically, with a checksum."""
    contiguous = {name: np.asarray(array, order="C") for name, array in arrays.items()}
    metadata = metadata | {"sha256": _checksum(contiguous, metadata)}
    # One entry, because safetensors writes several in random order: same content, same bytes.
    packed = {"surestep": json.dumps(metadata, sort_keys=True)}
    _write(path, safetensors.numpy.save(contiguous, packed))


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
        with safetensors.safe_open(path, framework="numpy") as file:
            metadata = json.loads((file.metadata() or {}).get("surestep", "{}"))
            names = list(file.keys())
            if inspect is not None:
                inspect(metadata, {name: _announced(file.get_slice(name)) for name in names})
            arrays = {name: file.get_tensor(name) for name in names}
    except (OSError, ValueError, RecursionError, safetensors.SafetensorError) as error:
        raise RunFolderError(f"{path} cannot be read: {error}") from error
    if metadata.pop("sha256", None) != _checksum(arrays, metadata):
        raise RunFolderError(f"{path} is damaged: its checksum does not fit")
    return arrays, metadata


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


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        with beside.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise RunFolderError(f"cannot write {path}: {error.strerror or error}") from error
