"""Instances in files that may be larger than memory."""

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path

import jax
import numpy as np

from surestep.base.errors import ConfigurationError, RunFolderError
from surestep.problem.base import Problem, Theta, count
from surestep.problem.form import as_instances
from surestep.storage.files import require_plain
from surestep.storage.npz import BROKEN, Inspect, read_npz

CHUNK = 1024
"""How many instances are read at a time."""


@dataclasses.dataclass(frozen=True, eq=False)
class ReadInChunks:
    """Stacked instances of which only what is asked for is read, as the problem's arrays."""

    problem: Problem
    arrays: Theta
    """Memory maps: arrays whose numbers stay in their files until they are looked at."""
    chunk: int = CHUNK

    @property
    def size(self) -> int:
        """How many instances there are."""
        return count(self.arrays)

    def part(self, first: int, last: int) -> Theta:
        """The instances from `first` to before `last`, stacked."""
        copied = jax.tree.map(lambda leaf: np.array(leaf[first:last]), self.arrays)
        return as_instances(self.problem, copied)


def open_arrays(path: Path, names: Sequence[str], inspect: Inspect) -> dict[str, np.ndarray]:
    """The arrays of an .npz file, of a folder of .npy files, or of one .npy file, by name.

    Those of .npy files are memory maps. A single one has the only name that is expected. What is
    announced is inspected before any number is read.
    """
    if not path.is_dir() and path.suffix != ".npy":
        return read_npz(path, inspect)
    try:
        if path.is_dir():
            found = {file.stem: _mapped(file) for file in sorted(path.glob("*.npy"))}
        else:
            found = {names[0] if len(names) == 1 else path.stem: _mapped(path)}
    except (*BROKEN, RunFolderError) as error:
        kind = "a folder of .npy files" if path.is_dir() else "an .npy file"
        raise ConfigurationError(f"{path} cannot be read as {kind}: {error}") from error
    inspect({name: (array.dtype, array.shape) for name, array in found.items()})
    return found


def _mapped(path: Path) -> np.ndarray:
    require_plain(path)
    return np.load(path, mmap_mode="r", allow_pickle=False)


def chunks(array: np.ndarray) -> Iterator[np.ndarray]:
    """An array, a few of its rows at a time."""
    for first in range(0, len(array), CHUNK):
        yield array[first : first + CHUNK]
