"""What locating and sampling share: a rule that changes, and checks of how often it succeeds."""

import dataclasses
import functools
from collections.abc import Iterable

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from surestep.base.keys import named_key
from surestep.problem import PriorSet, ValidationSet
from surestep.rules.base import Rule, with_hyper
from surestep.train.constraint import SuccessEstimate
from surestep.train.task import Task
from surestep.train.trajectory import Material


@dataclasses.dataclass(frozen=True)
class CheckedTraining:
    """Training on the prior set whose rules are checked on the validation set.

    The stage's name and the run's seed are part of every key, so stages draw apart.
    """

    stage: str
    task: Task
    rule: Rule
    prior_set: PriorSet
    validation_set: ValidationSet
    seed: int

    @functools.cached_property
    def material(self) -> Material:
        """The prior set, made ready for training."""
        return self.task.material(self.prior_set)

    def key(self, *name: str | int) -> Array:
        """The stage's key of a name."""
        return named_key(self.seed, self.stage, *name)

    def success(self, hyper: Float[Array, " d"], name: str | int) -> SuccessEstimate:
        """How often the rule with a hyper succeeds; the name decides who is asked first."""
        candidate = with_hyper(self.rule, hyper)
        return self.task.success(candidate, self.validation_set, self.seed, self.stage, name)

    def estimates(self, counts: Iterable[np.ndarray]) -> list[SuccessEstimate]:
        """The estimates that `counts_of` made numbers of."""
        assess = self.task.constraint.assess
        return [assess(int(successes), int(trials)) for successes, trials in counts]


def counts_of(estimate: SuccessEstimate) -> Int[Array, " 2"]:
    """An estimate as a checkpoint keeps it: successes and trials."""
    return jnp.asarray([estimate.successes, estimate.trials], jnp.int32)
