"""Rollouts on every instance of a stacked set, some of them as one batch."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from surestep.problem import Problem, Theta
from surestep.rollout.loop import Measure, Rollout, Underway, begin, proceed, rollout, whole
from surestep.rules import Checked
from surestep.rules.base import Rule

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

    def one(theta: Theta) -> Float[Array, " iteration"]:
        if isinstance(rule, Checked) and len(at) == 1:  # nobody looks before the end
            return whole(rule, problem, theta, at[0]).loss[None]
        return rollout(rule, problem, theta, max(at)).losses[wanted]

    return jax.lax.map(one, thetas, batch_size=block)


@eqx.filter_jit
def begin_each(rule: Rule, problem: Problem, thetas: Theta, block: int) -> Underway:
    """Begin on every instance of a stacked set, at the problem's start."""
    rule = rule.prepare()
    return jax.lax.map(
        lambda theta: Underway.started(begin(rule, problem, theta)), thetas, batch_size=block
    )


@eqx.filter_jit
def continue_each(
    rule: Rule,
    problem: Problem,
    thetas: Theta,
    underway: Underway,
    more: Int[Array, ""],
    block: int,
) -> Underway:
    """So many iterations more on every instance.

    The number is an array, so another one compiles nothing.
    """
    rule = rule.prepare()

    def one(given: tuple[Theta, Underway]) -> Underway:
        theta, first = given
        return proceed(rule, problem, theta, first, more)

    return jax.lax.map(one, (thetas, underway), batch_size=block)
