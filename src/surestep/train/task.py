"""The task: which problem is to be learned, for how long, and what counts as success."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Bool, Float

from surestep.base.keys import named_key
from surestep.problem import (
    DataSet,
    Goal,
    PriorSet,
    Problem,
    Theta,
    ValidationSet,
    count,
    instance,
    reached,
    thresholds,
    working_precision,
)
from surestep.rollout.batched import losses_at
from surestep.rollout.observe import Observed, Statistic, Watch
from surestep.rollout.tiles import Work, observe_all, require_sound
from surestep.rules.base import Rule
from surestep.train.constraint import Constraint, SuccessEstimate, estimate_success
from surestep.train.trajectory import Material, TrainingSettings


@dataclasses.dataclass(frozen=True)
class Task:
    """What every stage of a run has in common."""

    problem: Problem
    goal: Goal
    constraint: Constraint
    horizon: int
    """After how many iterations the goal must be reached (the paper's n_train)."""
    block: int
    """How many instances are a batch."""
    statistics: Mapping[str, Statistic] = dataclasses.field(default_factory=dict)
    """What else of a rollout is certified, by name."""
    training: TrainingSettings = TrainingSettings()
    """What training makes small."""
    sample_block: int = 1
    """How many samples of a prior are rolled out by one program."""
    family: Any = None
    """The family's parameters, as plain values: certificates name them."""

    def material(self, data: PriorSet) -> Material:
        """The prior set, made ready for training."""
        return Material.of(self.training, data)

    def thresholds(self, data: DataSet) -> Float[np.ndarray, " instance"]:
        """The goal's threshold on every instance of a set."""
        return self._thresholds(self.goal, data)

    def _thresholds(self, goal: Goal, data: DataSet) -> Float[np.ndarray, " instance"]:
        def found(batch: Theta, block: int) -> Array:
            return thresholds(goal, self.problem, batch, block)

        with working_precision(self.problem):
            return np.concatenate([_in_batches(found, part, self.block) for part in data.parts()])

    def losses(
        self, rule: Rule, data: DataSet, at: tuple[int, ...] | None = None
    ) -> Float[np.ndarray, "instance iteration"]:
        """The losses of a rule on every instance, by default at the horizon alone."""
        at = at or (self.horizon,)

        def found(batch: Theta, block: int) -> Array:
            return losses_at(rule, self.problem, batch, at, block)

        with working_precision(self.problem):
            losses = _in_batches(found, data.thetas, self.block)
        require_sound(self.problem, data, losses)
        return losses

    def watch(self, at: tuple[int, ...], targets: int = 0) -> Watch:
        """What is observed of rollouts: losses, when so many targets are reached, statistics."""
        return Watch(at, targets, tuple(self.statistics.items()))

    def work(
        self,
        rule: Rule,
        data: DataSet,
        watch: Watch,
        hypers: Float[np.ndarray, "sample d"] | None = None,
        name: str = "",
        targets: Float[np.ndarray, "instance target"] | None = None,
        length: int = 0,
    ) -> Work:
        """Rollouts of a rule, or of one with several hypers, on every instance of a set."""
        return Work(
            self.problem,
            rule,
            hypers,
            data,
            watch,
            self.block,
            self.sample_block,
            name,
            targets,
            length,
        )

    def observe(self, rule: Rule, data: DataSet, watch: Watch) -> Observed:
        """What a rule shows on every instance of a set."""
        return observe_all(self.work(rule, data, watch))

    def start_losses(self, data: DataSet) -> Float[np.ndarray, " instance"]:
        """The losses that every rollout starts from."""
        return self._thresholds(Goal(scale=1.0, exponent=1.0), data)

    def success(self, rule: Rule, data: ValidationSet, *name: str | int) -> SuccessEstimate:
        """Estimate a rule's success probability from instances drawn without replacement.

        The name decides the order in which the instances are drawn, and nothing else.
        """
        return estimate_success(self._outcomes(rule, data, *name), self.constraint)

    def _outcomes(
        self, rule: Rule, data: ValidationSet, seed: str | int, *name: str | int
    ) -> Iterator[Bool[np.ndarray, " block"]]:
        with working_precision(self.problem):
            key = named_key(int(seed), "success", *name)
            order = np.asarray(jax.random.permutation(key, data.size))
        threshold = self.thresholds(data)
        # Few enough to stop early, of the size of batches so that one program serves for all.
        block = min(64, self.block, data.size)
        for first in range(0, data.size, block):
            chosen = order[first : first + block]
            padded = np.concatenate([chosen, np.repeat(chosen[-1:], block - len(chosen))])
            with working_precision(self.problem):
                thetas = instance(data.thetas, padded)
            losses = self.losses(rule, type(data)(thetas))[:, 0]
            yield reached(losses, threshold[padded])[: len(chosen)]


def _in_batches(
    compute: Callable[[Theta, int], Array], thetas: Theta, block: int
) -> Float[np.ndarray, "instance ..."]:
    """A function of instances, batch by batch, on the host.

    The last batch is filled up, so that one compiled program serves for sets of any size.
    """
    size = count(thetas)
    block = min(block, size)
    places = (
        np.minimum(np.arange(first, first + block), size - 1) for first in range(0, size, block)
    )
    found = [compute(instance(thetas, some), block) for some in places]
    return np.concatenate([np.asarray(one, np.float64) for one in found])[:size]
