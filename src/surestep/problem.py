"""A problem: a family of losses, how its instances are drawn, and where to start.

JAX computes in float32 unless told otherwise. A problem says which precision it needs; surestep
enters JAX's 64-bit context for those that need float64 and leaves the process as it found it.
"""

import abc
import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree, Scalar

from surestep.errors import ConfigurationError

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
    """

    precision: ClassVar[Literal["float32", "float64"]] = "float64"
    nonnegative: ClassVar[bool] = True
    """Whether the loss is never below 0."""

    @staticmethod
    def of(
        loss: Callable[[Any, Any], Any],
        x0: Any,
        thetas: Any = None,
        sample: Callable[[Array], Any] | None = None,
        penalty: Any = None,
        lower: Any = 0.0,
        precision: Literal["float32", "float64"] = "float64",
        shares: tuple[float, float, float, float] = (0.3, 0.2, 0.35, 0.15),
        name: str | None = None,
    ) -> "Problem":
        """A problem from plain functions and data.

        - `loss(x, theta)`: a single number, written with `jax.numpy`.
        - `x0`: the start, an array or a pytree of them, or a function of `theta`.
        - `thetas`: instances that you have, stacked along their first axis (arrays, a pytree of
          them, the path of an .npz file); they are split at random into four disjoint data sets by
          `shares` (prior, validation, train, test). Or `sample(key)`: draws one instance.
        - `penalty`: a part that is not smooth, from `surestep.proxes`.
        - `lower`: a bound that the loss never falls below, a number or a function of `theta`;
          losses are counted from it. 0 by default. `None` if there is no bound that you know:
          statements that need one are then not made.
        """
        from surestep.own.functions import make_problem  # noqa: PLC0415

        return make_problem(loss, x0, thetas, sample, penalty, lower, precision, shares, name)

    @abc.abstractmethod
    def sample(self, key: Array) -> Theta:
        """Draw one instance. All instances, in all data sets, come from here."""

    @abc.abstractmethod
    def start(self, theta: Theta) -> Point:
        """The point every rule starts from."""

    @abc.abstractmethod
    def loss(self, x: Point, theta: Theta) -> Scalar:
        """The value to be made small, at least 0 (unless the problem says it is not)."""


ROLES = ("PriorSet", "ValidationSet", "TrainSet", "TestSet")
"""The data sets that a stock of instances is dealt out to, in this order."""


class StockedProblem(Problem):
    """A problem whose instances are data: so many, and no more.

    The stock is shuffled and cut into four parts, one for each kind of data set; no instance is in
    two of them. A certificate takes the instances for independent draws from the distribution that
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

        A step of the point's shape means `sum((z - x)^2 / (2 step))`: one step per coordinate.
        """

    def loss(self, x: Point, theta: Theta) -> Scalar:
        """The smooth part plus the other one."""
        return self.smooth(x, theta) + self.nonsmooth(x, theta)


class PenalisedProblem(CompositeProblem):
    """A composite loss whose non-smooth part is a weight of the instance times a fixed penalty.

    Rules that look at the weight ask for this kind of problem.
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


@contextlib.contextmanager
def working_precision(problem: Problem) -> Iterator[None]:
    """Inside this context, new arrays have the precision the problem asks for."""
    with jax.enable_x64(problem.precision == "float64"):
        yield


def draw(problem: Problem, size: int, key: Array, first: int = 0) -> Theta:
    """`size` independent instances, stacked along a new first axis, from number `first` on.

    Instance `i` depends on the key and on `i` alone, to the bit, so a larger set begins with a
    smaller one: all sets are drawn by one program, a few instances at a time. Whether an instance
    has been used before is found out by its bits.
    """
    with working_precision(problem):
        begin, end = first // _DRAWN_AT_ONCE, -(-(first + size) // _DRAWN_AT_ONCE)
        parts = [
            _draw(problem, key, jnp.asarray(number * _DRAWN_AT_ONCE))
            for number in range(begin, max(end, begin + 1))
        ]
        skipped = first - begin * _DRAWN_AT_ONCE
        wanted = slice(skipped, skipped + size)
        return jax.tree.map(lambda *leaves: jnp.concatenate(leaves)[wanted], *parts)


@dataclasses.dataclass(frozen=True, eq=False)
class DrawnInChunks:
    """Instances that are drawn when they are asked for."""

    problem: Problem
    size: int
    key: Array
    chunk: int = 1024

    def part(self, first: int, last: int) -> Theta:
        """The instances from `first` to before `last`, stacked."""
        return draw(self.problem, last - first, self.key, first)


def theta_form(problem: Problem) -> Theta:
    """Shapes and dtypes of one instance; nothing is drawn."""
    with working_precision(problem):
        return jax.eval_shape(problem.sample, jax.random.key(0))


def as_instances(problem: Problem, thetas: Theta) -> Theta:
    """Stacked instances from anywhere (NumPy, float32), as arrays of the problem's precision.

    Where it is known what types an instance's arrays have, they get those: the same numbers are
    then the same bits, wherever they come from.
    """
    with working_precision(problem):
        wanted = jnp.dtype(problem.precision)

        def convert(leaf: Any) -> Array:
            array = jnp.asarray(leaf)
            return array.astype(wanted) if jnp.issubdtype(array.dtype, jnp.floating) else array

        def exactly(leaf: Any, form: Any) -> Array:
            return convert(leaf).astype(form.dtype)

        form = theta_form(problem)
        if jax.tree.structure(form) == jax.tree.structure(thetas):
            return jax.tree.map(exactly, thetas, form)
        return jax.tree.map(convert, thetas)


_DRAWN_AT_ONCE = 64
"""How many instances the program that draws them makes at a time."""


@eqx.filter_jit
def _draw(problem: Problem, key: Array, first: Array) -> Theta:
    keys = jax.vmap(lambda i: jax.random.fold_in(key, i))(first + jnp.arange(_DRAWN_AT_ONCE))
    return jax.vmap(problem.sample)(keys)


def name_of(problem: Problem) -> str:
    """What messages call a problem."""
    return str(getattr(problem, "name", type(problem).__name__))


def instance(thetas: Theta, index: int | slice | Array) -> Theta:
    """One instance (or several, for a slice or an array of indices) out of a stacked set."""
    return jax.tree.map(lambda leaf: leaf[index], thetas)


def count(thetas: Theta) -> int:
    """How many instances a stacked set holds."""
    return jax.tree.leaves(thetas)[0].shape[0]
