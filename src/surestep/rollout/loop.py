"""The only loop over iterations.

Training, sampling, certification, evaluation and solving all iterate a rule through this module.
Divergence is caught here and nowhere else: once a loss is not finite, the rollout's loss is
infinity for good, its state stays where it last was finite, and its status says so.
"""

import enum
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, Int, Scalar

from surestep.problem.base import Point, Problem, Theta
from surestep.problem.goal import Goal
from surestep.problem.oracle import Evaluations, Oracle, Vector
from surestep.rules.base import Rule, State, with_hyper


class Status(enum.IntEnum):
    """How a rollout ended."""

    FINISHED = 0
    REACHED = 1
    LIMIT = 2
    DIVERGED = 3
    STOPPED = 4

    @property
    def message(self) -> str:
        """What the status means, for a person."""
        return _MESSAGES[self]


_MESSAGES = {
    Status.FINISHED: "all iterations were made",
    Status.REACHED: "the accuracy was reached",
    Status.LIMIT: "the iterations were used up before the accuracy was reached",
    Status.DIVERGED: "the loss became infinite or not a number",
    Status.STOPPED: "the caller asked to stop",
}


class Progress(eqx.Module):
    """A rollout under way."""

    state: State
    evaluations: Evaluations
    diverged: Bool[Array, ""]

    @property
    def loss(self) -> Scalar:
        """The loss now: infinity once the rollout has diverged."""
        return jnp.where(self.diverged, jnp.inf, self.state.value)


Measure = Callable[[Point, Theta], Scalar]
"""A number to watch beside the loss, computed from a point and its instance."""


class Rollout(eqx.Module):
    """A finished rollout. Index 0 is the start, index n is after n iterations."""

    losses: Float[Array, " iterations+1"]
    gradients: Int[Array, " iterations+1"]
    x: Vector
    status: Int[Array, ""]
    measures: tuple[Float[Array, " iterations+1"], ...] = ()


class Reached(eqx.Module):
    """What it took to bring the loss down to an accuracy."""

    iterations: Int[Array, ""]
    gradients: Int[Array, ""]
    loss: Scalar
    x: Vector
    status: Int[Array, ""]


def begin(
    rule: Rule, problem: Problem, theta: Theta, through: bool = False, x: Vector | None = None
) -> Progress:
    """Start a rule at the problem's start, or go on from another point.

    What a rule has learned about starts belongs to the problem's; at another point it resumes.
    """
    oracle = Oracle(problem, theta, through)
    state = rule.init(oracle, oracle.start) if x is None else rule.resume(oracle, x)
    return Progress(state, Evaluations.none().plus(oracle), ~jnp.isfinite(state.value))


def advance(
    rule: Rule, problem: Problem, theta: Theta, progress: Progress, through: bool = False
) -> Progress:
    """One iteration of a rule, unless the rollout has diverged."""
    oracle = Oracle(problem, theta, through)
    state = rule.step(oracle, progress.state)
    diverged = progress.diverged | ~jnp.isfinite(state.value)
    kept = jax.tree.map(lambda old, new: jnp.where(diverged, old, new), progress.state, state)
    return Progress(kept, progress.evaluations.plus(oracle), diverged)


def rollout(
    rule: Rule,
    problem: Problem,
    theta: Theta,
    iterations: int,
    measures: tuple[Measure, ...] = (),
) -> Rollout:
    """A fixed number of iterations on one instance, every loss (and measure) kept."""
    rule = rule.prepare()
    unravel = ravel_pytree(problem.start(theta))[1]

    def seen(progress: Progress) -> tuple[Scalar, Array, tuple[Scalar, ...]]:
        found = tuple(measure(unravel(progress.state.x), theta) for measure in measures)
        return progress.loss, progress.evaluations.gradients, found

    def body(progress: Progress, _: None) -> tuple[Progress, Any]:
        progress = advance(rule, problem, theta, progress)
        return progress, seen(progress)

    first = begin(rule, problem, theta)
    last, later = jax.lax.scan(body, first, None, length=iterations)
    losses, gradients, found = jax.tree.map(
        lambda start, rest: jnp.concatenate([start[None], rest]), seen(first), later
    )
    return Rollout(
        losses=losses,
        gradients=gradients,
        x=last.state.x,
        status=jnp.where(last.diverged, Status.DIVERGED, Status.FINISHED),
        measures=found,
    )


def reach(
    rule: Rule, problem: Problem, theta: Theta, accuracy: float | Array, limit: int
) -> Reached:
    """Iterate on one instance until the loss is below an accuracy, at most `limit` times."""
    rule = rule.prepare()

    def unfinished(carry: tuple[Progress, Array]) -> Array:
        progress, iterations = carry
        return (progress.loss >= accuracy) & ~progress.diverged & (iterations < limit)

    def body(carry: tuple[Progress, Array]) -> tuple[Progress, Array]:
        progress, iterations = carry
        return advance(rule, problem, theta, progress), iterations + 1

    first = (begin(rule, problem, theta), jnp.zeros((), jnp.int32))
    progress, iterations = jax.lax.while_loop(unfinished, body, first)
    ended = jnp.where(progress.loss < accuracy, Status.REACHED, Status.LIMIT)
    return Reached(
        iterations=iterations,
        gradients=progress.evaluations.gradients,
        loss=progress.loss,
        x=progress.state.x,
        status=jnp.where(progress.diverged, Status.DIVERGED, ended),
    )


BLOCK = 256
"""How many instances are side by side where nobody has measured."""


@eqx.filter_jit
def rollouts(
    rule: Rule,
    problem: Problem,
    thetas: Theta,
    iterations: int,
    block: int,
    measures: tuple[Measure, ...] = (),
) -> Rollout:
    """Rollouts on every instance of a stacked set, `block` of them side by side."""
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


Statistic = Callable[[Rollout], Scalar]
"""A number between 0 and 1 that a user computes from a rollout; small is good."""


class Observed(eqx.Module):
    """What a certificate needs to know of rollouts."""

    losses: Float[Array, "instance iteration"]
    hits: Float[Array, "instance tolerance"]
    statistics: Float[Array, "instance statistic"]


@eqx.filter_jit
def observe(
    rule: Rule,
    problem: Problem,
    thetas: Theta,
    at: tuple[int, ...],
    tolerances: Float[Array, " tolerance"],
    statistics: tuple[Statistic, ...],
    block: int,
    goal: Goal | None = None,
) -> Observed:
    """Losses after the iterations named in `at`, and what it took to reach each tolerance first.

    A hit is counted in gradient evaluations, and is infinite where there is none. With a goal, the
    last hits are those of its threshold on every instance. The user's statistics are computed from
    the whole rollout.
    """
    # One column more than asked for: batching cannot reshape arrays without any.
    wanted, levels = jnp.asarray(at), jnp.concatenate([tolerances, jnp.full((1,), jnp.inf)])
    rule = rule.prepare()

    def one(theta: Theta) -> Observed:
        result = rollout(rule, problem, theta, max(at))
        mine = levels
        if goal is not None:
            threshold = goal.threshold(problem, theta)[None].astype(levels.dtype)
            mine = jnp.concatenate([levels[:-1], threshold, levels[-1:]])
        # An infinite loss has reached nothing, even where the threshold overflows, too.
        below = jnp.isfinite(result.losses)[:, None] & (result.losses[:, None] <= mine)
        first = result.gradients[jnp.argmax(below, axis=0)]
        hits = jnp.where(jnp.any(below, axis=0), first, jnp.inf)
        found = [jnp.asarray(statistic(result), hits.dtype) for statistic in statistics]
        return Observed(result.losses[wanted], hits, jnp.stack([*found, jnp.zeros_like(hits[0])]))

    seen = jax.lax.map(one, thetas, batch_size=block)
    return Observed(seen.losses, seen.hits[:, :-1], seen.statistics[:, :-1])


@eqx.filter_jit
def observe_several(
    rule: Rule,
    hypers: Float[Array, "sample d"] | None,
    problem: Problem,
    thetas: Theta,
    at: tuple[int, ...],
    tolerances: Float[Array, " tolerance"],
    statistics: tuple[Statistic, ...],
    block: int,
    goal: Goal | None = None,
) -> Observed:
    """The same of a rule with several hypers, all side by side; every array begins with theirs.

    Without hypers the rule itself is the only one.
    """

    def one(rule: Rule) -> Observed:
        return observe(rule, problem, thetas, at, tolerances, statistics, block, goal)

    if hypers is not None and len(hypers) > 1:
        return jax.vmap(lambda hyper: one(with_hyper(rule, hyper)))(hypers)
    # A batch of one would compile to other, slower products.
    only = one(rule if hypers is None else with_hyper(rule, hypers[0]))
    return jax.tree.map(lambda leaf: leaf[None], only)


@eqx.filter_jit
def reach_each(
    rule: Rule,
    problem: Problem,
    thetas: Theta,
    targets: Float[Array, " instance"],
    limit: int,
    block: int,
) -> Reached:
    """Iterate on every instance until its loss is below its target, `block` side by side."""
    rule = rule.prepare()
    return jax.lax.map(
        lambda pair: reach(rule, problem, pair[0], pair[1], limit),
        (thetas, targets),
        batch_size=block,
    )


class Underway(eqx.Module):
    """A rollout that can be looked at, and gone on with."""

    progress: Progress
    iterations: Int[Array, ""]


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
        first = begin(mine.prepare(), problem, theta, x=x)
        return Underway(first, jnp.zeros((), jnp.int32))

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

        def step(now: Underway) -> Underway:
            moved = advance(mine, problem, theta, now.progress)
            return Underway(moved, now.iterations + ~now.progress.diverged)

        if target is None:
            # All instances go on equally long: no state has to be held back in a batch.
            return jax.lax.fori_loop(0, more, lambda _, now: step(now), first)

        def unfinished(carry: tuple[Underway, Array]) -> Array:
            now, left = carry
            return (now.progress.loss >= target) & ~now.progress.diverged & (left > 0)

        return jax.lax.while_loop(
            unfinished, lambda carry: (step(carry[0]), carry[1] - 1), (first, more)
        )[0]

    chosen = None if draws is None else draws.chosen
    return jax.lax.map(one, (thetas, underway, targets, chosen), batch_size=block)


@eqx.filter_jit
def points_of(problem: Problem, thetas: Theta, underway: Underway) -> tuple[Point, Array]:
    """Where rollouts stand, in the form that the problem's loss takes, and their losses."""

    def one(theta: Theta, x: Vector) -> Point:
        return ravel_pytree(problem.start(theta))[1](x)

    progress = underway.progress
    losses = jnp.where(progress.diverged, jnp.inf, progress.state.value)
    return jax.vmap(one)(thetas, progress.state.x), losses
