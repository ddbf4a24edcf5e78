"""Rollouts on every instance of a stacked set, some of them as one batch."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Int

from surestep.problem import Point, Problem, Theta, Vector
from surestep.rollout.loop import (
    Measure,
    Reached,
    Rollout,
    Underway,
    begin,
    proceed,
    reach,
    rollout,
)
from surestep.rules.base import Rule, with_hyper

BLOCK = 256
"""How many instances are a batch where nobody has measured."""


@eqx.filter_jit
def rollouts(
    rule: Rule,
    problem: Problem,
    thetas: Theta,
    iterations: int,
    block: int,
    measures: tuple[Measure, ...] = (),
) -> Rollout:
    """Rollouts on every instance of a stacked set, in batches of `block`."""
    rule = rule.prepare()
    return jax.lax.map(
        lambda theta: rollout(rule, problem, theta, iterations, measures),
        thetas,
        batch_size=block,
    )


@eqx.filter_jit
def losses_at(
    rule: Rule, problem: Problem, thetas: Theta, at: tuple[int, ...], block: int
) -> Float[Array, "instance iteration"]:
    """The losses of every instance after the iterations named in `at`, and nothing else."""
    wanted = jnp.asarray(at)
    rule = rule.prepare()
    return jax.lax.map(
        lambda theta: rollout(rule, problem, theta, max(at)).losses[wanted],
        thetas,
        batch_size=block,
    )


@eqx.filter_jit
def reach_each(
    rule: Rule,
    problem: Problem,
    thetas: Theta,
    targets: Float[Array, " instance"],
    limit: int,
    block: int,
) -> Reached:
    """Iterate on every instance until its loss is below its target, in batches of `block`."""
    rule = rule.prepare()
    return jax.lax.map(
        lambda pair: reach(rule, problem, pair[0], pair[1], limit),
        (thetas, targets),
        batch_size=block,
    )


class Draws(eqx.Module):
    """Several hypers for one rule, and which of them each instance gets."""

    hypers: Float[Array, "sample d"]
    chosen: Int[Array, " instance"]

    def rule(self, rule: Rule, chosen: Int[Array, ""]) -> Rule:
        """The rule with a chosen hyper."""
        return with_hyper(rule, self.hypers[chosen])


@eqx.filter_jit
def begin_each(
    rule: Rule,
    problem: Problem,
    thetas: Theta,
    starts: Point | None,
    draws: Draws | None,
    block: int,
) -> Underway:
    """Begin on every instance of a stacked set, at the problem's start or at given points."""

    def one(given: tuple[Theta, Point | None, Array | None]) -> Underway:
        theta, start, chosen = given
        mine = rule if draws is None or chosen is None else draws.rule(rule, chosen)
        x = None if start is None else ravel_pytree(start)[0]
        return Underway.started(begin(mine.prepare(), problem, theta, x=x))

    chosen = None if draws is None else draws.chosen
    return jax.lax.map(one, (thetas, starts, chosen), batch_size=block)


@eqx.filter_jit
def continue_each(
    rule: Rule,
    problem: Problem,
    thetas: Theta,
    underway: Underway,
    more: Int[Array, ""],
    targets: Float[Array, " instance"] | None,
    draws: Draws | None,
    block: int,
) -> Underway:
    """So many iterations more on every instance, fewer where the loss falls below its target.

    The number is an array, so another one compiles nothing.
    """
    shared = rule.prepare()

    def one(given: tuple[Theta, Underway, Array | None, Array | None]) -> Underway:
        theta, first, target, chosen = given
        mine = shared if draws is None or chosen is None else draws.rule(rule, chosen).prepare()
        return proceed(mine, problem, theta, first, more, target)

    chosen = None if draws is None else draws.chosen
    return jax.lax.map(one, (thetas, underway, targets, chosen), batch_size=block)


@eqx.filter_jit
def points_of(problem: Problem, thetas: Theta, underway: Underway) -> tuple[Point, Array]:
    """Where rollouts stand, in the form that the problem's loss takes, and their losses."""

    def one(theta: Theta, x: Vector) -> Point:
        return ravel_pytree(problem.start(theta))[1](x)

    progress = underway.progress
    return jax.vmap(one)(thetas, progress.state.x), progress.loss
