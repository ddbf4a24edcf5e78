"""What rollouts show: what is looked at, and what was seen."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Scalar

from surestep.problem import Problem, Theta
from surestep.rollout.loop import Rollout, rollout
from surestep.rules.base import Rule, with_hyper

REACHED = 3
"""How many entries there are about each target."""

Statistic = Callable[[Rollout], Scalar]
"""A number between 0 and 1 that a user computes from a rollout; small is good."""


class Watch(eqx.Module):
    """What is looked at in rollouts."""

    at: tuple[int, ...]
    """After which iterations losses are kept; the last one ends the rollout."""
    targets: int = 0
    """How many losses each instance has of its own, for which it is seen when they are reached."""
    statistics: tuple[tuple[str, Statistic], ...] = ()
    """What is computed from the whole rollout, with its name. In order: JAX would sort a mapping's
    names inside a compiled program, and columns would change places."""

    @property
    def widths(self) -> tuple[int, int, int]:
        """How many losses, entries about targets and statistics an instance has."""
        return len(self.at), REACHED * self.targets, len(self.statistics)


class Observed(eqx.Module):
    """What was seen of rollouts: one row an instance; of several rules, one table a rule.

    On a device the arrays are JAX's, once they are read NumPy's in float64.
    """

    losses: Float[Any, "*batch iteration"]
    reach: Float[Any, "*batch entry"]
    """When the targets were reached; see `reach_of`."""
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


def reach_of(
    result: Rollout, targets: Float[Array, " target"]
) -> tuple[Float[Array, " target"], Float[Array, " target"], Float[Array, " target"]]:
    """When a rollout is at or below each of some losses; infinite where it is not.

    First the iteration from which on it is, until the end: whoever makes so many iterations, or
    more, has such a loss. Then the gradient evaluations until then. Last the gradient evaluations
    until it was there for the first time, which is when somebody who looks would have stopped.
    """
    # An infinite loss has reached nothing, even where the target overflows, too.
    below = jnp.isfinite(result.losses)[:, None] & (result.losses[:, None] <= targets)
    stays = jnp.flip(jnp.cumprod(jnp.flip(below, 0), axis=0), 0).astype(bool)
    settled, first = jnp.argmax(stays, axis=0), jnp.argmax(below, axis=0)
    ends, hit = stays[-1], jnp.any(below, axis=0)
    gradients = jnp.asarray(result.gradients, targets.dtype)
    return (
        jnp.where(ends, settled.astype(targets.dtype), jnp.inf),
        jnp.where(ends, gradients[settled], jnp.inf),
        jnp.where(hit, gradients[first], jnp.inf),
    )


@eqx.filter_jit
def observe(
    rule: Rule,
    problem: Problem,
    thetas: Theta,
    targets: Float[Array, "instance target"],
    watch: Watch,
    block: int,
) -> Observed:
    """What a rule shows on every instance of a stacked set, in batches of `block`."""
    # One column more than asked for: batching cannot reshape arrays without any.
    more = jnp.full((len(targets), 1), jnp.inf, targets.dtype)
    wanted, levels = jnp.asarray(watch.at), jnp.concatenate([targets, more], axis=1)
    rule = rule.prepare()

    def one(theta: Theta, mine: Float[Array, " target"]) -> Observed:
        result = rollout(rule, problem, theta, max(watch.at))
        reach = jnp.concatenate([part[:-1] for part in reach_of(result, mine)] + [mine[:0]])
        filler = jnp.zeros(1, mine.dtype)
        found = [jnp.asarray(look(result), mine.dtype)[None] for _, look in watch.statistics]
        return Observed(
            result.losses[wanted],
            jnp.concatenate([reach, filler]),
            jnp.concatenate([*found, filler]),
        )

    seen = jax.lax.map(lambda pair: one(*pair), (thetas, levels), batch_size=block)
    return Observed(seen.losses, seen.reach[:, :-1], seen.statistics[:, :-1])


@eqx.filter_jit
def observe_several(
    rule: Rule,
    hypers: Float[Array, "sample d"] | None,
    problem: Problem,
    thetas: Theta,
    targets: Float[Array, "instance target"],
    watch: Watch,
    block: int,
) -> Observed:
    """The same of a rule with several hypers, as one batch; every array begins with theirs.

    Without hypers the rule itself is the only one.
    """

    def one(rule: Rule) -> Observed:
        return observe(rule, problem, thetas, targets, watch, block)

    if hypers is not None and len(hypers) > 1:
        return jax.vmap(lambda hyper: one(with_hyper(rule, hyper)))(hypers)
    # A batch of one would compile to other, slower products.
    only = one(rule if hypers is None else with_hyper(rule, hypers[0]))
    return jax.tree.map(lambda leaf: leaf[None], only)
