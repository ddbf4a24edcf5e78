"""Training trajectories: pieces of rollouts that are differentiated, with random restarts.

A trajectory runs on one instance of the prior set. A *piece* of it, a few iterations, is
differentiated with respect to the hyper; then the trajectory goes on from where the piece ended
or begins anew on another instance (the paper's randomised trajectory length).
"""

import dataclasses
from collections.abc import Callable
from typing import Literal, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Scalar

from surestep.base.errors import ConfigurationError
from surestep.problem import PriorSet, Problem, Theta, instance
from surestep.rollout.loop import Progress, begin, unrolled
from surestep.rules.base import Rule, with_hyper

Objective = Literal["ratio", "log", "sum"]
"""`ratio`: the sum of ratios of consecutive losses, as in the paper. `log`: the mean of the losses'
logarithms. `sum`: the sum of losses."""


@dataclasses.dataclass(frozen=True)
class TrainingSettings:
    """What training makes small, along pieces of trajectories."""

    objective: Objective = "ratio"
    """The paper's ratio of consecutive losses, the mean logarithm, or the sum of losses."""
    distances: bool = False
    """Whether losses are counted from the minima of the prior set's instances, which are found
    beforehand by a solver that the problem trusts."""
    floor: float = 1e-12
    """Added to losses before the logarithm is taken: smaller ones are not worth the effort."""
    through: bool = False
    """Whether derivatives run through the gradients that a rule is given, and not only through
    what the rule makes of them."""

    def validate(self) -> None:
        """Refuse a floor that is none."""
        if not self.floor > 0:
            raise ConfigurationError(f"training.floor must be positive, not {self.floor}")


class Material(eqx.Module):
    """The instances that training uses, where their losses are counted from, and to what end."""

    thetas: Theta
    minima: Float[Array, " instance"]
    settings: TrainingSettings = eqx.field(static=True)

    @classmethod
    def of(cls, settings: TrainingSettings, data: PriorSet) -> "Material":
        """The prior set, made ready for training."""
        if not settings.distances:
            return cls(data.thetas, jnp.zeros(data.size), settings)
        if data.minima is None:
            raise ConfigurationError(
                "training.distances needs the minima of the prior set's instances, and the "
                "problem's experiment has no solver for them (Experiment.minima)"
            )
        return cls(data.thetas, jnp.asarray(data.minima, jnp.result_type(float)), settings)

    def objective(self, losses: Float[Array, " steps"], index: Array) -> Scalar:
        """What is made small on a piece of an instance's trajectory."""
        # Rounding may put a loss below the minimum that a solver found.
        counted = jnp.maximum(losses - self.minima[index], 0.0)
        return piece_objective(counted, self.settings.objective, self.settings.floor)


class Trajectory(eqx.Module):
    """Where training stands on its current instance."""

    index: Int[Array, ""]
    age: Int[Array, ""]
    progress: Progress


def start_trajectory(rule: Rule, problem: Problem, thetas: Theta, index: Array) -> Trajectory:
    """A trajectory at the start of an instance."""
    progress = begin(rule.bare(), problem, instance(thetas, index))
    return Trajectory(jnp.asarray(index, jnp.int32), jnp.zeros((), jnp.int32), progress)


def follow(
    rule: Rule,
    problem: Problem,
    thetas: Theta,
    trajectory: Trajectory,
    length: int,
    through: bool = False,
) -> tuple[Float[Array, " steps"], Trajectory]:
    """The losses along the next piece (the one it starts from first), and where it ends."""
    theta, rule = instance(thetas, trajectory.index), rule.bare()

    first = trajectory.progress
    if rule.learns_start:
        # Where a rollout begins depends on the hyper too, so a first piece begins once more.
        first = jax.lax.cond(
            trajectory.age == 0, lambda: begin(rule, problem, theta, through), lambda: first
        )
    last, losses = unrolled(rule, problem, theta, first, length, through, min(length, 4))
    ended = Trajectory(trajectory.index, trajectory.age + length, last)
    return jnp.concatenate([jax.lax.stop_gradient(first.loss)[None], losses]), ended


def piece_objective(
    losses: Float[Array, " steps"], objective: Objective, floor: float = 1e-12
) -> Scalar:
    """The paper's training loss of a piece, or one of the others."""
    before, after = losses[:-1], losses[1:]
    if objective == "sum":
        return jnp.sum(after)
    if objective == "log":
        return jnp.mean(jnp.log(after + floor))
    positive = before > 0
    return jnp.sum(jnp.where(positive, after / jnp.where(positive, before, 1.0), 0.0))


def training_gradient(
    rule: Rule,
    problem: Problem,
    material: Material,
    hyper: Float[Array, " d"],
    trajectory: Trajectory,
    length: int,
) -> tuple[Scalar, Trajectory, Float[Array, " d"]]:
    """The objective of the next piece, where the piece ends, and the hyper's gradient."""
    through = material.settings.through

    def of(hyper: Array) -> tuple[Scalar, Trajectory]:
        changed = with_hyper(rule, hyper)
        losses, ended = follow(changed, problem, material.thetas, trajectory, length, through)
        return material.objective(losses, trajectory.index), ended

    (value, ended), gradient = jax.value_and_grad(of, has_aux=True)(hyper)
    return value, ended, gradient


Place = TypeVar("Place")


def continue_or_restart(
    place: Place, restart: Bool[Array, ""], fresh: Callable[[], Place]
) -> Place:
    """Go on, or begin anew; the start is evaluated only when there is a restart."""
    return jax.lax.cond(restart, fresh, lambda: place)
