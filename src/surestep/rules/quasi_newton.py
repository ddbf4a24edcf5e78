"""L-BFGS without a line search: one gradient an iteration, and differentiable.

In a metric of its own it is told how the family's losses bend, before it has seen an instance.
"""

import abc
from typing import Protocol, Self

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, Scalar

from surestep.problem import Vector
from surestep.rules.base import Fixed, GradientRule, Rule, product, unit
from surestep.rules.limited_memory import Memory


class Pairs(eqx.Module):
    """The pairs so far, and where the last iteration was."""

    memory: Memory
    x: Vector
    gradient: Vector
    image: Vector
    """The metric times the gradient."""

    def moved(self, x: Vector, gradient: Vector, image: Vector) -> "Pairs":
        """With the pair of the last move, now that it has led to `x`."""
        move, last = unit(x - self.x)
        # At a start nothing has moved, and the pair is none.
        size = jnp.where(last > 0, last, 1.0)
        memory = self.memory.with_pair(
            move, (gradient - self.gradient) / size, (image - self.image) / size
        )
        return Pairs(memory, x, gradient, image)


class _Limited(Protocol):
    """The numbers that every quasi-Newton rule has as fields, in an order of its own."""

    @property
    def first(self) -> float: ...
    @property
    def longest(self) -> float: ...
    @property
    def memory_size(self) -> int: ...
    def metric(self, vector: Vector) -> Vector: ...


class AbstractQuasiNewton(GradientRule):
    """L-BFGS's direction in a metric, taken as far as it says.

    The metric takes the place of the multiple of the identity that L-BFGS begins its estimate of
    the inverse Hessian with. Near a minimum the full step is the right one; farther away it is cut
    to `longest` times the last move, and the first step to `first`. Subclasses have these numbers
    and `memory_size`, how many pairs are kept, as fields.
    """

    @abc.abstractmethod
    def metric(self, vector: Vector) -> Vector:
        """The metric, a symmetric matrix, times a vector."""

    def remember(self: _Limited, x: Vector, value: Scalar, gradient: Vector) -> Pairs:
        """No pairs yet."""
        memory = Memory.empty(self.memory_size, x, jnp.ones((), x.dtype), metric=True)
        return Pairs(memory, x, gradient, self.metric(gradient))

    def update(
        self: _Limited, x: Vector, value: Scalar, gradient: Vector, memory: Pairs
    ) -> tuple[Vector, Pairs]:
        """Along the direction from the metric and the pairs so far, as far as is allowed."""
        image = self.metric(gradient)
        last, pairs = unit(x - memory.x)[1], memory.moved(x, gradient, image)
        direction = -pairs.memory.descent(gradient, image)
        length = unit(direction)[1]
        allowed = jnp.where(jnp.any(pairs.memory.used), self.longest * last, self.first)
        shortened = jnp.minimum(1.0, allowed / jnp.where(length > 0, length, 1.0))
        return x + shortened * direction, pairs


class QuasiNewton(AbstractQuasiNewton):
    """L-BFGS without a line search: one gradient an iteration, and differentiable.

    The full step is taken, cut where it is too long. Not monotone: it is meant as the base of
    learned rules and inside safeguards; `LBFGS` has a line search.

    **Arguments:**

    - `first`: the longest first step.
    - `longest`: how many times the last move a step may be.
    - `memory_size`: how many pairs of moves and gradient changes are kept.

    ```python
    import surestep as ss

    rule = ss.rules.QuasiNewton(first=0.1)
    ```
    """

    first: float = 1.0
    longest: float = 10.0
    memory_size: int = 10

    def metric(self, vector: Vector) -> Vector:
        """The identity."""
        return vector


class MetricQuasiNewton(AbstractQuasiNewton):
    """L-BFGS without a line search whose first estimate of the inverse Hessian is learned.

    That metric is `exp(2 log_size) * root root'` (of a vector: its squares on the diagonal). With
    the inverse of the family's mean Hessian, the first step is close to a Newton step already. Not
    monotone: it is meant to be used inside safeguards.

    **Arguments:**

    - `root`: a root of the metric, a matrix or the diagonal of one; learned.
    - `log_size`: the logarithm of the root's size; learned.
    - `first`, `longest`, `memory_size`: as for `QuasiNewton`.

    ```python
    import jax.numpy as jnp
    import surestep as ss

    rule = ss.rules.MetricQuasiNewton.of(root=jnp.eye(20))
    ```
    """

    root: Float[Array, "n n"] | Float[Array, " n"]
    log_size: Float[Array, ""]
    first: float = 1e6
    longest: float = 10.0
    memory_size: int = 10

    @classmethod
    def of(cls, root: Float[Array, "n n"] | Float[Array, " n"], first: float = 1e6) -> Self:
        """The metric `root root'`; `first` is the longest first step."""
        return cls(*without_size(root), first)

    def prepare(self) -> Rule:
        """With one matrix in place of two."""
        if self.root.ndim == 1:
            return self
        whole = jnp.exp(2 * self.log_size) * (self.root @ self.root.T)
        return _Prepared(self._stored(whole), self.first, self.longest, self.memory_size)

    def _stored(self, metric: Float[Array, "n n"]) -> Fixed:
        return Fixed(metric)

    def metric(self, vector: Vector) -> Vector:
        """`root root'` with its size, times a vector."""
        scale = jnp.exp(2 * self.log_size)
        if self.root.ndim == 1:
            return scale * self.root**2 * vector
        return scale * (self.root @ (self.root.T @ vector))


class SinglePrecisionQuasiNewton(MetricQuasiNewton):
    """`MetricQuasiNewton` whose products with a metric's matrix are in single precision.

    All else keeps the problem's precision. A metric is an estimate anyhow, and half as many bytes
    are read twice as fast.

    **Arguments:**

    - `root`, `log_size`, `first`, `longest`, `memory_size`: as for `MetricQuasiNewton`.

    ```python
    import jax.numpy as jnp
    import surestep as ss

    rule = ss.rules.SinglePrecisionQuasiNewton.of(root=jnp.eye(20))
    ```
    """

    def _stored(self, metric: Float[Array, "n n"]) -> Fixed:
        return Fixed(metric.astype(jnp.float32))


class _Prepared(AbstractQuasiNewton):
    """A metric that is a matrix."""

    matrix: Fixed
    first: float
    longest: float
    memory_size: int

    def metric(self, vector: Vector) -> Vector:
        """One product."""
        return product(self.matrix.array, vector)


def without_size(root: Float[Array, "..."]) -> tuple[Float[Array, "..."], Scalar]:
    """A metric's root with a largest entry of 1, and the logarithm of what it was divided by.

    So training can change the size of all steps by one number.
    """
    size = jnp.max(jnp.abs(root))
    return root / size, jnp.log(size)
