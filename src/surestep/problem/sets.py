"""Data sets of four types, so that using the wrong one is a type error.

The guarantee rests on the train set having chosen nothing but the posterior: what learns takes a
`PriorSet` and a `ValidationSet`, what certifies a `TrainSet`, what evaluates a `TestSet`. Nobody
can look at a train set before a plan is fixed: it takes a `Commitment` to that plan to open it.
"""

import dataclasses
import functools
import hashlib
from collections.abc import Iterator
from typing import Any, ClassVar, Protocol, Self, runtime_checkable

import jax
import numpy as np

from surestep.base.keys import named_key
from surestep.problem.base import Problem, StockedProblem, Theta, count, instance
from surestep.problem.commitment import Commitment
from surestep.problem.draw import DrawnInChunks, draw, working_precision

IN_MEMORY = 4096
"""Drawn train sets that are larger are not kept, but drawn again, a part at a time, when needed."""


@dataclasses.dataclass(frozen=True)
class DataSet:
    """Independent instances of one problem, stacked along their first axis.

    A run uses its four kinds: `PriorSet`, `ValidationSet`, `TrainSet` and `TestSet`.

    **Example:**

    ```python
    kinds = (ss.datasets.PriorSet, ss.datasets.TestSet)
    print([kind.draw(problem, 8, seed=0).sha256[:8] for kind in kinds])  # never the same
    ```
    """

    role: ClassVar[str]
    """What the set is for. It is part of the key that draws the set: another word would draw other
    instances, whatever the class is called."""
    thetas: Theta
    """The stacked instances."""
    seed: int | None = dataclasses.field(default=None, kw_only=True)
    """What the set was drawn by: on another machine its instances have other last bits."""

    @property
    def size(self) -> int:
        """How many instances there are."""
        return count(self.thetas)

    @functools.cached_property
    def sha256(self) -> str:
        """A fingerprint of every bit of the data."""
        return fingerprint(self.thetas)

    @functools.cached_property
    def hashes(self) -> list[str]:
        """A short hash of every instance: by these it is known again."""
        return [found for part in self.parts() for found in instance_hashes(part)]

    def part(self, first: int, last: int) -> Theta:
        """The instances from `first` to before `last`."""
        if (first, last) == (0, self.size):
            return self.thetas
        return instance(self.thetas, slice(first, last))

    def parts(self) -> Iterator[Theta]:
        """All instances, so many at a time that they fit into memory."""
        yield self.thetas


class LearningSet(DataSet):
    """A set that rules are learned from: it exists from the beginning.

    **Example:**

    ```python
    prior = ss.datasets.PriorSet.draw(problem, 8, seed=0)
    ```
    """

    @classmethod
    def draw(cls, problem: Problem, size: int, seed: int) -> Self:
        """Draw a set; sets of different types never share their random numbers or data.

        **Arguments:**

        - `problem`: what is drawn from.
        - `size`: how many instances.
        - `seed`: decides which.

        **Returns:** the set.

        **Raises:** `surestep.errors.ConfigurationError` if the problem's data hold fewer.

        **Example:**

        ```python
        prior = ss.datasets.PriorSet.draw(problem, 8, seed=0)
        print(prior.size, prior.sha256[:16])
        ```
        """
        if isinstance(problem, StockedProblem):
            return cls(_dealt(problem, cls.role, size, seed, None), seed=seed)
        return cls(draw(problem, size, named_key(seed, "data", cls.role)), seed=seed)


@dataclasses.dataclass(frozen=True)
class PriorSet(LearningSet):
    """Instances that rules are trained on and that weigh the prior.

    **Example:**

    ```python
    prior = ss.datasets.PriorSet.draw(problem, 8, seed=0)
    ```
    """

    role = "PriorSet"

    minima: np.ndarray | None = None
    """The least loss of every instance, where a trusted solver has found it beforehand."""


class ValidationSet(LearningSet):
    """Instances that decide whether a rule meets the success constraint.

    **Example:**

    ```python
    validation = ss.datasets.ValidationSet.draw(problem, 8, seed=0)
    ```
    """

    role = "ValidationSet"


@dataclasses.dataclass(frozen=True)
class TrainSet(DataSet):
    """Instances that the posterior and the certificate are computed from; opened last.

    **Example:**

    ```python
    commitment = ss.datasets.Commitment(configuration="a" * 64, plan="b" * 64)
    train = ss.datasets.TrainSet.draw(problem, 8, seed=0, commitment=commitment)
    ```
    """

    role = "TrainSet"

    commitment: Commitment | None = dataclasses.field(default=None, kw_only=True)
    """What was fixed before it was opened; None for instances from a file."""

    @classmethod
    def draw(cls, problem: Problem, size: int, seed: int, commitment: Commitment) -> "TrainSet":
        """Draw a set; of a large one a part is drawn when it is needed.

        **Arguments:**

        - `problem`: what is drawn from.
        - `size`: how many instances.
        - `seed`, `commitment`: decide which.

        **Returns:** the set.

        **Raises:** `surestep.errors.ConfigurationError` if the problem's data hold fewer.

        **Example:**

        ```python
        commitment = ss.datasets.Commitment(configuration="a" * 64, plan="b" * 64)
        train = ss.datasets.TrainSet.draw(problem, 8, 0, commitment)
        ```
        """
        facts: dict[str, Any] = {"seed": seed, "commitment": commitment}
        if isinstance(problem, StockedProblem):
            return cls(_dealt(problem, cls.role, size, seed, commitment), **facts)
        key = named_key(seed, "data", cls.role, *commitment.names)
        if size <= IN_MEMORY:
            return cls(draw(problem, size, key), **facts)
        return StreamedTrainSet(DrawnInChunks(problem, size, key), **facts)


@runtime_checkable
class Source(Protocol):
    """Where instances come from that are not in memory all at once."""

    @property
    def size(self) -> int:
        """How many there are."""
        ...

    @property
    def chunk(self) -> int:
        """How many to ask for at a time."""
        ...

    def part(self, first: int, last: int) -> Theta:
        """The instances from `first` to before `last`, stacked."""
        ...


@dataclasses.dataclass(frozen=True)
class StreamedTrainSet(TrainSet):
    """A train set that is never in memory as a whole: `thetas` is its source."""

    thetas: Source

    @property
    def size(self) -> int:
        """How many instances there are."""
        return self.thetas.size

    def part(self, first: int, last: int) -> Theta:
        """The instances from `first` to before `last`."""
        return self.thetas.part(first, last)

    def parts(self) -> Iterator[Theta]:
        """All instances, a chunk at a time."""
        for first in range(0, self.size, self.thetas.chunk):
            yield self.part(first, min(first + self.thetas.chunk, self.size))

    @functools.cached_property
    def sha256(self) -> str:
        """The same fingerprint that the set would have in memory."""
        digest = hashlib.sha256()
        form = jax.tree_util.tree_leaves_with_path(self.part(0, 1))
        # Leaf by leaf, because that is the order of the bytes: all parts are made once a leaf.
        for number, (path, leaf) in enumerate(form):
            array = np.asarray(leaf)
            digest.update(_head(path, array, (self.size, *array.shape[1:])))
            for part in self.parts():
                digest.update(_bytes(jax.tree.leaves(part)[number]))
        return digest.hexdigest()


class TestSet(DataSet):
    """Instances that show how the outcome does; nothing depends on them.

    **Example:**

    ```python
    test = ss.datasets.TestSet.draw(problem, 8, seed=0)
    solution = solver.solve(test.thetas)
    ```
    """

    role = "TestSet"

    __test__ = False  # pytest: this is no test case

    @classmethod
    def draw(
        cls, problem: Problem, size: int, seed: int, commitment: Commitment | None = None
    ) -> Self:
        """Draw a set.

        **Arguments:**

        - `problem`: what is drawn from.
        - `size`: how many instances.
        - `seed`: decides which.
        - `commitment`: decides with it, where instances are data: what is left by the prior and
          validation sets is dealt to the train and the test set by what opens the former.

        **Returns:** the set.

        **Raises:** `surestep.errors.ConfigurationError` if the problem's data hold fewer, or if
        they are not dealt yet.

        **Example:**

        ```python
        test = ss.datasets.TestSet.draw(problem, 8, seed=0)
        print(test.size, test.sha256[:16])
        ```
        """
        if isinstance(problem, StockedProblem):
            return cls(_dealt(problem, cls.role, size, seed, commitment), seed=seed)
        return cls(draw(problem, size, named_key(seed, "data", cls.role)), seed=seed)


def _dealt(
    problem: StockedProblem, role: str, size: int, seed: int, commitment: Commitment | None
) -> Theta:
    key = named_key(seed, "data", "stock")
    with working_precision(problem):
        if commitment is None:
            return problem.part(role, size, key)
        return problem.part(role, size, key, named_key(seed, "data", "rest", *commitment.names))


def instance_hashes(thetas: Theta) -> list[str]:
    """A short hash of every instance of a stacked set."""
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(thetas)]
    return [
        hashlib.sha256(b"|".join(leaf[i].tobytes() for leaf in leaves)).hexdigest()[:16]
        for i in range(count(thetas))
    ]


def fingerprint(tree: Theta) -> str:
    """A hash of a pytree of arrays: structure, shapes, types and every bit."""
    digest = hashlib.sha256()
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        array = np.asarray(leaf)
        digest.update(_head(path, array, array.shape))
        digest.update(_bytes(array))
    return digest.hexdigest()


def _head(path: jax.tree_util.KeyPath, array: np.ndarray, shape: tuple[int, ...]) -> bytes:
    return f"{jax.tree_util.keystr(path)} {array.dtype} {shape}\n".encode()


def _bytes(array: Theta) -> memoryview:
    """An array's bytes in C order, not copied where they lie like that."""
    return np.asarray(array, order="C").reshape(-1).view(np.uint8).data
