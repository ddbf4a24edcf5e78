"""The compiled program of a batch that is looked at on the way: until losses are low enough.

The loop ends for the whole batch at once, by a count over its instances. So nobody's state is held
back for others. An instance that is done goes on with the rest, and what is kept of it is its point
when it was done. Whoever calls gathers those that are left.
"""

import functools
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, Int, Scalar

from surestep.problem import Evaluations, Oracle, Point, Problem, Theta, Vector, count
from surestep.rollout.program import joined
from surestep.rules import Checked
from surestep.rules.base import Rule, State, with_hyper

LOOKS = 8
"""How often losses that take an evaluation are looked at while the iterations double."""

_BATCH = "batch"

Part = Literal["whole", "before", "after"]
"""Which rule iterates: the whole one, or of a checked one the rule before its check, or the
fallback after it."""


class Kept(eqx.Module):
    """What is kept of an instance that is done."""

    x: Vector
    loss: Scalar
    iterations: Int[Array, ""]
    gradients: Int[Array, ""]


class Standing(eqx.Module):
    """Where an instance stands, to go on from."""

    state: State
    spent: Evaluations
    loss: Scalar
    settled: Bool[Array, ""]
    """Whether it is done: its loss is low enough, or it has diverged."""
    kept: Kept


class Shown(NamedTuple):
    """What there is to see of an instance: when it was done, or else now."""

    x: Point
    loss: Any
    """Infinite where it is no number."""
    iterations: Any
    gradients: Any
    settled: Any


class Given(NamedTuple):
    """What every instance of a batch has of its own."""

    thetas: Theta
    hypers: Float[Any, "instance d"] | None
    """Of rules that were drawn; without them the rule is the same for all."""
    starts: Point | None
    standing: Standing | None
    """None to begin, at the starts or at the problem's."""


class Ends(NamedTuple):
    """When a batch comes back."""

    made: Any
    """Iterations made so far, by everyone who is not done."""
    bound: Any
    """Iterations to be made in all."""
    enough: Any
    """It comes back earlier if so few are left."""
    target: Any
    """The loss below which an instance is done; None if only the end is looked at."""


@functools.lru_cache(maxsize=64)
def going(rest: Any, part: Part) -> Callable[[list[Any], Given, Ends], Any]:
    """The program that goes on with a batch.

    It takes the arrays of a rule and its problem, and returns every instance's `Standing`, what is
    `Shown` of it, its loss at the start (if it begins), and how many iterations are made.
    """

    @jax.jit
    def go(arrays: list[Any], given: Given, ends: Ends) -> Any:
        rule, problem = joined(rest, arrays)

        def one(mine: Given, total: Callable[[Array], Array]) -> Any:
            return _gone_on(_acting(rule, part, mine.hypers), problem, mine, ends, total)

        return _batched(one, given)

    return go


@functools.lru_cache(maxsize=64)
def checking(rest: Any) -> Callable[[list[Any], Given], Any]:
    """The program of the iteration that ends with a check: what is shown, and who passed."""

    @jax.jit
    def check(arrays: list[Any], given: Given) -> Any:
        rule, problem = joined(rest, arrays)

        def one(mine: Given, _: Any) -> Any:
            assert mine.standing is not None
            oracle = Oracle(problem, mine.thetas)
            inner = _acting(rule, "before", mine.hypers)[0]
            state = inner.step(oracle, mine.standing.state)
            verdict = rule.examine(oracle, state)
            spent = mine.standing.spent.plus(oracle)
            seen = _seen(problem, mine.thetas, inner.point(state), verdict.value)
            return (*seen, spent.gradients, verdict.passed), None, None, None

        return _batched(one, given)[0]

    return check


def _batched(one: Callable[..., Any], given: Given) -> Any:
    """A function of every instance, which can count over the batch; the last result is common."""
    if count(given.thetas) == 1:
        # A batch of one would compile to other, slower products.
        *found, common = one(jax.tree.map(lambda leaf: leaf[0], given), lambda number: number)
        return *jax.tree.map(lambda leaf: leaf[None], tuple(found)), common
    total = functools.partial(jax.lax.psum, axis_name=_BATCH)
    return jax.vmap(
        lambda mine: one(mine, total), axis_name=_BATCH, out_axes=(0, 0, 0, None)
    )(given)  # fmt: skip


def _acting(rule: Rule, part: Part, hyper: Array | None) -> tuple[Rule, bool]:
    """The rule that iterates, and whether it goes on after a loss that is not finite."""
    mine = rule if hyper is None else with_hyper(rule, hyper).prepare()
    if part == "whole":
        return mine, mine.recovers
    assert isinstance(mine, Checked)
    return mine.rule if part == "before" else mine.fallback, True


def _gone_on(
    acting: tuple[Rule, bool],
    problem: Problem,
    given: Given,
    ends: Ends,
    total: Callable[[Array], Array],
) -> Any:
    (rule, recovers), theta = acting, given.thetas

    def left(now: Standing) -> Array:
        return total((~now.settled).astype(jnp.int32))

    def step(_: Any, carry: tuple[State, Evaluations]) -> tuple[State, Evaluations]:
        oracle = Oracle(problem, theta)
        state = rule.step(oracle, carry[0])
        return state, carry[1].plus(oracle)

    def looked(now: Standing, made: Array) -> Standing:
        """Compute the loss, and settle who is done."""
        loss = rule.loss(Oracle(problem, theta), now.state).astype(now.loss.dtype)
        lost = jnp.zeros((), bool) if recovers else ~jnp.isfinite(loss)
        low = False if ends.target is None else loss < ends.target.astype(loss.dtype)
        done = ~now.settled & (low | lost)
        found = Kept(rule.point(now.state), loss, made, now.spent.gradients)
        kept = jax.lax.cond(
            total(done.astype(jnp.int32)) > 0,
            lambda: jax.tree.map(lambda new, old: jnp.where(done, new, old), found, now.kept),
            lambda: now.kept,
        )
        return Standing(now.state, now.spent, loss, now.settled | done, kept)

    def unfinished(carry: tuple[Standing, Array, Array]) -> Array:
        _, made, unsettled = carry
        return (made < ends.bound) & (unsettled > ends.enough)

    def until_a_look(carry: tuple[Standing, Array, Array]) -> tuple[Standing, Array, Array]:
        now, made, _ = carry
        if free and ends.target is not None:
            pace, (state, spent) = 1, step(0, (now.state, now.spent))
        else:
            pace = _pace(made, ends)
            state, spent = jax.lax.fori_loop(0, pace, step, (now.state, now.spent))
        now = looked(Standing(state, spent, now.loss, now.settled, now.kept), made + pace)
        return now, made + pace, left(now)

    made, first, now = jnp.asarray(ends.made, jnp.int32), None, given.standing
    if now is None:
        now = looked(_begun(rule, problem, theta, given.starts), made)
        first = _finite(now.loss)
    free = _is_free(rule, problem, theta, now.state)
    now, made, _ = jax.lax.while_loop(unfinished, until_a_look, (now, made, left(now)))
    last = Kept(rule.point(now.state), now.loss, made, now.spent.gradients)
    end = jax.tree.map(lambda old, new: jnp.where(now.settled, old, new), now.kept, last)
    x, loss = _seen(problem, theta, end.x, end.loss)
    return now, Shown(x, loss, end.iterations, end.gradients, now.settled), first, made


def _begun(rule: Rule, problem: Problem, theta: Theta, start: Point | None) -> Standing:
    oracle = Oracle(problem, theta)
    if start is None:
        state = rule.init(oracle, oracle.start)
    else:
        state = rule.resume(oracle, ravel_pytree(start)[0])
    spent, none = Evaluations.none().plus(oracle), jnp.zeros((), jnp.int32)
    form = jax.eval_shape(lambda: rule.loss(Oracle(problem, theta), state))
    unknown, unsettled = jnp.zeros((), form.dtype), jnp.zeros((), bool)
    return Standing(state, spent, unknown, unsettled, Kept(rule.point(state), unknown, none, none))


def _is_free(rule: Rule, problem: Problem, theta: Theta, state: State) -> bool:
    """Whether the rule knows its loss, so that a look asks the oracle nothing."""
    asked: list[Any] = []

    def look(state: State) -> Scalar:
        oracle = Oracle(problem, theta)
        value = rule.loss(oracle, state)
        asked.extend(oracle.spent())
        return value

    jax.eval_shape(look, state)
    return all(isinstance(number, int) and number == 0 for number in asked)


def _pace(made: Array, ends: Ends) -> Array:
    """Iterations until the next look; so that a bound in between changes no later look."""
    left = ends.bound - made
    if ends.target is None:
        return left
    doubling = jnp.left_shift(1, 31 - jax.lax.clz(jnp.maximum(made, 1)))
    apart = jnp.maximum(doubling // LOOKS, 1)
    return jnp.minimum(apart - made % apart, left)


def _seen(problem: Problem, theta: Theta, x: Vector, value: Scalar) -> tuple[Point, Scalar]:
    """A point in the form that the loss takes, and its loss; who has diverged is at the start."""
    origin, unravel = ravel_pytree(problem.start(theta))
    return unravel(jnp.where(jnp.isfinite(value), x, origin)), _finite(value)


def _finite(value: Scalar) -> Scalar:
    return jnp.where(jnp.isfinite(value), value, jnp.inf)


def numbers(made: int, bound: int, enough: int, target: float | None) -> Ends:
    """When a batch comes back, as arrays: another number compiles nothing."""
    whole = [np.asarray(number, np.int32) for number in (made, bound, enough)]
    return Ends(*whole, target=None if target is None else np.asarray(target, np.float64))
