"""Training trajectories: pieces of rollouts that are differentiated, with random restarts.

A trajectory runs on one instance of the prior set. A *piece* of it, a few iterations, is
differentiated with respect to the hyper; then the trajectory goes on from where the piece ended
or begins anew on another instance (the paper's randomised trajectory length).
"""

from collections.abc import Callable
from typing import Literal, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Scalar

from surestep.problem import Problem, Theta, instance
from surestep.rollout import Progress, advance, begin
from surestep.rule import Rule

Objective = Literal["ratio", "sum"]
"""`ratio`: the sum of ratios of consecutive losses. `sum`: the sum of losses."""


class Trajectory(eqx.Module):
    """Where training stands on its current instance."""

    index: Int[Array, ""]
    age: Int[Array, ""]
    progress: Progress


def start_trajectory(rule: Rule, problem: Problem, thetas: Theta, index: Array) -> Trajectory:
    """A trajectory at the start of an instance."""
    progress = begin(rule, problem, instance(thetas, index))
    return Trajectory(jnp.asarray(index, jnp.int32), jnp.zeros((), jnp.int32), progress)


def follow(
    rule: Rule, problem: Problem, thetas: Theta, trajectory: Trajectory, length: int
) -> tuple[Float[Array, " length+1"], Trajectory]:
    """The losses along the next piece (the one it starts from first), and where it ends."""
    theta = instance(thetas, trajectory.index)

    def body(progress: Progress, _: None) -> tuple[Progress, Scalar]:
        progress = advance(rule, problem, theta, progress)
        return progress, progress.loss

    first = trajectory.progress
    # A short piece is cheaper laid out than looped over.
    last, losses = jax.lax.scan(body, first, None, length=length, unroll=min(length, 4))
    ended = Trajectory(trajectory.index, trajectory.age + length, last)
    return jnp.concatenate([first.loss[None], losses]), ended


def piece_objective(losses: Float[Array, " length+1"], objective: Objective) -> Scalar:
    """The paper's training loss of a piece, or the sum of its losses for comparison."""
    if objective == "sum":
        return jnp.sum(losses[1:])
    before, after = losses[:-1], losses[1:]
    positive = before > 0
    return jnp.sum(jnp.where(positive, after / jnp.where(positive, before, 1.0), 0.0))


Place = TypeVar("Place")


def continue_or_restart(
    place: Place, restart: Bool[Array, ""], fresh: Callable[[], Place]
) -> Place:
    """Go on, or begin anew; the start is evaluated only when there is a restart."""
    return jax.lax.cond(restart, fresh, lambda: place)
