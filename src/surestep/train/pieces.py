"""From one piece of a trajectory to the next: what every stage that trains keeps account of.

A piece is *usable* if its objective and gradient are finite; else nothing is learned from it. The
next piece begins where the last one ended, or at the start of a random instance: after unusable
pieces, and at random moments (the paper's randomised trajectory length).
"""

from collections.abc import Iterable
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Scalar

from surestep.problem import Problem, Theta, count
from surestep.rules.base import Rule, with_hyper
from surestep.train.trajectory import (
    Material,
    Trajectory,
    continue_or_restart,
    start_trajectory,
    training_gradient,
)

Tree = TypeVar("Tree")


class Piece(NamedTuple):
    """What a piece has shown, and where it ends."""

    objective: Scalar
    gradient: Float[Array, " d"]
    usable: Bool[Array, ""]
    end: Trajectory


class Draws(NamedTuple):
    """What is drawn for one piece, or stacked for many."""

    following: Int[Array, "*piece"]
    """The instance that comes next if the trajectory begins anew after the piece."""
    over: Bool[Array, "*piece"]
    """Whether it does."""


def draw_restarts(
    keys: Iterable[Array], thetas: Theta, length: int, horizon: int, pieces: tuple[int, ...] = ()
) -> Draws:
    """Draw instances uniformly, and restarts so that trajectories are `horizon` long on average.

    The first of the two keys is for the instances, the second for the restarts.
    """
    key_following, key_over = keys
    following = jax.random.randint(key_following, pieces, 0, count(thetas))
    return Draws(following, jax.random.bernoulli(key_over, min(1.0, length / horizon), pieces))


def random_start(rule: Rule, problem: Problem, thetas: Theta, key: Array) -> Trajectory:
    """A trajectory at the start of a random instance."""
    first = jax.random.randint(key, (), 0, count(thetas))
    return start_trajectory(rule, problem, thetas, first)


def differentiate_piece(
    rule: Rule,
    problem: Problem,
    material: Material,
    hyper: Float[Array, " d"],
    trajectory: Trajectory,
    length: int,
) -> Piece:
    """Follow the next piece of a trajectory, and differentiate its objective in the hyper."""
    objective, end, gradient = training_gradient(rule, problem, material, hyper, trajectory, length)
    return Piece(objective, gradient, is_usable(objective, gradient), end)


def go_on(
    rule: Rule,
    problem: Problem,
    material: Material,
    hyper: Float[Array, " d"],
    piece: Piece,
    draw: Draws,
) -> Trajectory:
    """Where the piece after this one begins, with the hyper that was learned from it."""
    return continue_or_restart(
        piece.end,
        draw.over | ~piece.usable,
        lambda: start_trajectory(with_hyper(rule, hyper), problem, material.thetas, draw.following),
    )


def is_usable(objective: Scalar, gradient: Float[Array, " d"]) -> Bool[Array, ""]:
    """Whether something can be learned from a piece."""
    return jnp.isfinite(objective) & jnp.all(jnp.isfinite(gradient))


def only_if(usable: Bool[Array, ""], learned: Tree, before: Tree) -> Tree:
    """What was learned from a usable piece, or all as it was before."""

    def chosen(new: Any, old: Any) -> Array:
        return jnp.where(usable, new, old)

    return jax.tree.map(chosen, learned, before)
