"""What rollouts show: what is looked at, and what was seen."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Scalar

from surestep.problem import Goal, Problem, Theta
from surestep.rollout.loop import Rollout, rollout
from surestep.rules.base import Rule, with_hyper

Statistic = Callable[[Rollout], Scalar]
"""A number between 0 and 1 that a user computes from a rollout; small is good."""


class Watch(eqx.Module):
    """What is looked at in rollouts."""

    at: tuple[int, ...]
    """After which iterations losses are kept; the last one ends the rollout."""
    tolerances: tuple[float, ...] = ()
    """The losses whose first hit is looked for."""
    goal: Goal | None = None
    """The goal whose first hit is looked for, on every instance its own, after those."""
    statistics: tuple[tuple[str, Statistic], ...] = ()
    """What is computed from the whole rollout, with its name. In order: JAX would sort a mapping's
    names inside a compiled program, and columns would change places."""

    @property
    def hits(self) -> int:
        """How many first hits are looked for."""
        return len(self.tolerances) + (self.goal is not None)

    @property
    def widths(self) -> tuple[int, int, int]:
        """How many losses, first hits and statistics an instance has."""
        return len(self.at), self.hits, len(self.statistics)

    def compiled_for(self) -> tuple["Watch", Float[Array, " tolerance"]]:
        """What a program is compiled for, and the tolerances: others compile nothing new."""
        levels = jnp.asarray(self.tolerances, jnp.result_type(float))
        return Watch(self.at, (), self.goal, self.statistics), levels


class Observed(eqx.Module):
    """What was seen of rollouts: one row an instance; of several rules, one table a rule.

    On a device the arrays are JAX's, once they are read NumPy's in float64.
    """

    losses: Float[Any, "*batch iteration"]
    hits: Float[Any, "*batch tolerance"]
    """Gradient evaluations until a loss was first reached; infinite if it never was."""
    statistics: Float[Any, "*batch statistic"]

    @classmethod
    def room(cls, shape: tuple[int, ...], watch: Watch) -> "Observed":
        """Tables for all that is going to be observed, of the shape (rules, instances)."""
        return cls(*(np.zeros((*shape, width)) for width in watch.widths))

    def at(self, place: object) -> "Observed":
        """A part of all three tables."""
        return jax.tree.map(lambda table: table[place], self)

    def put(self, place: object, found: "Observed") -> None:
        """Fill in a part of all three tables."""
        for table, part in zip(jax.tree.leaves(self), jax.tree.leaves(found), strict=True):
            table[place] = part


@eqx.filter_jit
def observe(
    rule: Rule,
    problem: Problem,
    thetas: Theta,
    watch: Watch,
    levels: Float[Array, " tolerance"],
    block: int,
) -> Observed:
    """What a rule shows on every instance of a stacked set, in batches of `block`.

    `watch` and `levels` come from `Watch.compiled_for`.
    """
    # One column more than asked for: batching cannot reshape arrays without any.
    wanted, levels = jnp.asarray(watch.at), jnp.concatenate([levels, jnp.full((1,), jnp.inf)])
    rule = rule.prepare()

    def one(theta: Theta) -> Observed:
        result = rollout(rule, problem, theta, max(watch.at))
        mine = levels
        if watch.goal is not None:
            threshold = watch.goal.threshold(problem, theta)[None].astype(levels.dtype)
            mine = jnp.concatenate([levels[:-1], threshold, levels[-1:]])
        # An infinite loss has reached nothing, even where the threshold overflows, too.
        below = jnp.isfinite(result.losses)[:, None] & (result.losses[:, None] <= mine)
        first = result.gradients[jnp.argmax(below, axis=0)]
        hits = jnp.where(jnp.any(below, axis=0), first, jnp.inf)
        found = [jnp.asarray(look(result), hits.dtype) for _, look in watch.statistics]
        return Observed(result.losses[wanted], hits, jnp.stack([*found, jnp.zeros_like(hits[0])]))

    seen = jax.lax.map(one, thetas, batch_size=block)
    return Observed(seen.losses, seen.hits[:, :-1], seen.statistics[:, :-1])


@eqx.filter_jit
def observe_several(
    rule: Rule,
    hypers: Float[Array, "sample d"] | None,
    problem: Problem,
    thetas: Theta,
    watch: Watch,
    levels: Float[Array, " tolerance"],
    block: int,
) -> Observed:
    """The same of a rule with several hypers, as one batch; every array begins with theirs.

    Without hypers the rule itself is the only one.
    """

    def one(rule: Rule) -> Observed:
        return observe(rule, problem, thetas, watch, levels, block)

    if hypers is not None and len(hypers) > 1:
        return jax.vmap(lambda hyper: one(with_hyper(rule, hyper)))(hypers)
    # A batch of one would compile to other, slower products.
    only = one(rule if hypers is None else with_hyper(rule, hypers[0]))
    return jax.tree.map(lambda leaf: leaf[None], only)
