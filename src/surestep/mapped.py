"""Instances in files that may be larger than memory."""

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path

import jax
import numpy as np

from surestep.errors import ConfigurationError
from surestep.problem import Problem, Theta, as_instances, count

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


def open_arrays(path: Path, names: Sequence[str]) -> dict[str, np.ndarray]:
    """The arrays of an .npz file, of a folder of .npy files, or of one .npy file, by name.

    Those of .npy files are memory maps. A single one has the only name that is expected.
    """
    try:
        if path.is_dir():
            files = sorted(path.glob("*.npy"))
            return {file.stem: np.load(file, mmap_mode="r", allow_pickle=False) for file in files}
        if path.suffix == ".npy":
            found = np.load(path, mmap_mode="r", allow_pickle=False)
            return {names[0] if len(names) == 1 else path.stem: found}
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except (OSError, ValueError, TypeError) as error:
        kind = "a folder of .npy files" if path.is_dir() else f"an {path.suffix or '.npz'} file"
        raise ConfigurationError(f"{path} cannot be read as {kind}: {error}") from error


def chunks(array: np.ndarray) -> Iterator[np.ndarray]:
    """An array, a few of its rows at a time."""
    for first in range(0, len(array), CHUNK):
        yield array[first : first + CHUNK]
