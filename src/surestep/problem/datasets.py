"""Four data sets of four types, so that using the wrong one is a type error.

The guarantee rests on the train set having chosen nothing but the posterior: what learns takes a
`PriorSet` and a `ValidationSet`, what certifies a `TrainSet`, what evaluates a `TestSet`.
"""

import dataclasses
import functools
import hashlib
from collections.abc import Iterator
from typing import ClassVar, Protocol, Self, runtime_checkable

import jax
import numpy as np

from surestep.base.keys import named_key
from surestep.base.machine import require_room
from surestep.problem.base import Problem, StockedProblem, Theta, count, instance
from surestep.problem.draw import DrawnInChunks, draw, working_precision

__all__ = [
    "DataSet",
    "PriorSet",
    "Split",
    "SplitSizes",
    "TestSet",
    "TrainSet",
    "ValidationSet",
]

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
        test = ss.datasets.TestSet.draw(problem, 8, seed=0)
        print(test.size, test.sha256[:16])
        ```
        """
        if isinstance(problem, StockedProblem):
            with working_precision(problem):
                stock = problem.part(cls.role, size, named_key(seed, "data", "stock"))
            return cls(stock, seed=seed)
        return cls(draw(problem, size, named_key(seed, "data", cls.role)), seed=seed)


@dataclasses.dataclass(frozen=True)
class PriorSet(DataSet):
    """Instances that rules are trained on and that weigh the prior.

    **Example:**

    ```python
    prior = ss.datasets.PriorSet.draw(problem, 8, seed=0)
    ```
    """

    role = "PriorSet"

    minima: np.ndarray | None = None
    """The least loss of every instance, where a trusted solver has found it beforehand."""


class ValidationSet(DataSet):
    """Instances that decide whether a rule meets the success constraint.

    **Example:**

    ```python
    validation = ss.datasets.ValidationSet.draw(problem, 8, seed=0)
    ```
    """

    role = "ValidationSet"


class TrainSet(DataSet):
    """Instances that the posterior and the certificate are computed from; opened last.

    **Example:**

    ```python
    train = ss.datasets.TrainSet.draw(problem, 8, seed=0)
    ```
    """

    role = "TrainSet"

    @classmethod
    def draw(cls, problem: Problem, size: int, seed: int) -> "TrainSet":
        """Draw a set; of a large one a part is drawn when it is needed."""
        if size <= IN_MEMORY or isinstance(problem, StockedProblem):
            return super().draw(problem, size, seed)
        key = named_key(seed, "data", cls.role)
        return StreamedTrainSet(DrawnInChunks(problem, size, key), seed=seed)


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


@dataclasses.dataclass(frozen=True)
class SplitSizes:
    """How many instances each of the four independent data sets holds.

    **Example:**

    ```python
    sizes = ss.datasets.SplitSizes(prior=100, validation=100, train=1000, test=200)
    config = dataclasses.replace(ss.paper.preset("quadratics", "quick"), sizes=sizes)
    ```
    """

    prior: int = 250
    """Instances to train on and to weigh the prior."""
    validation: int = 250
    """Instances to estimate success probabilities from while learning."""
    train: int = 250
    """Instances to compute the posterior and the certificate from."""
    test: int = 250
    """Instances to evaluate on."""


@dataclasses.dataclass(frozen=True)
class Split:
    """The four data sets of a run.

    **Example:**

    ```python
    split = ss.datasets.Split.draw(problem, ss.datasets.SplitSizes(8, 8, 8, 8), seed=0)
    print(split.fingerprints())
    ```
    """

    prior: PriorSet
    validation: ValidationSet
    train: TrainSet
    test: TestSet

    @classmethod
    def draw(cls, problem: Problem, sizes: SplitSizes, seed: int) -> Self:
        """Draw all four from the problem's one distribution.

        **Arguments:**

        - `problem`: what is drawn from.
        - `sizes`: how many instances each set holds.
        - `seed`: decides which.

        **Returns:** the four sets.

        **Raises:** `surestep.errors.ConfigurationError` if the problem's data hold fewer, or if
        memory does not suffice.

        **Example:**

        ```python
        sizes = ss.datasets.SplitSizes(prior=8, validation=8, train=8, test=4)
        print(ss.datasets.Split.draw(problem, sizes, seed=1).test.size)
        ```
        """
        _require_room(problem, sizes)
        return cls(
            PriorSet.draw(problem, sizes.prior, seed),
            ValidationSet.draw(problem, sizes.validation, seed),
            TrainSet.draw(problem, sizes.train, seed),
            TestSet.draw(problem, sizes.test, seed),
        )

    def fingerprints(self) -> dict[str, str]:
        """The fingerprint of each set, by name."""
        return {field.name: getattr(self, field.name).sha256 for field in dataclasses.fields(self)}


def _require_room(problem: Problem, sizes: SplitSizes) -> None:
    """Sizes come from configurations, which may be a stranger's."""
    if isinstance(problem, StockedProblem):
        return  # its instances are there already
    with working_precision(problem):
        one = jax.eval_shape(problem.sample, named_key(0, "template"))
    instance = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(one))
    # A large train set is never in memory as a whole.
    total = sizes.prior + sizes.validation + min(sizes.train, IN_MEMORY) + sizes.test
    require_room(total * instance, f"{total} instances (sizes)")


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
