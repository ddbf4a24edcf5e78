"""The task: which problem is to be learned, for how long, and what counts as success."""

import dataclasses
from collections.abc import Iterator, Mapping

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float

from surestep.constraint import Constraint, SuccessEstimate, estimate_success
from surestep.errors import ProblemError
from surestep.goal import Goal, reached, thresholds
from surestep.problem import Problem, instance, working_precision
from surestep.randomness import named_key
from surestep.rollout import Statistic, losses_at, observe
from surestep.rule import Rule
from surestep.split import DataSet, PriorSet, ValidationSet
from surestep.trajectory import Material, TrainingSettings


@dataclasses.dataclass(frozen=True)
class Task:
    """What every stage of a run has in common."""

    problem: Problem
    goal: Goal
    constraint: Constraint
    horizon: int
    """After how many iterations the goal must be reached (the paper's n_train)."""
    block: int
    """How many instances are iterated side by side."""
    statistics: Mapping[str, Statistic] = dataclasses.field(default_factory=dict)
    """What else of a rollout is certified, by name."""
    training: TrainingSettings = TrainingSettings()
    """What training makes small."""

    def material(self, data: PriorSet) -> Material:
        """The prior set, made ready for training."""
        return Material.of(self.training, data)

    def thresholds(self, data: DataSet) -> Float[np.ndarray, " instance"]:
        """The goal's threshold on every instance of a set."""
        with working_precision(self.problem):
            found = thresholds(self.goal, self.problem, data.thetas, self.block)
            return np.asarray(found, np.float64)

    def losses(
        self, rule: Rule, data: DataSet, at: tuple[int, ...] | None = None
    ) -> Float[np.ndarray, "instance iteration"]:
        """The losses of a rule on every instance, by default at the horizon alone."""
        with working_precision(self.problem):
            at = at or (self.horizon,)
            losses = losses_at(rule, self.problem, data.thetas, at, self.block)
            return self._sound(np.asarray(losses, np.float64), data)

    def observe(
        self,
        rule: Rule,
        data: DataSet,
        at: tuple[int, ...],
        tolerances: tuple[float, ...],
        to_goal: bool = False,
    ) -> tuple[
        Float[np.ndarray, "instance iteration"],
        Float[np.ndarray, "instance tolerance"],
        Float[np.ndarray, "instance statistic"],
    ]:
        """Losses at some iterations, gradient evaluations to first hits, the user's statistics.

        With `to_goal` the last column of hits is that of every instance's own goal.
        """
        with working_precision(self.problem):
            wanted = tuple(self.statistics.values())
            # An array, not constants of the program: other tolerances compile nothing new.
            levels = jnp.asarray(tolerances, jnp.result_type(float))
            goal = self.goal if to_goal else None
            seen = observe(rule, self.problem, data.thetas, at, levels, wanted, self.block, goal)
            losses = self._sound(np.asarray(seen.losses, np.float64), data)
            found = np.asarray(seen.statistics, np.float64)
        for name, column in zip(self.statistics, found.T, strict=True):
            if not np.all((column >= 0) & (column <= 1)):
                raise ProblemError(
                    f"the statistic {name!r} must lie between 0 and 1 on every instance, not at "
                    f"{column[~((column >= 0) & (column <= 1))][0]}"
                )
        return losses, np.asarray(seen.hits, np.float64), found

    def start_losses(self, data: DataSet) -> Float[np.ndarray, " instance"]:
        """The losses that every rollout starts from."""
        with working_precision(self.problem):
            whole = Goal(scale=1.0, exponent=1.0)
            found = thresholds(whole, self.problem, data.thetas, self.block)
            return np.asarray(found, np.float64)

    def _sound(
        self, losses: Float[np.ndarray, "instance iteration"], data: DataSet
    ) -> Float[np.ndarray, "instance iteration"]:
        if self.problem.nonnegative and np.any(losses < 0):
            index = int(np.argmax(np.any(losses < 0, axis=1)))
            raise ProblemError(
                f"{type(self.problem).__name__}.loss fell to {losses[index].min():g} on instance "
                f"{index} of the {type(data).__name__}, and losses must be at least 0: declare a "
                "bound that holds, or that none is known (lower=None, or nonnegative = False in a "
                "class)"
            )
        return losses

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
        # Few enough to stop early, of one size so that one program serves all blocks.
        block = min(64, data.size)
        for first in range(0, data.size, block):
            chosen = order[first : first + block]
            padded = np.concatenate([chosen, np.repeat(chosen[-1:], block - len(chosen))])
            with working_precision(self.problem):
                thetas = instance(data.thetas, jnp.asarray(padded))
            losses = self.losses(rule, type(data)(thetas))[:, 0]
            yield reached(losses, threshold[padded])[: len(chosen)]
