"""The only loop over iterations.

Training, sampling, certification, evaluation and solving all iterate a rule through this room.
Divergence is caught here and nowhere else: once a loss is not finite, the rollout's loss is
infinity for good, its state stays where it last was finite, and its status says so.
"""

import dataclasses
import enum
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, Int, Scalar

from surestep.problem import Evaluations, Oracle, Point, Problem, Theta, Vector
from surestep.rules.base import GradientState, Rule
from surestep.rules.checked import Checked, Verdict


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

    state: Any
    value: Scalar
    """The last finite loss."""
    evaluations: Evaluations
    diverged: Bool[Array, ""]

    @classmethod
    def at(cls, rule: Rule, oracle: Oracle, state: Any) -> "Progress":
        """A rollout that begins in a state, with what the oracle was asked to make it."""
        value = rule.loss(oracle, state)
        return cls(state, value, Evaluations.none().plus(oracle), ~jnp.isfinite(value))

    @property
    def loss(self) -> Float[Array, "*instance"]:
        """The loss now: infinity once the rollout has diverged; of a batch, one an instance."""
        return jnp.where(self.diverged, jnp.inf, self.value)


Measure = Callable[[Point, Theta], Scalar]
"""A number to watch beside the loss, computed from a point and its instance."""


class Rollout(eqx.Module):
    """A finished rollout. Index 0 is the start, index n is after n iterations."""

    losses: Float[Array, " steps"]
    gradients: Int[Array, " steps"]
    x: Vector
    status: Int[Array, ""]
    measures: tuple[Float[Array, " steps"], ...] = ()


def begin(
    rule: Rule, problem: Problem, theta: Theta, through: bool = False, x: Vector | None = None
) -> Progress:
    """Start a rule at the problem's start, or go on from another point.

    What a rule has learned about starts belongs to the problem's; at another point it resumes.
    """
    oracle = Oracle(problem, theta, through)
    state = rule.init(oracle, oracle.start) if x is None else rule.resume(oracle, x)
    return Progress.at(rule, oracle, state)


def advance(
    rule: Rule,
    problem: Problem,
    theta: Theta,
    progress: Progress,
    through: bool = False,
    held: bool = True,
) -> Progress:
    """One iteration of a rule, unless the rollout has diverged.

    What is not `held` goes on wherever it is, as it does where nobody looks at losses: a rule that
    is checked later may recover.
    """
    oracle = Oracle(problem, theta, through)
    state = rule.step(oracle, progress.state)
    value = rule.loss(oracle, state)
    if rule.recovers or not held:
        return Progress(state, value, progress.evaluations.plus(oracle), ~jnp.isfinite(value))
    diverged = progress.diverged | ~jnp.isfinite(value)
    kept, value = jax.tree.map(
        lambda old, new: jnp.where(diverged, old, new),
        (progress.state, progress.value),
        (state, value),
    )
    return Progress(kept, value, progress.evaluations.plus(oracle), diverged)


def unrolled(
    rule: Rule,
    problem: Problem,
    theta: Theta,
    first: Progress,
    length: int,
    through: bool = False,
    unroll: int = 1,
) -> tuple[Progress, Float[Array, " length"]]:
    """So many iterations more, and the loss after each: what training differentiates.

    With `through`, derivatives run through the gradients that the rule is given. `unroll` of the
    iterations are laid out in the program; a short piece is cheaper so than looped over.
    """

    def body(progress: Progress, _: None) -> tuple[Progress, Scalar]:
        progress = advance(rule, problem, theta, progress, through)
        return progress, progress.loss

    return jax.lax.scan(body, first, None, length=length, unroll=unroll)


def in_step(
    rule: Rule, teacher: Rule, problem: Problem, theta: Theta, pair: tuple[Progress, Progress],
    length: int,
) -> list[tuple[Progress, Progress]]:  # fmt: skip
    """Two rules on one instance for some iterations, and where both are after each."""
    found = []
    for _ in range(length):
        pair = (
            advance(rule, problem, theta, pair[0]),
            advance(teacher, problem, theta, pair[1]),
        )
        found.append(pair)
    return found


def rollout(
    rule: Rule,
    problem: Problem,
    theta: Theta,
    iterations: int,
    measures: tuple[Measure, ...] = (),
) -> Rollout:
    """A fixed number of iterations on one instance, every loss (and measure) kept."""
    rule = rule.prepare()
    if isinstance(rule, Checked):
        return _checked_rollout(rule, problem, theta, iterations, measures)
    return _rollout(rule, problem, theta, begin(rule, problem, theta), iterations, measures)[0]


def _checked_rollout(
    rule: Checked, problem: Problem, theta: Theta, iterations: int, measures: tuple[Measure, ...]
) -> Rollout:
    """The rule's iterations, its check, then the fallback's: what `Checked.step` does, in order."""
    first = begin(rule.rule, problem, theta)
    before = min(iterations, rule.at - 1)
    shown, progress = _rollout(rule.rule, problem, theta, first, before, measures, held=False)
    if iterations < rule.at:
        return shown
    oracle = Oracle(problem, theta)
    end = rule.finish(oracle, rule.rule.step(oracle, progress.state))
    later = Oracle(problem, theta)
    kept = Progress(
        rule.fallback.init(later, end[0]),
        end[1],
        progress.evaluations.plus(oracle),
        ~jnp.isfinite(end[1]),
    )
    tail, _ = _rollout(rule.fallback, problem, theta, kept, iterations - rule.at, measures)
    # What the fallback began with counts once it goes on.
    gradients = tail.gradients.at[1:].add(later.spent()[0])
    return Rollout(
        losses=jnp.concatenate([shown.losses, tail.losses]),
        gradients=jnp.concatenate([shown.gradients, gradients]),
        x=tail.x,
        status=tail.status,
        measures=tuple(
            jnp.concatenate(pair) for pair in zip(shown.measures, tail.measures, strict=True)
        ),
    )


def _rollout(
    rule: Rule,
    problem: Problem,
    theta: Theta,
    first: Progress,
    iterations: int,
    measures: tuple[Measure, ...],
    held: bool = True,
) -> tuple[Rollout, Progress]:
    """So many iterations from somewhere, every loss kept, the first one too."""
    unravel = ravel_pytree(problem.start(theta))[1]

    def seen(progress: Progress) -> tuple[Scalar, Array, tuple[Scalar, ...]]:
        found = tuple(measure(unravel(rule.point(progress.state)), theta) for measure in measures)
        return progress.loss, progress.evaluations.gradients, found

    def body(progress: Progress, _: None) -> tuple[Progress, Any]:
        progress = advance(rule, problem, theta, progress, held=held)
        return progress, seen(progress)

    last, later = jax.lax.scan(body, first, None, length=iterations)
    losses, gradients, found = jax.tree.map(
        lambda start, rest: jnp.concatenate([start[None], rest]), seen(first), later
    )
    shown = Rollout(
        losses=losses,
        gradients=gradients,
        x=rule.point(last.state),
        status=jnp.where(last.diverged, Status.DIVERGED, Status.FINISHED),
        measures=found,
    )
    return shown, last


class Underway(eqx.Module):
    """A rollout that can be looked at, and gone on with."""

    progress: Progress
    iterations: Int[Array, ""]

    @classmethod
    def started(cls, progress: Progress) -> "Underway":
        """A rollout at its start."""
        return cls(progress, jnp.zeros((), jnp.int32))


def proceed(
    rule: Rule, problem: Problem, theta: Theta, first: Underway, more: int | Int[Array, ""]
) -> Underway:
    """So many iterations more on one instance."""

    def step(_: Array, now: Underway) -> Underway:
        moved = advance(rule, problem, theta, now.progress)
        return Underway(moved, now.iterations + ~now.progress.diverged)

    return jax.lax.fori_loop(0, more, step, first)


class Ended(eqx.Module):
    """A rollout of which only the end was looked at."""

    x: Vector
    loss: Scalar
    """Infinite where it is no number."""
    gradients: Int[Array, ""]
    passed: Bool[Array, ""]
    """Whether a rule with a check passed it."""
    slope: Scalar
    """How steep it was there, for the check; 0 where nobody looked."""
    start: Vector
    """The problem's start."""

    @property
    def point(self) -> Vector:
        """Where it ended; whoever has diverged is nowhere, and has the start handed out."""
        return jnp.where(jnp.isfinite(self.loss), self.x, self.start)

    @property
    def unwatched_point(self) -> Vector:
        """The same where nobody looks at the loss: the point itself tells who has diverged."""
        return jnp.where(jnp.all(jnp.isfinite(self.x)), self.x, self.start)


def unwatched(
    rule: Rule,
    problem: Problem,
    theta: Theta,
    number: int | Int[Array, ""],
    x: Vector | None = None,
) -> Ended:
    """So many iterations on one instance, without a look at the loss before the end.

    A rule with a check makes no more iterations than up to its check, and is checked there; what
    fails is the caller's to help.
    """
    checked = rule if isinstance(rule, Checked) else None
    inner: Rule = rule if checked is None else checked.rule
    oracle = Oracle(problem, theta)
    state = inner.init(oracle, oracle.start) if x is None else inner.resume(oracle, x)

    def body(_: Array, carry: Any) -> Any:
        state, spent = carry
        one = oracle.fresh()
        return inner.step(one, state), spent.plus(one)

    first = (state, Evaluations.none().plus(oracle))
    most = number if checked is None else jnp.minimum(number, checked.at)
    state, spent = jax.lax.fori_loop(0, most, body, first)
    state = _valued(inner, oracle, state)
    if checked is None:
        loss = inner.loss(oracle.fresh(), state)
        slope, passed = jnp.zeros_like(loss), jnp.ones((), bool)
    else:

        def looked() -> tuple[Verdict, Array]:
            known = inner.loss(oracle.fresh(), state)
            verdict = Verdict(known, jnp.zeros_like(known), jnp.ones((), bool))
            return verdict, jnp.zeros((), jnp.int32)

        def examined() -> tuple[Verdict, Array]:
            last = oracle.fresh()
            verdict = checked.examine(last, state)
            return verdict, jnp.asarray(last.spent()[0], jnp.int32)

        # The number is the same for all instances of a batch, so one of the two is computed.
        verdict, asked = jax.lax.cond(number < checked.at, looked, examined)
        loss, slope, passed = verdict.value, verdict.slope, verdict.passed
        spent = Evaluations(spent.gradients + asked, spent.values)
    loss = jnp.where(jnp.isfinite(loss), loss, jnp.inf)
    return Ended(inner.point(state), loss, spent.gradients, passed, slope, oracle.start)


def _valued(rule: Rule, oracle: Oracle, state: Any) -> Any:
    """The state with its loss computed once more, if no step has looked at losses.

    They are not computed in the loop then, because nobody needs them.
    """
    if rule.watches_loss or not isinstance(state, GradientState):
        return state
    return dataclasses.replace(state, value=oracle.unmetered_value(state.x))


def whole(rule: Rule, problem: Problem, theta: Theta, iterations: int) -> Ended:
    """A solve from beginning to end as part of a program: with its check, help and what follows.

    `rollout.program` does the same for sets, and gathers those that need help.
    """
    if not isinstance(rule, Checked) or iterations < rule.at:
        return unwatched(rule, problem, theta, iterations)
    end = _with_help(rule, problem)(theta)
    if iterations > rule.at:
        tail = unwatched(rule.fallback, problem, theta, iterations - rule.at, end.x)
        spent = end.gradients + tail.gradients
        end = dataclasses.replace(end, x=tail.x, loss=tail.loss, gradients=spent)
    return end


def _with_help(rule: Checked, problem: Problem) -> Callable[[Theta], Ended]:
    """The iterations up to the check, the check, and help for an instance that fails it.

    In a batch those who need help have their turns, so that the others cost nothing.
    """

    def examined(theta: Theta) -> Ended:
        return unwatched(rule, problem, theta, rule.at)

    def helped(theta: Theta, end: Ended) -> Ended:
        failed = Verdict(end.loss, jnp.full_like(end.loss, jnp.inf), jnp.zeros((), bool))
        found = rule.help(Oracle(problem, theta), end.x, failed, rule.rescue)
        spent = end.gradients + found.gradients
        return dataclasses.replace(end, x=found.x, loss=found.value, gradients=spent)

    def completed(theta: Theta, end: Ended) -> Ended:
        return jax.lax.cond(end.passed, lambda: end, lambda: helped(theta, end))

    @jax.custom_batching.custom_vmap
    def alone(theta: Theta) -> Ended:
        return completed(theta, examined(theta))

    @alone.def_vmap
    def _in_batch(size: int, batched: Any, theta: Theta) -> Any:
        thetas = jax.tree.map(
            lambda leaf, own: leaf if own else jnp.broadcast_to(leaf, (size, *jnp.shape(leaf))),
            theta,
            batched[0],
        )
        ends = jax.vmap(examined)(thetas)

        def in_turns() -> Ended:
            return jax.lax.map(lambda given: completed(*given), (thetas, ends))

        found = jax.lax.cond(jnp.all(ends.passed), lambda: ends, in_turns)
        return found, jax.tree.map(lambda _: True, found)

    return alone
