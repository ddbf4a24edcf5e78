"""The four data sets of a run, of which two can be opened only when everything else is fixed."""

import dataclasses
from typing import Self

import jax

from surestep.base.keys import named_key
from surestep.base.machine import require_room
from surestep.problem.base import ROLES, Problem, StockedProblem
from surestep.problem.commitment import Commitment
from surestep.problem.draw import working_precision
from surestep.problem.sets import (
    IN_MEMORY,
    DataSet,
    PriorSet,
    TestSet,
    TrainSet,
    ValidationSet,
)

__all__ = [
    "Commitment",
    "DataSet",
    "PriorSet",
    "SealedSplit",
    "SealedTrainSet",
    "Split",
    "SplitSizes",
    "TestSet",
    "TrainSet",
    "ValidationSet",
]


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
    sealed = ss.datasets.SealedSplit.draw(problem, ss.datasets.SplitSizes(8, 8, 8, 8), seed=0)
    split = sealed.open(ss.datasets.Commitment(configuration="a" * 64, plan="b" * 64))
    print(split.fingerprints())
    ```
    """

    prior: PriorSet
    validation: ValidationSet
    train: TrainSet
    test: TestSet

    def fingerprints(self) -> dict[str, str]:
        """The fingerprint of each set, by name."""
        return {field.name: getattr(self, field.name).sha256 for field in dataclasses.fields(self)}


@dataclasses.dataclass(frozen=True)
class SealedSplit:
    """The data sets of a run before its plan is fixed: train and test set cannot be seen yet.

    **Example:**

    ```python
    sizes = ss.datasets.SplitSizes(prior=8, validation=8, train=8, test=4)
    sealed = ss.datasets.SealedSplit.draw(problem, sizes, seed=1)
    print(sealed.prior.size, sealed.validation.size)
    ```
    """

    prior: PriorSet
    validation: ValidationSet
    problem: Problem
    sizes: SplitSizes
    seed: int

    @classmethod
    def draw(cls, problem: Problem, sizes: SplitSizes, seed: int) -> Self:
        """Draw what rules are learned from, from the problem's one distribution.

        **Arguments:**

        - `problem`: what is drawn from.
        - `sizes`: how many instances each of the four sets holds.
        - `seed`: decides which.

        **Returns:** prior and validation set, and what opens the others.

        **Raises:** `surestep.errors.ConfigurationError` if the problem's data hold fewer, or if
        memory does not suffice.

        **Example:**

        ```python
        sizes = ss.datasets.SplitSizes(prior=8, validation=8, train=8, test=4)
        print(ss.datasets.SealedSplit.draw(problem, sizes, seed=1).prior.size)
        ```
        """
        _require_room(problem, sizes)
        _require_enough(problem, sizes)
        return cls(
            PriorSet.draw(problem, sizes.prior, seed),
            ValidationSet.draw(problem, sizes.validation, seed),
            problem,
            sizes,
            seed,
        )

    @property
    def train(self) -> "SealedTrainSet":
        """The train set, closed."""
        return SealedTrainSet(self.problem, self.sizes.train, self.seed)

    def open(self, commitment: Commitment) -> Split:
        """All four sets, now that everything else is fixed.

        **Arguments:**

        - `commitment`: what is fixed; another one opens another train set.

        **Returns:** the `Split`.

        **Example:**

        ```python
        sizes = ss.datasets.SplitSizes(prior=8, validation=8, train=8, test=4)
        sealed = ss.datasets.SealedSplit.draw(problem, sizes, seed=1)
        one, other = (
            sealed.open(ss.datasets.Commitment(configuration="a" * 64, plan=plan))
            for plan in ("b" * 64, "c" * 64)
        )
        assert one.prior.sha256 == other.prior.sha256 and one.train.sha256 != other.train.sha256
        ```
        """
        test = TestSet.draw(self.problem, self.sizes.test, self.seed, commitment)
        return Split(self.prior, self.validation, self.train.open(commitment), test)


@dataclasses.dataclass(frozen=True)
class SealedTrainSet:
    """A train set that nobody has seen: which instances it holds depends on what opens it.

    **Example:**

    ```python
    sealed = ss.datasets.SealedTrainSet(problem, size=8, seed=0)
    train = sealed.open(ss.datasets.Commitment(configuration="a" * 64, plan="b" * 64))
    ```
    """

    problem: Problem
    size: int
    seed: int

    def open(self, commitment: Commitment) -> TrainSet:
        """The set, now that everything else is fixed."""
        return TrainSet.draw(self.problem, self.size, self.seed, commitment)


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


def _require_enough(problem: Problem, sizes: SplitSizes) -> None:
    """Data that are too few are found before anything is learned from some of them."""
    if isinstance(problem, StockedProblem):
        for name, role in zip(dataclasses.asdict(sizes), ROLES, strict=True):
            problem.require_available(role, getattr(sizes, name))
