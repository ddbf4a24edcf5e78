"""Ready penalties: functions that are not smooth, with their proximal maps, to name.

Each is a value and the minimiser over `z` of `value(z) + norm(z - x)^2 / (2 step)`. Points may be
pytrees; penalties that add up over coordinates take them leaf by leaf.
"""

import abc
import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Scalar

from surestep.base.errors import ConfigurationError
from surestep.problem.base import Point

Weight = float | Callable[[Any], Any]
"""A number, or a function that reads it from the instance."""

_FEW = 128  # coordinates that are compared with each other rather than sorted
Step = Float[Array, "..."] | float
"""A positive number, or one for each coordinate."""

__all__ = [
    "L1",
    "L2",
    "Box",
    "GroupL2",
    "Nuclear",
    "Penalty",
    "Simplex",
]


class Penalty(eqx.Module):
    """A function that is simple but not smooth: subclass it for one of your own.

    **Example:**

    ```python
    class NonNegative(ss.penalties.Penalty):
        def value(self, x, theta):
            return jnp.where(jnp.all(x >= 0), 0.0, jnp.inf)

        def prox(self, x, step, theta):
            return jnp.maximum(x, 0.0)


    print(NonNegative().prox(jnp.array([-1.0, 2.0]), 0.1, None))
    ```
    """

    @abc.abstractmethod
    def value(self, x: Point, theta: Any) -> Scalar:
        """The function itself; infinite outside a constraint.

        **Arguments:**

        - `x`: a point.
        - `theta`: the instance, for what is read from it.

        **Returns:** a single number.
        """

    @abc.abstractmethod
    def prox(self, x: Point, step: Step, theta: Any) -> Point:
        """The minimiser over `z` of `value(z) + norm(z - x)^2 / (2 step)`.

        **Arguments:**

        - `x`: a point.
        - `step`: a positive number, or one for each coordinate.
        - `theta`: the instance, for what is read from it.

        **Returns:** the minimiser, a point.
        """


def _weight(weight: Weight, theta: Any) -> Any:
    return weight(theta) if callable(weight) else weight


def _require(weight: Weight, what: str) -> None:
    if not callable(weight) and not (weight > 0 and math.isfinite(weight)):
        raise ConfigurationError(f"the weight of {what} must be positive, not {weight}")


def _total(x: Point, function: Callable[[Array], Array]) -> Scalar:
    return jnp.sum(jnp.stack([jnp.sum(function(leaf)) for leaf in jax.tree.leaves(x)]))


class L1(Penalty):
    """`weight * sum(|x|)`, which makes solutions sparse.

    **Raises:** `surestep.errors.ConfigurationError` if the weight is not positive.

    **Example:**

    ```python
    sparse = ss.make_problem(
        lambda x, theta: jnp.sum((x - theta) ** 2),
        x0=jnp.zeros(4),
        sample=lambda key: jax.random.normal(key, (4,)),
        penalty=ss.penalties.L1(0.1),
    )
    by_instance = ss.penalties.L1(lambda theta: theta["weight"])
    ```
    """

    weight: Weight
    """A positive number, or a function that reads it from the instance."""

    def __check_init__(self) -> None:
        """Refuse a weight that penalises nothing."""
        _require(self.weight, "L1")

    def value(self, x: Point, theta: Any) -> Scalar:
        """The weighted sum of absolute values."""
        return _weight(self.weight, theta) * _total(x, jnp.abs)

    def prox(self, x: Point, step: Step, theta: Any) -> Point:
        """Soft thresholding."""
        level = step * _weight(self.weight, theta)
        return jax.tree.map(lambda v: jnp.sign(v) * jnp.maximum(jnp.abs(v) - level, 0), x)


class L2(Penalty):
    """`weight * norm(x)`, not squared: all coordinates are 0 together or none is.

    **Raises:** `surestep.errors.ConfigurationError` if the weight is not positive.

    **Example:**

    ```python
    penalty = ss.penalties.L2(0.5)
    print(penalty.value(jnp.array([3.0, 4.0]), None))  # 2.5
    ```
    """

    weight: Weight
    """A positive number, or a function that reads it from the instance."""

    def __check_init__(self) -> None:
        """Refuse a weight that penalises nothing."""
        _require(self.weight, "L2")

    def value(self, x: Point, theta: Any) -> Scalar:
        """The weighted norm."""
        squares = _total(x, jnp.square)
        positive = squares > 0
        # The root's derivative at 0 is infinite, so 0 never meets it.
        norm = jnp.where(positive, jnp.sqrt(jnp.where(positive, squares, 1.0)), 0.0)
        return _weight(self.weight, theta) * norm

    def prox(self, x: Point, step: Step, theta: Any) -> Point:
        """Shrink the whole vector."""
        norm = jnp.sqrt(_total(x, jnp.square))
        level = step * _weight(self.weight, theta)
        factor = jnp.maximum(0.0, 1 - level / jnp.where(norm > 0, norm, 1.0))
        return jax.tree.map(lambda v: factor * v, x)


class GroupL2(Penalty):
    """`weight` times the sum of the norms of an array's rows: a row is 0 or it is not.

    **Raises:** `surestep.errors.ConfigurationError` if the weight is not positive, or if the point
    is not an array with two axes.

    **Example:**

    ```python
    penalty = ss.penalties.GroupL2(1.0)
    print(penalty.prox(jnp.array([[3.0, 4.0], [0.1, 0.1]]), 1.0, None))  # the second row is 0
    ```
    """

    weight: Weight
    """A positive number, or a function that reads it from the instance."""

    def __check_init__(self) -> None:
        """Refuse a weight that penalises nothing."""
        _require(self.weight, "GroupL2")

    def value(self, x: Point, theta: Any) -> Scalar:
        """The weighted sum of the rows' norms."""
        squares = jnp.sum(_rows(x) ** 2, axis=1)
        positive = squares > 0
        norms = jnp.where(positive, jnp.sqrt(jnp.where(positive, squares, 1.0)), 0.0)
        return _weight(self.weight, theta) * jnp.sum(norms)

    def prox(self, x: Point, step: Step, theta: Any) -> Point:
        """Shrink every row."""
        rows = _rows(x)
        norms = jnp.sqrt(jnp.sum(rows**2, axis=1, keepdims=True))
        level = step * _weight(self.weight, theta)
        shrunk = jnp.maximum(0.0, 1 - level / jnp.where(norms > 0, norms, 1.0)) * rows
        return shrunk.reshape(jnp.shape(x))


class Box(Penalty):
    """The constraint `lower <= x <= upper`.

    **Raises:** `surestep.errors.ConfigurationError` if the box is empty.

    **Example:**

    ```python
    box = ss.penalties.Box(0.0, 1.0)
    print(box.prox(jnp.array([-1.0, 0.5, 2.0]), 1.0, None))  # 0, 0.5 and 1
    ```
    """

    lower: Weight
    """A number, or a function that reads it from the instance."""
    upper: Weight
    """A number, or a function that reads it from the instance."""

    def __check_init__(self) -> None:
        """Refuse an empty box."""
        if not callable(self.lower) and not callable(self.upper) and not self.lower < self.upper:
            raise ConfigurationError(
                f"a box needs a lower bound below its upper one, not {self.lower} and {self.upper}"
            )

    def value(self, x: Point, theta: Any) -> Scalar:
        """0 inside, infinite outside."""
        low, high = self.bounds(theta)
        inside = jax.tree.map(lambda v: jnp.all((v >= low) & (v <= high)), x)
        return _indicator(x, jnp.all(jnp.stack(jax.tree.leaves(inside))))

    def prox(self, x: Point, step: Step, theta: Any) -> Point:
        """The nearest point inside."""
        low, high = self.bounds(theta)
        return jax.tree.map(lambda v: jnp.clip(v, low, high), x)

    def bounds(self, theta: Any) -> tuple[Any, Any]:
        """The instance's bounds."""
        return _weight(self.lower, theta), _weight(self.upper, theta)


class Simplex(Penalty):
    """The constraint that a vector is not negative and adds up to `total`.

    **Raises:** `surestep.errors.ConfigurationError` if the total is not positive, or if the point
    is not a single vector.

    **Example:**

    ```python
    simplex = ss.penalties.Simplex()
    print(simplex.prox(jnp.array([1.0, 1.0]), 1.0, None))  # 0.5 and 0.5
    ```
    """

    total: float = 1.0
    """What the vector adds up to."""

    def __check_init__(self) -> None:
        """Refuse a total that no such vector has."""
        if not self.total > 0:
            raise ConfigurationError(f"a simplex needs a positive total, not {self.total}")

    def value(self, x: Point, theta: Any) -> Scalar:
        """0 inside, infinite outside; rounding errors of the sum are forgiven."""
        vector = _vector(x)
        slack = 1e3 * jnp.finfo(vector.dtype).eps * vector.size * self.total
        return _indicator(
            x, jnp.all(vector >= 0) & (jnp.abs(jnp.sum(vector) - self.total) <= slack)
        )

    def prox(self, x: Point, step: Step, theta: Any) -> Point:
        """The nearest point inside, by sorting (Held, Wolfe and Crowder's method).

        A few coordinates are compared with each other instead, which is faster than sorting them.
        """
        vector = _vector(x)
        if vector.size <= _FEW:
            above = vector[None, :] >= vector[:, None]
            sums = jnp.sum(jnp.where(above, vector[None, :], 0.0), axis=1)
            levels = (sums - self.total) / jnp.sum(above, axis=1)
            # Of all sets of largest coordinates, the one that stays positive has the largest level.
            return jnp.maximum(vector - jnp.max(levels), 0.0).reshape(jnp.shape(x))
        ranked = -jnp.sort(-vector)
        excess = jnp.cumsum(ranked) - self.total
        numbers = jnp.arange(1, vector.size + 1)
        kept = jnp.sum(ranked - excess / numbers > 0)
        return jnp.maximum(vector - excess[kept - 1] / kept, 0.0).reshape(jnp.shape(x))


class Nuclear(Penalty):
    """`weight` times the sum of a matrix's singular values: solutions of low rank.

    **Raises:** `surestep.errors.ConfigurationError` if the weight is not positive, or if the point
    is not a single matrix.

    **Example:**

    ```python
    penalty = ss.penalties.Nuclear(1.0)
    print(penalty.prox(jnp.diag(jnp.array([3.0, 0.5])), 1.0, None))  # of rank 1
    ```
    """

    weight: Weight
    """A positive number, or a function that reads it from the instance."""

    def __check_init__(self) -> None:
        """Refuse a weight that penalises nothing."""
        _require(self.weight, "Nuclear")

    def value(self, x: Point, theta: Any) -> Scalar:
        """The weighted sum of singular values."""
        return _weight(self.weight, theta) * jnp.sum(jnp.linalg.svd(_matrix(x), compute_uv=False))

    def prox(self, x: Point, step: Step, theta: Any) -> Point:
        """Soft thresholding of the singular values."""
        left, values, right = jnp.linalg.svd(_matrix(x), full_matrices=False)
        shrunk = jnp.maximum(values - step * _weight(self.weight, theta), 0)
        return (left * shrunk) @ right


def _indicator(x: Point, inside: Array) -> Scalar:
    kind = jnp.result_type(*jax.tree.leaves(x))
    return jnp.where(inside, jnp.zeros((), kind), jnp.inf)


def _rows(x: Point) -> Array:
    if jnp.ndim(x) != 2:
        raise ConfigurationError(f"GroupL2 needs an array with two axes, not {jnp.shape(x)}")
    return jnp.asarray(x)


def _vector(x: Point) -> Array:
    if len(jax.tree.leaves(x)) != 1 or jnp.ndim(x) != 1:
        raise ConfigurationError("Simplex needs a single vector")
    return jnp.asarray(x)


def _matrix(x: Point) -> Array:
    if len(jax.tree.leaves(x)) != 1 or jnp.ndim(x) != 2:
        raise ConfigurationError("Nuclear needs a single matrix")
    return jnp.asarray(x)
