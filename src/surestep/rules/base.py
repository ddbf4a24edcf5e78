"""Rules: one iteration of an optimization algorithm, learned or classical."""

import abc
import hashlib
import re
from typing import Any, ClassVar, Literal, TypeVar

import equinox as eqx
import jax
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree, Scalar

from surestep.base.errors import ConfigurationError
from surestep.problem import (
    CompositeProblem,
    DualisedProblem,
    KnownSmoothness,
    LeastSquares,
    Oracle,
    PenalisedProblem,
    Problem,
    Programme,
    ProximableSmooth,
    Vector,
)

Need = Literal[
    "smooth",
    "residual",
    "weight",
    "smoothness",
    "smooth_prox",
    "dual",
    "nonnegative",
    "programme",
]
"""What a rule asks of a problem beyond a loss and its gradient."""


class State(eqx.Module):
    """What a rule remembers between two iterations; nearly every state has a point `x`.

    A rule that iterates something else, from which the point follows, says so in `Rule.point`.

    A state may have a field `value`, the loss at its point, where the rule gets it for nothing.
    Where there is none, `Rule.loss` computes it when somebody looks, and only then.
    """


class Rule(eqx.Module):
    """An optimization algorithm, one iteration at a time.

    The inexact arrays among a rule's fields are its *hyper*: what learning changes. Numbers that
    are not to be learned are plain Python floats, and arrays that are not are `rules.Fixed`.

    A state is an `equinox.Module` with the point `x`, a flat vector, and whatever else the rule
    remembers. It needs no loss: `loss` evaluates one when somebody looks. If a step gets the loss
    at `x` for nothing, keep it as `value`, and it is taken from there.

    A rule of your own that needs one gradient an iteration is shorter as a `GradientRule`.

    **Example:** proximal gradient steps with a learned step size. No loss is evaluated on the way.

    ```python
    import equinox as eqx

    class State(eqx.Module):
        x: jax.Array

    class LearnedStep(ss.Rule):
        step_size: jax.Array

        def init(self, oracle, x):
            return State(x)

        def step(self, oracle, state):
            moved = state.x - self.step_size * oracle.smooth_gradient(state.x)
            return State(oracle.prox(moved, self.step_size))

    rule = LearnedStep(jnp.asarray(0.1))
    ```
    """

    needs: ClassVar[tuple[Need, ...]] = ()
    learns_start: ClassVar[bool] = False
    """Whether the state that `init` makes depends on the hyper."""
    learns: ClassVar[bool] = True
    """Whether its numbers, and those of rules inside it, belong to the hyper."""
    watches_loss: ClassVar[bool] = True
    """Whether its steps look at losses."""
    recovers: ClassVar[bool] = False
    """Whether a rollout goes on after a loss that is not finite; if not, it has diverged for good.
    """

    @abc.abstractmethod
    def init(self, oracle: Oracle, x: Vector) -> State:
        """The state at the start of a rollout from `x`."""

    @abc.abstractmethod
    def step(self, oracle: Oracle, state: Any) -> State:
        """One iteration."""

    def point(self, state: Any) -> Vector:
        """A state's point. It is asked for when somebody looks, not in every iteration."""
        return state.x

    def loss(self, oracle: Oracle, state: Any) -> Scalar:
        """The loss at a state's point: the state's own `value`, or else evaluated now."""
        known = getattr(state, "value", None)
        return oracle.value(self.point(state)) if known is None else known

    def stationarity(
        self, oracle: Oracle, state: Any, step: float | Scalar
    ) -> tuple[Scalar, Vector]:
        """The loss at a state's point, and a vector that is 0 where the point is stationary.

        It is what checks look at: the gradient, or of a composite loss the proximal gradient step,
        divided by its step size `step`. A rule that knows a subgradient, or a cheaper way to the
        gradient than the user's own program, may give that.
        """
        if isinstance(oracle.problem, CompositeProblem):
            parts = oracle.parts(state.x)
            moved = oracle.prox(state.x - step * parts.smooth_gradient, step)
            return parts.value, (state.x - moved) / step
        if isinstance(state, GradientState):
            return state.value, state.gradient
        return oracle.value_and_gradient(state.x)

    def resume(self, oracle: Oracle, x: Vector) -> State:
        """The state without a memory at a point of a rollout under way.

        The same as at a start, unless the rule does something to starts.
        """
        return self.init(oracle, x)

    def relocate(self, oracle: Oracle, state: Any, x: Vector) -> State:
        """The state as it would be had the last iteration ended in `x`.

        A teacher is moved so to where its pupil went. Rules that cannot keep their memory begin
        anew, which is the default.
        """
        del state
        return self.resume(oracle, x)

    def prepare(self) -> "Rule":
        """The same rule in the form that is fastest to iterate; made once before a loop."""
        return self

    def bare(self) -> "Rule":
        """The rule as it is trained, with the same hyper: without what guards it when it is used.

        A guard hides from training where the rule would have gone by itself.
        """
        return self


class GradientState(State):
    """The point, the loss and the gradient there, and a memory of the rule's own."""

    x: Vector
    value: Scalar
    gradient: Vector
    memory: PyTree[Any]


class GradientRule(Rule):
    """A rule whose update needs the value and the gradient at the current point, no more.

    Subclasses write `remember` and `update`; one gradient is evaluated per iteration. A rule whose
    `update` does not look at the value says so by `watches_loss = False`; where nobody else looks
    either, losses are then not computed on the way.

    **Example:** gradient descent with a learned step size.

    ```python
    class LearnedStep(ss.GradientRule):
        step_size: jax.Array

        def remember(self, x, value, gradient):
            return ()

        def update(self, x, value, gradient, memory):
            return x - self.step_size * gradient, memory

    rule = LearnedStep(jnp.asarray(0.1))
    ```
    """

    @abc.abstractmethod
    def remember(self, x: Vector, value: Scalar, gradient: Vector) -> PyTree[Any]:
        """The memory at the start."""

    @abc.abstractmethod
    def update(
        self, x: Vector, value: Scalar, gradient: Vector, memory: Any
    ) -> tuple[Vector, PyTree[Any]]:
        """The next point and the memory it leaves."""

    def init(self, oracle: Oracle, x: Vector) -> GradientState:
        """Evaluate the start and remember it."""
        value, gradient = oracle.value_and_gradient(x)
        return GradientState(x, value, gradient, self.remember(x, value, gradient))

    def step(self, oracle: Oracle, state: GradientState) -> GradientState:
        """Update, then evaluate the new point."""
        x, memory = self.update(state.x, state.value, state.gradient, state.memory)
        value, gradient = oracle.value_and_gradient(x)
        return GradientState(x, value, gradient, memory)

    def relocate(self, oracle: Oracle, state: GradientState, x: Vector) -> GradientState:
        """Keep the memory, move the point."""
        value, gradient = oracle.value_and_gradient(x)
        return GradientState(x, value, gradient, state.memory)


class Fixed(eqx.Module):
    """An array that a rule is given and does not learn, as a matrix that all instances share.

    Arrays among a rule's fields are its hyper, unless they are inside a `Fixed`. Steps read them as
    `fixed.array`.

    **Arguments:**

    - `array`: the array.

    ```python
    import jax.numpy as jnp
    import surestep as ss

    rule = ss.rules.SharedADMM.of(jnp.eye(3), penalty=0.1)
    assert isinstance(rule.hessian, ss.rules.Fixed)
    print(rule.hessian.array)
    ```
    """

    array: Float[Array, "..."]


def product(matrix: Float[Array, "m n"], vector: Vector) -> Float[Array, " m"]:
    """A product that is computed in the matrix's precision, and has the vector's."""
    return (matrix @ vector.astype(matrix.dtype)).astype(vector.dtype)


AnyRule = TypeVar("AnyRule", bound=Rule)


def _learned(rule: Rule) -> PyTree[bool]:
    """Which of a rule's leaves are its hyper."""

    def fixed(leaf: Any) -> bool:
        return isinstance(leaf, Fixed) or (isinstance(leaf, Rule) and not leaf.learns)

    return jax.tree.map(
        lambda leaf: not fixed(leaf) and eqx.is_inexact_array(leaf), rule, is_leaf=fixed
    )


def hyper_of(rule: Rule) -> Float[Array, " d"]:
    """A rule's hyper as one flat vector."""
    return ravel_pytree(eqx.filter(rule, _learned(rule)))[0]


def with_hyper(rule: AnyRule, hyper: Float[Array, " d"]) -> AnyRule:
    """The rule with another hyper."""
    learned, fixed = eqx.partition(rule, _learned(rule))
    return eqx.combine(ravel_pytree(learned)[1](hyper), fixed)


def solver_fingerprint(rules: PyTree[Any]) -> str:
    """A hash of all that makes a rule, or several: kinds, structure and every number."""
    leaves, structure = jax.tree.flatten(rules)
    words = [str(structure)]
    for leaf in leaves:
        array = eqx.is_array(leaf)
        words.append(
            f"{leaf.dtype}{leaf.shape}{np.asarray(leaf).tobytes().hex()}" if array else repr(leaf)
        )
    # Functions print their address in memory, which differs from process to process.
    text = re.sub(r"0x[0-9a-f]+", "", " ".join(words))
    return hashlib.sha256(text.encode()).hexdigest()


_OFFERS: dict[str, tuple[str, Any]] = {
    "smooth": ("a loss without a non-smooth part", lambda p: not isinstance(p, CompositeProblem)),
    "residual": ("the method `residual` of LeastSquares", lambda p: isinstance(p, LeastSquares)),
    "weight": (
        "the method `weight` of PenalisedProblem",
        lambda p: isinstance(p, PenalisedProblem),
    ),
    "smoothness": (
        "the method `smoothness` of KnownSmoothness",
        lambda p: isinstance(p, KnownSmoothness),
    ),
    "smooth_prox": (
        "the method `smooth_prox` of ProximableSmooth",
        lambda p: isinstance(p, ProximableSmooth),
    ),
    "dual": (
        "the methods of DualisedProblem",
        lambda p: isinstance(p, DualisedProblem),
    ),
    "programme": (
        "the coefficients of a Programme",
        lambda p: isinstance(p, Programme),
    ),
    "nonnegative": (
        "a loss that is never negative, because it looks at its logarithm",
        lambda p: p.nonnegative,
    ),
}


def missing_needs(rule: Rule, problem: Problem) -> list[str]:
    """What the rule needs and the problem does not have, in words."""
    return [_OFFERS[need][0] for need in rule.needs if not _OFFERS[need][1](problem)]


def require_fit(rule: Rule, problem: Problem) -> None:
    """Refuse a rule that the problem cannot serve, and say what is missing."""
    missing = missing_needs(rule, problem)
    if missing:
        raise ConfigurationError(
            f"{type(rule).__name__} cannot run on {type(problem).__name__}: "
            f"it needs {' and '.join(missing)}"
        )


def unit(vector: Vector) -> tuple[Vector, Scalar]:
    """A vector's direction and its norm; the direction of 0 is 0."""
    squares = jax.numpy.sum(vector * vector)
    # The root's derivative at 0 is infinite, so 0 never meets it.
    positive = squares > 0
    root = jax.numpy.sqrt(jax.numpy.where(positive, squares, 1.0))
    return vector / root, jax.numpy.where(positive, root, 0.0)
