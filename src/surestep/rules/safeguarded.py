"""Safeguards as part of the rule, so that a certificate covers them."""

import dataclasses
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, PyTree, Scalar

from surestep.base.errors import ConfigurationError
from surestep.problem import Oracle, Vector
from surestep.rules.base import GradientRule, GradientState, Need, Rule, State, hyper_of

_LONGEST_BURST = 2**20


@dataclasses.dataclass(frozen=True)
class SafeguardSettings:
    """When a guarded rule gives way to its fallback: the numbers of `Safeguarded`.

    ```python
    import surestep as ss

    guard = ss.rules.SafeguardSettings(factor=10.0, patience=15)
    rule = guard.around(ss.rules.QuasiNewton(), fallback=ss.rules.GradientDescent(0.01))
    ```
    """

    factor: float = 100.0
    """How many times the best loss the current one may be."""
    patience: int = 30
    """Iterations without a sufficient decrease that are allowed."""
    decrease: float = 1e-3
    """The share by which a loss must fall to count as a sufficient decrease."""

    def validate(self) -> None:
        """Refuse numbers that make no sense."""
        _require(self.factor, self.patience, self.decrease)

    def around(self, rule: Rule, fallback: Rule) -> "Safeguarded":
        """The rule inside a safeguard with these numbers."""
        return Safeguarded(rule, fallback, self.factor, self.patience, self.decrease)


def _require(factor: float, patience: int, decrease: float) -> None:
    if not factor >= 1 or patience < 1 or not 0 < decrease < 1:
        raise ConfigurationError(
            "a safeguard needs a factor and a patience of at least 1 and a decrease between 0 and "
            f"1, not {factor}, {patience} and {decrease}"
        )


class Watch(eqx.Module):
    """What the safeguard remembers of the losses it has seen."""

    best: Scalar
    mark: Scalar
    """The loss that the next sufficient decrease is counted from."""
    since: Int[Array, ""]
    """Iterations since the last sufficient decrease."""
    remaining: Int[Array, ""]
    """Classical steps still to be taken before the rule is trusted again."""
    burst: Int[Array, ""]
    """Classical steps to take at the next stall."""
    zero: Scalar
    """Where losses are counted from: 0, or the start's loss where losses may be negative."""

    @classmethod
    def begin(cls, value: Scalar, nonnegative: bool) -> "Watch":
        """At the start nothing has gone wrong."""
        none = jnp.zeros((), jnp.int32)
        zero = jnp.zeros_like(value) if nonnegative else value
        return cls(value, value, none, none, none + 1, zero)


class SafeguardedState(State):
    """The best point so far, which is the one that counts, and where both rules stand."""

    x: Vector
    value: Scalar
    best: PyTree[Any]
    """The gradient at the best point, where rules need no more than that."""
    rule: State
    rule_value: Scalar
    """The loss where the rule stands."""
    fallback: PyTree[Any]
    watch: Watch


class _Turn(NamedTuple):
    """Whose turn it is in this iteration, and why."""

    wrong: Bool[Array, ""]
    """Whether the rule has blown up or stalled."""
    stalled: Bool[Array, ""]
    classical: Bool[Array, ""]
    """Whether the fallback makes the step."""
    remaining: Int[Array, ""]
    """Classical steps after this one."""
    over: Bool[Array, ""]
    """Whether this is the last classical step before the rule is trusted again."""


class Safeguarded(Rule):
    """A rule inside a safeguard: it returns its best point, and goes back to it when it must.

    Something is wrong if the loss is not finite, exceeds `factor` times the best one, or has not
    decreased by the share `decrease` for `patience` iterations. Then the fallback takes a step
    from the best point. After a stall it takes one step, after the next stall two, then four:
    where the rule has nothing left to give, the fallback does the work.

    Where losses may be negative there is no share of a loss. There something is wrong if the loss
    exceeds the best one by more than `factor` times what has been gained since the start, and a
    decrease counts if it is the share `decrease` of that gain, or the first one.

    - The returned loss never exceeds the start's.
    - With a monotone fallback (a gradient or proximal gradient step of `1 / L`), limit points are
      stationary. For either the loss decreases by a fixed share again and again, so it tends to
      0, the least value that a loss can have; or steps of the fallback from the best point are
      taken infinitely often, and each of them lowers the best loss by at least
      `norm(gradient)^2 / (2 L)`. (Where losses may be negative: either the gain since the start
      grows by a fixed share again and again, so the loss has no lower bound, or the same.)
    - While nothing is wrong, nothing is evaluated beyond what the rule itself evaluates. If rule
      and fallback are gradient rules, an iteration is one gradient in any case.

    Training sees the rule alone (`bare`); the hyper is the rule's.

    **Arguments:**

    - `rule`: the rule that is guarded.
    - `fallback`: a classical rule with nothing to learn.
    - `factor`: how many times the best loss the current one may be.
    - `patience`: iterations without a sufficient decrease that are allowed.
    - `decrease`: the share by which a loss must fall to count as a sufficient decrease.

    ```python
    import surestep as ss

    rule = ss.rules.Safeguarded(ss.rules.QuasiNewton(), fallback=ss.rules.GradientDescent(0.01))
    ```
    """

    rule: Rule
    fallback: Rule
    factor: float = 100.0
    patience: int = 30
    decrease: float = 1e-3

    def __check_init__(self) -> None:
        """Refuse numbers that make no sense, and a fallback that would be trained."""
        _require(self.factor, self.patience, self.decrease)
        if hyper_of(self.fallback).size:
            raise ConfigurationError(
                f"a safeguard's fallback must have nothing to learn: the numbers of "
                f"{type(self.fallback).__name__} must be plain floats"
            )

    @property
    def needs(self) -> tuple[Need, ...]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """What either rule needs."""
        return tuple(dict.fromkeys((*self.rule.needs, *self.fallback.needs)))

    @property
    def learns_start(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """If the rule does."""
        return self.rule.learns_start

    def prepare(self) -> "Safeguarded":
        """With both rules in their fastest form."""
        return dataclasses.replace(self, rule=self.rule.prepare(), fallback=self.fallback.prepare())

    def bare(self) -> Rule:
        """The rule without its safeguard."""
        return self.rule.bare()

    def init(self, oracle: Oracle, x: Vector) -> SafeguardedState:
        """Both begin where the rule does."""
        return self._watched(oracle, self.rule.init(oracle, x))

    def resume(self, oracle: Oracle, x: Vector) -> SafeguardedState:
        """Both begin at `x`."""
        return self._watched(oracle, self.rule.resume(oracle, x))

    def _watched(self, oracle: Oracle, state: State) -> SafeguardedState:
        value, x = self.rule.loss(oracle, state), self.rule.point(state)
        if _simple(self.rule, self.fallback, state):
            assert isinstance(state, GradientState)
            memory = self.fallback.remember(state.x, state.value, state.gradient)  # pyright: ignore
            best = state.gradient
        else:
            # Its shape is what is needed here; it is made when it is used.
            shapes = jax.eval_shape(lambda x: self.fallback.init(oracle.fresh(), x), x)
            memory = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
            best = ()
        watch = Watch.begin(value, oracle.problem.nonnegative)
        return SafeguardedState(x, value, best, state, value, memory, watch)

    def step(self, oracle: Oracle, state: SafeguardedState) -> SafeguardedState:
        """A step of the rule, or one of the fallback from the best point."""
        nonnegative = oracle.problem.nonnegative
        turn = self._turn(state, nonnegative)
        simple = _simple(self.rule, self.fallback, state.rule)
        move = self._one_gradient if simple else self._whole_steps
        (x, seen), rule, fallback, gradient = move(oracle, state, turn)
        # Minus infinity is no loss either.
        value = jnp.where(jnp.isfinite(seen), seen, jnp.inf)
        watch = self._watch(state.watch, value, turn, nonnegative)
        better = value < state.value

        def pick(new: Any, old: Any) -> Any:
            return jax.tree.map(lambda n, o: jnp.where(better, n, o), new, old)

        return SafeguardedState(
            pick(x, state.x),
            pick(seen, state.value),
            pick(gradient, state.best),
            rule,
            seen,
            fallback,
            watch,
        )

    def _turn(self, state: SafeguardedState, nonnegative: bool) -> _Turn:
        watch, value = state.watch, state.rule_value
        most = self.factor * watch.best
        if not nonnegative:
            most = watch.best + self.factor * (watch.zero - watch.best)
        blown = ~jnp.isfinite(value) | (value > most)
        stalled = (watch.since >= self.patience) & (watch.remaining == 0) & ~blown
        wrong = blown | stalled
        burst = jnp.where(stalled, watch.burst, 1)
        classical = wrong | (watch.remaining > 0)
        remaining = jnp.where(wrong, burst, watch.remaining) - classical
        return _Turn(wrong, stalled, classical, remaining, over=classical & (remaining == 0))

    def _watch(self, watch: Watch, value: Scalar, turn: _Turn, nonnegative: bool) -> Watch:
        best = jnp.where(value < watch.best, value, watch.best)
        wanted = (1 - self.decrease) * watch.mark
        if not nonnegative:
            wanted = watch.mark - self.decrease * (watch.zero - watch.mark)
        # Where nothing has been gained yet, both sides are equal at a loss that stays.
        decreased = (value <= wanted) & (nonnegative | (value < watch.mark))
        longer = jnp.minimum(2 * watch.burst, _LONGEST_BURST)
        return Watch(
            best=best,
            mark=jnp.where(decreased | turn.over, best, watch.mark),
            since=jnp.where(decreased | turn.over | turn.wrong, 0, watch.since + 1).astype(
                jnp.int32
            ),
            remaining=turn.remaining.astype(jnp.int32),
            burst=jnp.where(turn.stalled, longer, watch.burst).astype(jnp.int32),
            zero=watch.zero,
        )

    def _one_gradient(
        self, oracle: Oracle, state: SafeguardedState, turn: _Turn
    ) -> tuple[tuple[Vector, Scalar], GradientState, PyTree[Any], Vector]:
        """Both rules propose from what is known already; the one point chosen is evaluated."""
        rule: Any = self.rule
        fallback: Any = self.fallback
        now: Any = state.rule
        at_best = (state.x, state.value, state.best)
        point = _choose(turn.wrong, at_best, (now.x, now.value, now.gradient))
        memory = _choose(turn.wrong, fallback.remember(*at_best), state.fallback)
        careful, memory = fallback.update(*point, memory)
        bold, rule_memory = rule.update(now.x, now.value, now.gradient, now.memory)
        x = jnp.where(turn.classical, careful, bold)
        value, gradient = oracle.value_and_gradient(x)
        rule_memory = _choose(turn.over, rule.remember(x, value, gradient), rule_memory)
        seen = GradientState(x, value, gradient, rule_memory)
        return (x, value), seen, memory, gradient

    def _whole_steps(
        self, oracle: Oracle, state: SafeguardedState, turn: _Turn
    ) -> tuple[tuple[Vector, Scalar], State, PyTree[Any], PyTree[Any]]:
        """One of the rules makes its step; what it evaluates is counted, and nothing else."""
        fallback = self.fallback

        def asked(step: Any) -> Any:
            inner = oracle.fresh()
            result = step(inner)
            return result, tuple(jnp.asarray(count, jnp.int32) for count in inner.spent())

        def bold() -> Any:
            def step(inner: Oracle) -> Any:
                moved = self.rule.step(inner, state.rule)
                ended = self.rule.point(moved), self.rule.loss(inner, moved)
                return ended, moved, state.fallback

            return asked(step)

        def careful(begin: bool, end: bool) -> Any:
            def step(inner: Oracle) -> Any:
                where = fallback.init(inner, state.x) if begin else state.fallback
                moved = fallback.step(inner, where)
                x = fallback.point(moved)
                rule = self.rule.resume(inner, x) if end else state.rule
                return (x, fallback.loss(inner, moved)), rule, moved

            return lambda: asked(step)

        which = jnp.where(turn.classical, 1 + 2 * turn.wrong + turn.over, 0)
        branches = [
            bold,
            *(careful(begin, end) for begin in (False, True) for end in (False, True)),
        ]
        (point, rule, memory), (gradients, values) = jax.lax.switch(which, branches)
        oracle.spend(gradients=gradients, values=values)
        return point, rule, memory, ()


def _simple(rule: Rule, fallback: Rule, state: State) -> bool:
    """Whether both rules need nothing but the gradient at the current point."""
    plain = isinstance(rule, GradientRule) and isinstance(fallback, GradientRule)
    return plain and isinstance(state, GradientState)


def _choose(condition: Bool[Array, ""], yes: Any, no: Any) -> Any:
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), yes, no)
