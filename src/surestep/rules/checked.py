"""A check after a fixed number of iterations, and a classical rule for those that fail it."""

import dataclasses
import math
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, PyTree, Scalar

from surestep.base.errors import ConfigurationError
from surestep.problem import Oracle, Vector
from surestep.rules.base import Need, Rule, State, hyper_of

_BETWEEN = 10  # iterations of the fallback from one check to the next


class Verdict(eqx.Module):
    """What the check finds at a point."""

    value: Scalar
    """The loss."""
    slope: Scalar
    """How far the point is from being stationary: the norm of `Rule.stationarity`."""
    passed: Bool[Array, ""]


class CheckedState(State):
    """The point that counts, where both rules stand, and the time."""

    x: Vector
    value: Scalar
    """The loss there; not kept up to date before the check."""
    rule: Any
    fallback: PyTree[Any]
    iteration: Int[Array, ""]
    owed: Int[Array, ""]
    """Gradients that the fallback began with: counted once it goes on."""


class Checked(Rule):
    """A rule that makes a fixed number of iterations unwatched, and is checked once after them.

    No loss is computed on the way, nothing is compared and nothing held back: an iteration costs
    what the rule's own step costs. Then the point is checked. It passes if its loss is finite, no
    larger than the start's, and if the gradient (of a composite loss: the proximal gradient step,
    divided by the step, or a subgradient that the rule knows) is no longer than `tolerance`. An
    instance that fails is given to the classical fallback, from the better of its point and the
    problem's start, for at most `rescue` iterations or until it passes. That happens in the
    iteration of the check, so the loss after it is that of the whole. Later iterations are the
    fallback's, for all.

    - The loss after the check never exceeds the start's.
    - In the long run it is the fallback, from a good point, and converges where that does.

    Training sees the rule alone (`bare`); the hyper is the rule's.

    **Arguments:**

    - `rule`: the rule that is checked.
    - `fallback`: a classical rule with nothing to learn.
    - `at`: after how many iterations.
    - `tolerance`: the longest gradient that passes.
    - `rescue`: most iterations of the fallback on an instance that fails.
    - `step_size`: the step of the proximal gradient step that is measured.
    - `compared`: whether the loss is compared with the start's, which takes one evaluation. A
      convex loss with a short gradient need not be.

    ```python
    import surestep as ss

    inner = ss.rules.LearnedFista.around(ss.rules.FistaWithRestart(0.01))
    rule = ss.rules.Checked(inner, fallback=ss.rules.FistaWithRestart(0.01), at=20)
    ```
    """

    learns_start: ClassVar[bool] = True
    recovers: ClassVar[bool] = True

    rule: Rule
    fallback: Rule
    at: int = eqx.field(static=True)
    tolerance: float = math.inf
    rescue: int = eqx.field(static=True, default=100)
    step_size: float = 1.0
    compared: bool = eqx.field(static=True, default=True)

    def __check_init__(self) -> None:
        """Refuse numbers that make no sense, and a fallback that would be trained."""
        if self.at < 1 or self.rescue < 0 or not self.tolerance > 0 or not self.step_size > 0:
            raise ConfigurationError(
                "a check needs a time of at least 1, a rescue of at least 0 iterations and a "
                f"positive tolerance and step, not {self.at}, {self.rescue}, {self.tolerance} and "
                f"{self.step_size}"
            )
        if hyper_of(self.fallback).size:
            raise ConfigurationError(
                f"a check's fallback must have nothing to learn: the numbers of "
                f"{type(self.fallback).__name__} must be plain floats, or it must be inside a "
                "Frozen"
            )

    @property
    def needs(self) -> tuple[Need, ...]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """What either rule needs."""
        return tuple(dict.fromkeys((*self.rule.needs, *self.fallback.needs)))

    def prepare(self) -> "Checked":
        """With both rules in their fastest form."""
        return dataclasses.replace(self, rule=self.rule.prepare(), fallback=self.fallback.prepare())

    def bare(self) -> Rule:
        """The rule without its check."""
        return self.rule.bare()

    def init(self, oracle: Oracle, x: Vector) -> CheckedState:
        """The rule begins."""
        return self._begun(oracle, self.rule.init(oracle, x))

    def resume(self, oracle: Oracle, x: Vector) -> CheckedState:
        """The rule begins where it is told to."""
        return self._begun(oracle, self.rule.resume(oracle, x))

    def _begun(self, oracle: Oracle, state: Any) -> CheckedState:
        # The fallback's memory is made when it is used; here only its shape is.
        x = self.rule.point(state)
        shapes = jax.eval_shape(lambda x: self.fallback.init(oracle.fresh(), x), x)
        memory = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
        unknown, none = jnp.zeros((), x.dtype), jnp.zeros((), jnp.int32)
        return CheckedState(x, unknown, state, memory, none, none)

    def loss(self, oracle: Oracle, state: CheckedState) -> Scalar:
        """The rule's, then the fallback's."""
        return jax.lax.cond(
            state.iteration < self.at,
            lambda: self.rule.loss(oracle.fresh(), state.rule),
            lambda: state.value,
        )

    def step(self, oracle: Oracle, state: CheckedState) -> CheckedState:
        """A step of the rule, with the check after the last of them, or one of the fallback."""

        def asked(step: Any) -> Any:
            inner = oracle.fresh()
            result = step(inner)
            return result, tuple(jnp.asarray(number, jnp.int32) for number in inner.spent())

        def early() -> Any:
            def step(inner: Oracle) -> Any:
                moved = self.rule.step(inner, state.rule)
                return self.rule.point(moved), state.value, moved, state.fallback, state.owed

            return asked(step)

        def last() -> Any:
            def step(inner: Oracle) -> Any:
                moved = self.rule.step(inner, state.rule)
                x, value, _ = self.finish(inner, moved)
                begun = oracle.fresh()
                memory = self.fallback.init(begun, x)
                return x, value, moved, memory, jnp.asarray(begun.spent()[0], jnp.int32)

            return asked(step)

        def late() -> Any:
            def step(inner: Oracle) -> Any:
                moved = self.fallback.step(inner, state.fallback)
                value = self.fallback.loss(inner, moved)
                inner.spend(gradients=state.owed)
                x = self.fallback.point(moved)
                return x, value, state.rule, moved, jnp.zeros_like(state.owed)

            return asked(step)

        which = jnp.sign(state.iteration + 1 - self.at) + 1
        (x, value, rule, memory, owed), spent = jax.lax.switch(which, [early, last, late])
        oracle.spend(gradients=spent[0], values=spent[1])
        return CheckedState(x, value, rule, memory, state.iteration + 1, owed)

    def finish(self, oracle: Oracle, state: Any) -> tuple[Vector, Scalar, Bool[Array, ""]]:
        """Check the rule's last state, and let the fallback help: point, loss, whether it passed.

        In a batch the fallback iterates as long as an instance of it needs help.
        """
        verdict = self.examine(oracle, state)
        end = self.help(oracle, self.rule.point(state), verdict, self.rescue)
        oracle.spend(gradients=end.gradients)
        return end.x, end.value, end.passed

    def examine(self, oracle: Oracle, state: Any) -> Verdict:
        """The check itself: one gradient, which some rules know already."""
        verdict = self._examined(oracle, self.rule, state)
        if not self.compared:
            return verdict
        worse = verdict.value > oracle.value(oracle.start)
        return dataclasses.replace(verdict, passed=verdict.passed & ~worse)

    def _examined(self, oracle: Oracle, rule: Rule, state: Any) -> Verdict:
        value, slope = rule.stationarity(oracle, state, self.step_size)
        length = jnp.sqrt(jnp.sum(slope * slope))
        return Verdict(value, length, jnp.isfinite(value) & (length <= self.tolerance))

    def help(self, oracle: Oracle, x: Vector, verdict: Verdict, most: int) -> "Helped":
        """The fallback's iterations on an instance that has failed; none on one that has passed.

        What is evaluated is counted in the result, not in the oracle.
        """
        fallback, start = self.fallback, oracle.start
        first_loss = oracle.unmetered_value(start)
        here = verdict.passed | (verdict.value <= first_loss)
        origin, height = jnp.where(here, x, start), jnp.where(here, verdict.value, first_loss)
        begun = oracle.fresh()
        first = fallback.init(begun, origin)
        asked = jnp.asarray(1 + begun.spent()[0], jnp.int32)

        def undecided(carry: Any) -> Array:
            _, passed, _, made, _ = carry
            return ~passed & (made < most)

        def one(_: Array, carry: Any) -> Any:
            state, spent = carry
            inner = oracle.fresh()
            state = fallback.step(inner, state)
            return state, jnp.asarray(spent + inner.spent()[0], jnp.int32)

        def several(carry: Any) -> Any:
            state, _, _, made, spent = carry
            state, spent = jax.lax.fori_loop(0, _BETWEEN, one, (state, spent))
            inner = oracle.fresh()
            now = self._examined(inner, fallback, state)
            return state, now.passed, now.value, made + _BETWEEN, spent + inner.spent()[0]

        none = jnp.zeros((), jnp.int32)
        end, passed, reached, made, spent = jax.lax.while_loop(
            undecided, several, (first, verdict.passed, height, none, asked)
        )
        # A fallback that is not monotone may have left the better point behind.
        kept = verdict.passed | ~(reached <= height)
        return Helped(
            jnp.where(kept, origin, fallback.point(end)),
            jnp.where(kept, height, reached),
            passed,
            made,
            jnp.where(verdict.passed, 0, spent),
        )


class Helped(eqx.Module):
    """An instance after the check, and after what the fallback did for it."""

    x: Vector
    value: Scalar
    passed: Bool[Array, ""]
    iterations: Int[Array, ""]
    """Iterations of the fallback."""
    gradients: Int[Array, ""]
