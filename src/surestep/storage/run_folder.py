"""The run folder: configuration, results and certificate, written so that nothing is lost.

Every file is written atomically and has a checksum; facts have a copy, checkpoints the one before.
Arrays are safetensors, facts are JSON: opening a folder from a stranger runs none of their code.
"""

import contextlib
import dataclasses
import json
import os
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from surestep.base.errors import RunFolderError
from surestep.base.lazy import slow_import
from surestep.storage.arrays import read_arrays, write_arrays
from surestep.storage.checkpoint import FileCheckpoint
from surestep.storage.files import exclusive, parse_json
from surestep.storage.mirrored import Kept
from surestep.storage.records import from_plain, to_json, to_plain

if TYPE_CHECKING:
    import xarray

SCHEMA = 1
CHOICE = "choice.safetensors"
"""The rule that was chosen for a problem of one's own: written before the run begins."""
_ONLY_IN_0_1 = "abreast"
"""A setting that had this name in version 0.1 alone."""

Result = TypeVar("Result")


def axes(*names: str) -> dict[str, tuple[str, ...]]:
    """Metadata for an array field of a result: the names of its axes."""
    return {"axes": names}


@dataclasses.dataclass(frozen=True)
class RunFolder:
    """One run on disk.

    **Example:**

    ```python
    import pathlib

    folder = ss.RunFolder(pathlib.Path("runs/mine"))
    learned = ss.learn(config, experiment, folder)
    print(folder.certificate_path, folder.solver_path)
    ```
    """

    path: Path
    """The folder; it is made when a run begins."""

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

    def stored_config(self) -> Any:
        """The configuration as plain values; that of a version with another form is refused."""
        plain = self.read_kept(self.config_path)
        if isinstance(plain, dict) and _ONLY_IN_0_1 in plain:
            raise RunFolderError(
                f"{self.path} was made by surestep 0.1, and its run cannot be gone on with or "
                "verified by this version: use version 0.1 for that, or run it again in another "
                "folder (--out). Its solver.safetensors can be used: surestep.load, or surestep "
                "solve with the problem's name or file in place of the folder"
            )
        return plain

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

    def require_free(self) -> None:
        """Refuse a folder that holds something else than a run, before any work is done for it."""
        for place in (self.path, *self.path.parents):
            if place.exists() and not place.is_dir():
                raise RunFolderError(f"{place} is a file, not a folder for a run")
        if self.kept(self.config_path).exists():
            return
        # Names with a dot are the lock and what an interrupted write may leave behind.
        if self.path.exists() and any(
            place.name[0] != "." and place.name != CHOICE for place in self.path.iterdir()
        ):
            raise RunFolderError(
                f"{self.path} is not empty and holds no run: choose another folder (--out)"
            )

    def _require_ours(self, config: Any) -> None:
        self.require_free()
        if self.kept(self.config_path).exists():
            self._require_same(self.stored_config(), json.loads(to_json(config)))

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
        """Whether a stage has its result.

        **Arguments:**

        - `stage`: `"imitate"`, `"population"`, `"locate"`, `"sample"`, `"certify"`, `"evaluate"`.

        **Returns:** True once the stage is finished.

        **Example:**

        ```python
        import pathlib

        print(ss.RunFolder(pathlib.Path("runs/mine")).has("evaluate"))
        ```
        """
        return self._result_path(stage).exists()

    def save(self, stage: str, result: Any) -> None:
        """Keep a stage's result; its checkpoint is no longer needed."""
        values, fields = _values(result), _fields(type(result))
        arrays = {name: value for name, value in values.items() if isinstance(value, np.ndarray)}
        facts = {name: to_plain(v) for name, v in values.items() if name not in arrays}
        axes = {name: list(fields[name][1] or ()) for name in arrays}
        metadata = {
            "schema": str(SCHEMA),
            "facts": json.dumps(facts, sort_keys=True, allow_nan=False),
            "axes": json.dumps(axes, sort_keys=True),
        }
        write_arrays(self._result_path(stage), arrays, metadata)
        self.checkpoint(stage).remove()

    def load(self, stage: str, kind: type[Result]) -> Result:
        """A stage's result.

        **Arguments:**

        - `stage`: the stage, as for `has`.
        - `kind`: the dataclass of the result.

        **Returns:** the result.

        **Raises:** `surestep.errors.RunFolderError` if there is none, or it is damaged or of
        another kind.

        **Example:**

        ```python
        import pathlib

        folder = ss.RunFolder(pathlib.Path("runs/mine"))
        folder.path.mkdir(parents=True)
        folder.save("evaluate", learned.evaluation)
        again = folder.load("evaluate", type(learned.evaluation))
        print(again.solvers)
        ```
        """
        path = self._result_path(stage)
        arrays, metadata = read_arrays(path)
        facts = parse_json(metadata.get("facts", ""), path)
        fields = _fields(kind)
        named = {name: axes for name, (_, axes) in fields.items() if axes is not None}
        if not isinstance(facts, dict) or set(arrays) != set(named):
            raise RunFolderError(f"{path} holds another result than that of the stage {stage}")
        _require_axes(path, arrays, named)
        values: dict[str, Any] = dict(arrays)
        for name in (name for name in fields if name not in arrays):
            if name not in facts:
                raise RunFolderError(f"{path}: {stage}.{name} is missing")
            values[name] = from_plain(fields[name][0], facts[name], f"{stage}.{name}")
        return _made(kind, values)

    def dataset(self, stage: str) -> "xarray.Dataset":
        """A stage's arrays with the names of their axes.

        **Arguments:**

        - `stage`: the stage, as for `has`.

        **Returns:** an `xarray.Dataset`.

        **Raises:** `surestep.errors.RunFolderError` if there is no result, or it is damaged.

        **Example:**

        ```python
        import pathlib

        folder = ss.RunFolder(pathlib.Path("runs/mine"))
        folder.path.mkdir(parents=True)
        folder.save("evaluate", learned.evaluation)
        print(folder.dataset("evaluate").losses.dims)
        ```
        """
        library = slow_import("xarray")  # pandas comes with it
        path = self._result_path(stage)
        arrays, metadata = read_arrays(path)
        names = parse_json(metadata.get("axes", ""), path)
        try:
            return library.Dataset(
                {name: (tuple(names[name]), array) for name, array in arrays.items()}
            )
        except (KeyError, TypeError, ValueError) as error:
            raise RunFolderError(f"{path}: its axes cannot be read: {error!r}") from error

    def mark(self, stage: str, **facts: Any) -> None:
        """Write a stage's state into `status.json`."""
        self.kept(self._status_path).write(to_json(self.status() | {stage: facts}))

    def status(self) -> dict[str, dict[str, Any]]:
        """How far the run is: the state of each stage that has begun.

        **Returns:** facts by stage; `{}` if nothing has begun.

        **Raises:** `surestep.errors.RunFolderError` if the file is damaged.

        **Example:**

        ```python
        import pathlib

        for stage, facts in ss.RunFolder(pathlib.Path("runs/mine")).status().items():
            print(stage, facts.get("state"))
        ```
        """
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


def _parts(kind: Any) -> dict[str, Any]:
    """The fields of a result that are records with arrays of their own, and what they are."""
    hints = typing.get_type_hints(kind)
    return {
        field.name: hints[field.name]
        for field in dataclasses.fields(kind)
        if dataclasses.is_dataclass(hints[field.name])
        and any("axes" in inner.metadata for inner in dataclasses.fields(hints[field.name]))
    }


def _fields(kind: Any) -> dict[str, tuple[Any, tuple[str, ...] | None]]:
    """All fields of a result, those of its parts among them: their types and, of arrays, axes."""
    parts, hints = _parts(kind), typing.get_type_hints(kind)
    found: dict[str, tuple[Any, tuple[str, ...] | None]] = {}
    for field in dataclasses.fields(kind):
        own = {field.name: (hints[field.name], field.metadata.get("axes"))}
        more = _fields(parts[field.name]) if field.name in parts else own
        assert not found.keys() & more.keys(), "parts of a result share a name"
        found |= more
    return found


def _values(result: Any) -> dict[str, Any]:
    """The values of all these fields."""
    parts = _parts(type(result))
    found: dict[str, Any] = {}
    for field in dataclasses.fields(result):
        value = getattr(result, field.name)
        found |= _values(value) if field.name in parts else {field.name: value}
    return found


def _made(kind: Any, values: dict[str, Any]) -> Any:
    """A result from the values of all these fields."""
    parts = _parts(kind)
    return kind(
        **{
            field.name: _made(parts[field.name], values)
            if field.name in parts
            else values[field.name]
            for field in dataclasses.fields(kind)
        }
    )


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
