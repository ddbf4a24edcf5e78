"""Checkpoints: where a stage leaves its state, to go on from after an interruption."""

import dataclasses
import logging
import time
from pathlib import Path
from typing import Any, Protocol, TypeVar, runtime_checkable

import jax
import numpy as np

from surestep.base.errors import RunFolderError
from surestep.storage.arrays import read_arrays, write_arrays

log = logging.getLogger("surestep")

Tree = TypeVar("Tree")


@runtime_checkable
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


class Saving:
    """Leaves states at a checkpoint, so rarely that it costs little, however large they are."""

    shortest_wait = 10.0
    """Seconds of work that an interruption may cost."""
    largest_share = 0.05
    """The share of the time that saving may take."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.checkpoint = checkpoint
        self.wait, self.saved = self.shortest_wait, time.monotonic()

    def now(self, tree: Any) -> None:
        """Leave the state."""
        began = time.monotonic()
        self.checkpoint.save(tree)
        self.saved = time.monotonic()
        self.wait = max(self.shortest_wait, (self.saved - began) / self.largest_share)

    def now_and_then(self, tree: Any) -> None:
        """Leave the state if that was done long enough ago."""
        if self.is_due():
            self.now(tree)

    def is_due(self) -> bool:
        """Whether the last state was left long enough ago."""
        return time.monotonic() - self.saved > self.wait


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
