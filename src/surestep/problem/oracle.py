"""The oracle: all that a rule may ask about one instance, with a count of what was asked.

Rules see the optimization variable as a flat vector, whatever its shape is in the user's loss.
"""

import copy
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.extend.core import get_opaque_trace_state
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Int, Scalar

from surestep.problem.base import Problem, Theta
from surestep.problem.kinds import (
    CompositeProblem,
    DualisedProblem,
    KnownSmoothness,
    LeastSquares,
    PenalisedProblem,
    ProximableSmooth,
)

Vector = Float[Array, " n"]
Image = Float[Array, " m"]
"""What a linear map of a point, or a residual, is: a vector of another length."""


class Parts(NamedTuple):
    """The two parts of a composite loss at a point, and their gradients there."""

    smooth: Scalar
    nonsmooth: Scalar
    smooth_gradient: Vector
    nonsmooth_gradient: Vector

    @property
    def value(self) -> Scalar:
        """The whole loss."""
        return self.smooth + self.nonsmooth


class Evaluations(eqx.Module):
    """How often a rule asked: gradients (with the value, or a product of like cost) and values."""

    gradients: Int[Array, ""]
    values: Int[Array, ""]

    @classmethod
    def none(cls) -> "Evaluations":
        """Nothing asked yet."""
        return cls(jnp.zeros((), jnp.int32), jnp.zeros((), jnp.int32))

    def plus(self, oracle: "Oracle") -> "Evaluations":
        """These and what an oracle was asked."""
        return Evaluations(
            jnp.asarray(self.gradients + oracle.gradients, jnp.int32),
            jnp.asarray(self.values + oracle.values, jnp.int32),
        )


class Oracle:
    """Answers for one instance; lives for one step of one rule, while that step is traced.

    Counting happens while the step is traced, so a metered question may not be asked inside a
    loop or a batch of the rule's own: it would count once. Such code (a line search) asks
    `unmetered_value` and declares the number with `spend`.

    While a rule is trained, gradients are constants (no second derivatives, as in the paper),
    unless `through` asks for the derivatives of gradients too.
    """

    def __init__(self, problem: Problem, theta: Theta, through: bool = False) -> None:
        self.problem = problem
        self.theta = jax.lax.stop_gradient(theta)
        self.through = through
        self.gradients: int | Array = 0
        self.values: int | Array = 0
        self.start, self.unravel = ravel_pytree(problem.start(theta))
        self._trace = get_opaque_trace_state()

    def fresh(self) -> "Oracle":
        """An oracle for the same instance that has not been asked anything yet.

        The start is not computed again: it may take as long as many iterations.
        """
        other = copy.copy(self)
        other.gradients, other.values = 0, 0
        other._trace = get_opaque_trace_state()
        return other

    def spent(self) -> tuple[int | Array, int | Array]:
        """How many gradients and how many values were asked for."""
        return self.gradients, self.values

    def spend(self, *, gradients: int | Array = 0, values: int | Array = 0) -> None:
        """Count evaluations, one by one or as many as an inner loop turned out to need."""
        if get_opaque_trace_state() != self._trace:
            raise RuntimeError(
                "the oracle was asked inside an inner loop or batch of a rule, where questions "
                "cannot be counted: use `unmetered_value` there and `spend` outside"
            )
        self.gradients = self.gradients + gradients
        self.values = self.values + values

    def value(self, x: Vector) -> Scalar:
        """The loss at `x`."""
        self.spend(values=1)
        return self.unmetered_value(x)

    def unmetered_value(self, x: Vector) -> Scalar:
        """The loss at `x`, for use inside inner loops that count by themselves."""
        return self.problem.loss(self.unravel(x), self.theta)

    def value_and_gradient(self, x: Vector) -> tuple[Scalar, Vector]:
        """The loss at `x` and its gradient there.

        While a rule is trained, the value's derivative is this very gradient and the gradient
        is a constant: nothing is evaluated twice, and no second derivatives appear.
        """
        self.spend(gradients=1)
        return self._evaluate(x, _loss)

    def _evaluate(self, x: Vector, part: Any) -> tuple[Scalar, Vector]:
        evaluate = _differentiable if self.through else _value_and_gradient
        return evaluate(x, part, self.problem, self.theta)

    def smooth_gradient(self, x: Vector) -> Vector:
        """The gradient of the smooth part (of the whole loss, if the problem has but one)."""
        self.spend(gradients=1)
        part = _smooth if isinstance(self.problem, CompositeProblem) else _loss
        return self._evaluate(x, part)[1]

    def parts(self, x: Vector) -> Parts:
        """Both parts of the loss and their gradients, as one evaluation.

        The non-smooth part's gradient is what automatic differentiation makes of it. A problem
        of a single part has 0 for the other. Derivatives are as in `value_and_gradient`.
        """
        self.spend(gradients=1)
        if not isinstance(self.problem, CompositeProblem):
            value, gradient = self._evaluate(x, _loss)
            return Parts(value, jnp.zeros_like(value), gradient, jnp.zeros_like(gradient))
        smooth, gradient = self._evaluate(x, _smooth)
        nonsmooth, subgradient = self._evaluate(x, _nonsmooth)
        return Parts(smooth, nonsmooth, gradient, subgradient)

    def weight(self) -> Scalar:
        """The instance's factor in front of the penalty, of a penalised problem."""
        assert isinstance(self.problem, PenalisedProblem)
        return self.problem.weight(self.theta)

    def prox(self, x: Vector, step: Float[Array, "..."] | float) -> Vector:
        """The proximal map of the part that is not smooth; without such a part, `x` itself."""
        if not isinstance(self.problem, CompositeProblem):
            return x
        point = self.problem.prox(self.unravel(x), jnp.asarray(step), self.theta)
        return ravel_pytree(point)[0]

    def smooth_prox(self, x: Vector, step: Scalar | float) -> Vector:
        """The proximal map of the smooth part; it costs what a gradient costs: counted.

        Its derivatives, in `x` and in the step, are the map's own.
        """
        assert isinstance(self.problem, ProximableSmooth)
        self.spend(gradients=1)
        point = self.problem.smooth_prox(self.unravel(x), jnp.asarray(step), self.theta)
        return ravel_pytree(point)[0]

    def smoothness(self) -> Scalar:
        """A Lipschitz constant of the smooth part's gradient; knowing it costs no evaluation."""
        assert isinstance(self.problem, KnownSmoothness)
        return self.problem.smoothness(self.theta)

    def saddle_slope(self, x: Vector, y: Image) -> Vector:
        """Of a dualised problem: the smooth part's gradient plus the transposed map at `y`.

        With one `transform` it takes the products that a gradient takes: counted as one.
        """
        problem = _dualised(self.problem)
        self.spend(gradients=1)
        _, transposed = jax.vjp(self.transform, jnp.zeros_like(x))
        slope = jax.grad(lambda flat: problem.fidelity(self.unravel(flat), self.theta))(x)
        return slope + transposed(y)[0]

    def transform(self, x: Vector) -> Image:
        """A dualised problem's linear map, as a flat vector."""
        return ravel_pytree(_dualised(self.problem).transform(self.unravel(x)))[0]

    def dual_prox(self, y: Image, step: Scalar | float) -> Image:
        """The conjugate function's proximal map, of a dualised problem."""
        problem = _dualised(self.problem)
        unravel = ravel_pytree(problem.transform(self.unravel(self.start)))[1]
        return ravel_pytree(problem.dual_prox(unravel(y), jnp.asarray(step), self.theta))[0]

    def dual_scale(self) -> Scalar:
        """How large multipliers are, of a dualised problem; knowing it costs no evaluation."""
        return _dualised(self.problem).dual_scale(self.theta)

    def primal_step(self, slope: Vector, dual_step: Scalar | float) -> Vector:
        """How far a slope may be followed, of a dualised problem."""
        problem = _dualised(self.problem)
        return ravel_pytree(problem.primal_step(self.unravel(slope), jnp.asarray(dual_step)))[0]

    def residual(self, x: Vector) -> Image:
        """The residual of a least-squares problem, as a flat vector."""
        return _residual(self.problem, self.unravel(x), self.theta)

    def residual_product(self, direction: Vector) -> Image:
        """`A direction`: how the residual changes along a direction."""
        zero = jnp.zeros_like(direction)
        return jax.jvp(self.residual, (zero,), (direction,))[1]

    def residual_pullback(self, residual: Image) -> Vector:
        """`A' residual`. With one `residual_product` it costs what a gradient costs: counted."""
        self.spend(gradients=1)
        _, pullback = jax.vjp(self.residual, jnp.zeros_like(self.start))
        return pullback(residual)[0]


def _dualised(problem: Problem) -> DualisedProblem:
    assert isinstance(problem, DualisedProblem)
    return problem


def _loss(problem: Problem, x: Any, theta: Theta) -> Scalar:
    return problem.loss(x, theta)


def _smooth(problem: CompositeProblem, x: Any, theta: Theta) -> Scalar:
    return problem.smooth(x, theta)


def _nonsmooth(problem: CompositeProblem, x: Any, theta: Theta) -> Scalar:
    return problem.nonsmooth(x, theta)


def _residual(problem: Problem, x: Any, theta: Theta) -> Vector:
    assert isinstance(problem, LeastSquares)
    return jnp.ravel(problem.residual(x, theta))


def _differentiable(x: Vector, part: Any, problem: Problem, theta: Theta) -> Any:
    unravel = ravel_pytree(problem.start(theta))[1]
    return jax.value_and_grad(lambda flat: part(problem, unravel(flat), theta))(x)


@eqx.filter_custom_jvp
def _value_and_gradient(x: Vector, part: Any, problem: Problem, theta: Theta) -> Any:
    return _differentiable(x, part, problem, theta)


@_value_and_gradient.def_jvp
def _value_and_gradient_jvp(primals: Any, tangents: Any) -> Any:
    value, gradient = _value_and_gradient(*primals)
    x_tangent = tangents[0]
    if x_tangent is None:
        x_tangent = jnp.zeros_like(gradient)
    return (value, gradient), (jnp.vdot(gradient, x_tangent), jnp.zeros_like(gradient))
