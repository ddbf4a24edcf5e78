"""Kinds of problems: what a problem may offer beyond a loss, for rules that can use it."""

import abc
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree, Scalar

from surestep.problem.base import Point, Problem, Theta


class LeastSquares(Problem):
    """A problem whose loss is half the squared norm of a residual that is affine in `x`.

    Rules made for linear least squares (conjugate gradients) use the residual itself.

    **Example:**

    ```python
    class Scaled(ss.LeastSquares):
        def sample(self, key):
            return jax.random.uniform(key, (5,)) + 0.5

        def start(self, theta):
            return jnp.zeros(5)

        def residual(self, x, theta):
            return theta * x - 1.0


    scaled = Scaled()
    print(scaled.loss(jnp.zeros(5), scaled.sample(jax.random.key(0))))
    ```
    """

    @abc.abstractmethod
    def residual(self, x: Point, theta: Theta) -> Float[Array, "..."]:
        """The vector `A x - b` of the instance."""

    def loss(self, x: Point, theta: Theta) -> Scalar:
        """Half the squared norm of the residual."""
        residual = self.residual(x, theta)
        return 0.5 * jnp.sum(residual * residual)


class CompositeProblem(Problem):
    """A loss that is a smooth part plus a part that is simple, but not smooth.

    The gradient of a composite loss, where a rule asks for it, is that of the sum as automatic
    differentiation defines it; proximal rules ask for the smooth part's and for `prox`.
    `make_problem(loss, x0, penalty=...)` makes one from a ready penalty.

    **Example:**

    ```python
    class NonNegative(ss.CompositeProblem):
        def sample(self, key):
            return jax.random.normal(key, (4,))

        def start(self, theta):
            return jnp.zeros(4)

        def smooth(self, x, theta):
            return jnp.sum((x - theta) ** 2)

        def nonsmooth(self, x, theta):
            return jnp.where(jnp.all(x >= 0), 0.0, jnp.inf)

        def prox(self, x, step, theta):
            return jnp.maximum(x, 0.0)


    inside = NonNegative()
    theta = inside.sample(jax.random.key(0))
    print(inside.loss(inside.prox(theta, 0.1, theta), theta))
    ```
    """

    @abc.abstractmethod
    def smooth(self, x: Point, theta: Theta) -> Scalar:
        """The differentiable part."""

    @abc.abstractmethod
    def nonsmooth(self, x: Point, theta: Theta) -> Scalar:
        """The part that is handled by its proximal map."""

    @abc.abstractmethod
    def prox(self, x: Point, step: Float[Array, "..."], theta: Theta) -> Point:
        """The minimiser over `z` of `nonsmooth(z, theta) + norm(z - x)^2 / (2 step)`.

        **Arguments:**

        - `x`: a point.
        - `step`: a positive number. An array of the point's shape means one step per coordinate:
          the second term is then `sum((z - x)^2 / (2 step))`.
        - `theta`: the instance.

        **Returns:** the minimiser, a point.
        """

    def loss(self, x: Point, theta: Theta) -> Scalar:
        """The smooth part plus the other one."""
        return self.smooth(x, theta) + self.nonsmooth(x, theta)


class PenalisedProblem(CompositeProblem):
    """A composite loss whose non-smooth part is a weight of the instance times a fixed penalty.

    Rules that look at the weight ask for this kind of problem.

    **Example:**

    ```python
    class Lasso(ss.PenalisedProblem):
        def sample(self, key):
            return {"target": jax.random.normal(key, (4,)), "weight": jnp.array(0.1)}

        def start(self, theta):
            return jnp.zeros(4)

        def smooth(self, x, theta):
            return 0.5 * jnp.sum((x - theta["target"]) ** 2)

        def penalty(self, x):
            return jnp.sum(jnp.abs(x))

        def weight(self, theta):
            return theta["weight"]

        def prox(self, x, step, theta):
            return jnp.sign(x) * jnp.maximum(jnp.abs(x) - step * theta["weight"], 0.0)


    lasso = Lasso()
    theta = lasso.sample(jax.random.key(0))
    print(lasso.loss(lasso.prox(theta["target"], 1.0, theta), theta))
    ```
    """

    @abc.abstractmethod
    def penalty(self, x: Point) -> Scalar:
        """The penalty before it is weighted."""

    @abc.abstractmethod
    def weight(self, theta: Theta) -> Scalar:
        """The instance's factor in front of the penalty."""

    def nonsmooth(self, x: Point, theta: Theta) -> Scalar:
        """The weight times the penalty."""
        return self.weight(theta) * self.penalty(x)


class KnownSmoothness(Problem):
    """A problem that knows, for every instance, how fast the gradient of its smooth part changes.

    Rules that take their step size from the instance ask for it.

    **Example:**

    ```python
    class Bowls(ss.KnownSmoothness):
        def sample(self, key):
            return jax.random.uniform(key, (3,), minval=1.0, maxval=9.0)

        def start(self, theta):
            return jnp.ones(3)

        def loss(self, x, theta):
            return 0.5 * jnp.sum(theta * x**2)

        def smoothness(self, theta):
            return jnp.max(theta)
    ```
    """

    @abc.abstractmethod
    def smoothness(self, theta: Theta) -> Scalar:
        """A Lipschitz constant of the gradient of the instance's loss (of its smooth part)."""


class ProximableSmooth(Problem):
    """A problem that can minimise its smooth part plus a squared distance, exactly and cheaply.

    Splitting methods (ADMM) ask for it. It pays where a factorisation serves the whole family: the
    cost of an answer must be about that of a gradient, because that is what it is counted as.

    **Example:**

    ```python
    class Bowls(ss.ProximableSmooth):
        def sample(self, key):
            return jax.random.uniform(key, (3,), minval=1.0, maxval=9.0)

        def start(self, theta):
            return jnp.ones(3)

        def loss(self, x, theta):
            return 0.5 * jnp.sum(theta * x**2)

        def smooth_prox(self, x, step, theta):
            return x / (1 + step * theta)
    ```
    """

    @abc.abstractmethod
    def smooth_prox(self, x: Point, step: Scalar, theta: Theta) -> Point:
        """The minimiser over `z` of `smooth(z, theta) + norm(z - x)^2 / (2 step)`.

        The step is one positive number. A problem of a single part takes its loss for `smooth`.
        """


class DualisedProblem(Problem):
    """A loss that is a smooth part plus a simple function of a linear map of the point.

    Total variation is one: the map takes differences of neighbours, the function adds up their
    lengths. Primal-dual methods ask for it.

    **Example:** a signal with few jumps, from a noisy one.

    ```python
    class Jumps(ss.DualisedProblem):
        def sample(self, key):
            return jax.random.normal(key, (20,))

        def start(self, theta):
            return jnp.zeros(20)

        def loss(self, x, theta):
            return self.fidelity(x, theta) + 0.1 * jnp.sum(jnp.abs(self.transform(x)))

        def fidelity(self, x, theta):
            return 0.5 * jnp.sum((x - theta) ** 2)

        def transform(self, x):
            return jnp.diff(x)

        def dual_prox(self, y, step, theta):
            return jnp.clip(y, -0.1, 0.1)

        def primal_step(self, slope, dual_step):
            return slope / (0.5 + 4 * dual_step)
    ```
    """

    @abc.abstractmethod
    def fidelity(self, x: Point, theta: Theta) -> Scalar:
        """The smooth part."""

    @abc.abstractmethod
    def transform(self, x: Point) -> PyTree[Any]:
        """The linear map."""

    @abc.abstractmethod
    def dual_prox(self, y: PyTree[Any], step: Scalar, theta: Theta) -> PyTree[Any]:
        """The proximal map of the convex conjugate of the simple function, with this step."""

    def dual_scale(self, theta: Theta) -> Scalar:
        """How large multipliers of the instance are; rules take their dual step as a multiple."""
        del theta
        return jnp.ones(())

    @abc.abstractmethod
    def primal_step(self, slope: Point, dual_step: Scalar) -> Point:
        """`M slope`, with a symmetric `M` that is no larger than the theory allows.

        `M^-1 - H / 2 - dual_step * K'K` must be positive semidefinite, where `H` is at least the
        Hessian of the smooth part and `K` is the linear map. `1 / (L / 2 + dual_step norm(K)^2)`
        will do; the closer `M` comes to the inverse of the matrix, the faster the method.
        """
