"""A problem: a family of losses, how its instances are drawn, and where to start."""

import abc
from collections.abc import Callable
from typing import Any, ClassVar, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree, Scalar

from surestep.base.errors import ConfigurationError

Theta = PyTree[Any]
"""What makes one instance of a family: any pytree of arrays."""

Point = PyTree[Any]
"""An optimization variable: an array of any shape or a pytree of arrays."""


class Problem(eqx.Module):
    """A family of problems `minimise loss(x, theta) over x`, with `theta` drawn at random.

    Subclass it and write three methods. `loss` must be a non-negative scalar, differentiable
    almost everywhere; it is compiled, batched and differentiated by JAX. What is drawn once for
    the whole family belongs into the fields, what varies from instance to instance into `theta`.

    A loss that may be negative and has no known lower bound says `nonnegative = False`. It gets
    the certificates that need no bound, and no others.

    **Example:**

    ```python
    class Valley(ss.Problem):
        def sample(self, key):
            return jax.random.normal(key, (4,))

        def start(self, theta):
            return jnp.zeros(4)

        def loss(self, x, theta):
            return jnp.sum((x - theta) ** 2)


    valley = Valley()
    theta = valley.sample(jax.random.key(0))
    print(valley.loss(valley.start(theta), theta))
    ```
    """

    precision: ClassVar[Literal["float32", "float64"]] = "float64"
    """In which floating-point numbers everything is computed."""
    nonnegative: ClassVar[bool] = True
    """Whether the loss is never below 0."""
    summary: ClassVar[str] = ""
    """What the family is, in a line, for the report."""

    of: ClassVar[Callable[..., "Problem"]]
    """The same as `surestep.make_problem`, which see; set there."""

    @abc.abstractmethod
    def sample(self, key: Array) -> Theta:
        """Draw one instance. All instances, in all data sets, come from here.

        **Arguments:**

        - `key`: a key of `jax.random`, which decides the draw.

        **Returns:** the instance, a pytree of arrays. All instances have the same shapes.
        """

    @abc.abstractmethod
    def start(self, theta: Theta) -> Point:
        """The point every rule starts from.

        **Arguments:**

        - `theta`: the instance.

        **Returns:** the point, in the form that `loss` takes.
        """

    @abc.abstractmethod
    def loss(self, x: Point, theta: Theta) -> Scalar:
        """The value to be made small, at least 0 (unless the problem says it is not).

        **Arguments:**

        - `x`: a point.
        - `theta`: the instance.

        **Returns:** a single number.
        """


ROLES = ("PriorSet", "ValidationSet", "TrainSet", "TestSet")
"""The data sets that given instances are divided among, in this order."""


class StockedProblem(Problem):
    """A problem whose instances are data: so many, and no more.

    They are shuffled and cut into four parts, one for each kind of data set; no instance is in two
    of them. A certificate takes the instances for independent draws from the distribution that
    future instances come from.
    """

    @property
    @abc.abstractmethod
    def stock(self) -> Theta:
        """The instances, stacked along their first axis."""

    @property
    @abc.abstractmethod
    def shares(self) -> tuple[float, float, float, float]:
        """Which share of them serves for the prior, validation, train and test set."""

    def sample(self, key: Array) -> Theta:
        """Any one of them."""
        return instance(self.stock, jax.random.randint(key, (), 0, count(self.stock)))

    def available(self, role: str) -> int:
        """How many instances there are for a kind of data set."""
        first, last = self._bounds(role)
        return last - first

    def part(self, role: str, size: int, key: Array) -> Theta:
        """The first instances of a kind of data set, after a shuffle that the key decides."""
        first, last = self._bounds(role)
        if size > last - first:
            raise ConfigurationError(
                f"the data hold {count(self.stock)} instances, of which {last - first} are for the "
                f"{role.removesuffix('Set').lower()} set, not {size}: ask for fewer (sizes), or "
                "change the shares of Problem.of"
            )
        order = jax.random.permutation(key, count(self.stock))
        return instance(self.stock, order[first : first + size])

    def _bounds(self, role: str) -> tuple[int, int]:
        place = ROLES.index(role)
        ends = [int(sum(self.shares[:i]) * count(self.stock) + 1e-9) for i in range(5)]
        return ends[place], ends[place + 1]


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
    """

    @abc.abstractmethod
    def smoothness(self, theta: Theta) -> Scalar:
        """A Lipschitz constant of the gradient of the instance's loss (of its smooth part)."""


class ProximableSmooth(Problem):
    """A problem that can minimise its smooth part plus a squared distance, exactly and cheaply.

    Splitting methods (ADMM) ask for it. It pays where a factorisation serves the whole family: the
    cost of an answer must be about that of a gradient, because that is what it is counted as.
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


def name_of(problem: Problem) -> str:
    """What messages call a problem."""
    return str(getattr(problem, "name", type(problem).__name__))


def instance(thetas: Theta, index: int | slice | Array) -> Theta:
    """One instance (or several, for a slice or an array of indices) out of a stacked set."""
    return jax.tree.map(lambda leaf: leaf[index], thetas)


def count(thetas: Theta) -> int:
    """How many instances a stacked set holds."""
    return jax.tree.leaves(thetas)[0].shape[0]
