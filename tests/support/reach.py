"""The plainest loop to a loss, one instance and one iteration at a time: what others must equal."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from surestep.problem import Problem
from surestep.rollout.loop import Progress, Status, advance, begin
from surestep.rules.base import Rule


class Reached(NamedTuple):
    """What it took to bring the loss below a target."""

    iterations: Any
    gradients: Any
    loss: Any
    x: Any
    status: Any


def reach(rule: Rule, problem: Problem, theta: Any, target: Any, limit: int) -> Reached:
    """Iterate on one instance until the loss is below a target, at most `limit` times."""
    rule = rule.prepare()

    def unfinished(carry: tuple[Progress, jax.Array]) -> jax.Array:
        now, made = carry
        return (now.loss >= target) & ~now.diverged & (made < limit)

    def step(carry: tuple[Progress, jax.Array]) -> tuple[Progress, jax.Array]:
        return advance(rule, problem, theta, carry[0]), carry[1] + 1

    first = (begin(rule, problem, theta), jnp.zeros((), jnp.int32))
    end, made = jax.lax.while_loop(unfinished, step, first)
    ended = jnp.where(end.loss < target, Status.REACHED, Status.LIMIT)
    status = jnp.where(end.diverged, Status.DIVERGED, ended)
    return Reached(made, end.evaluations.gradients, end.loss, end.state.x, status)
