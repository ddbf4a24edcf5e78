"""The set that a programme's constraints lie in: intervals first, then second-order cones."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Scalar

from surestep.base.errors import ProblemError

Vector = Float[Array, " row"] | Float[np.ndarray, " row"]
"""A number a row, of JAX or of NumPy."""


class ConstraintSet(eqx.Module):
    """All `z` with `lower <= z <= upper` row by row, and with `upper - z` in second-order cones.

    The last rows belong to the cones, one after the other: the first number of a cone's rows is at
    least the length of the others. `lower` is not read there. A row whose bounds agree is an
    equality; infinite bounds are no bounds.

    **Arguments:**

    - `lower`, `upper`: the bounds; in cones' rows `upper` is what the cone is subtracted from.
    - `cones`: how many rows each second-order cone has.

    **Example:**

    ```python
    box = ss.ConstraintSet(-jnp.ones(2), jnp.ones(2))
    print(box.project(jnp.array([0.5, 3.0])))
    ```
    """

    lower: Float[Array, " row"]
    upper: Float[Array, " row"]
    cones: tuple[int, ...] = eqx.field(static=True, default=())

    @property
    def intervals(self) -> int:
        """How many rows are no cone's."""
        return self.upper.shape[-1] - sum(self.cones)

    def project(self, z: Vector) -> Float[Array, " row"]:
        """The nearest point of the set."""
        if not self.cones:
            return jnp.clip(z, self.lower, self.upper)
        first = self.intervals
        parts = [jnp.clip(z[:first], self.lower[:first], self.upper[:first])]
        for length in self.cones:
            rows = slice(first, first + length)
            offset = self.upper[rows]
            parts.append(offset - into_cone(offset - z[rows]))
            first += length
        return jnp.concatenate(parts)

    def support(self, y: Vector) -> Scalar:
        """The largest `y'z` over the set: infinite where it is unbounded along `y`."""
        first = self.intervals
        head, lower, upper = y[:first], self.lower[:first], self.upper[:first]
        # An infinite bound matters only where y points to it.
        bound = jnp.where(head > 0, upper, lower)
        total = jnp.sum(jnp.where(head == 0, 0.0, head * jnp.where(head == 0, 0.0, bound)))
        for length in self.cones:
            rows = slice(first, first + length)
            inside = y[first] >= jnp.linalg.norm(y[first + 1 : first + length])
            along = jnp.sum(y[rows] * self.upper[rows])
            total = total + jnp.where(inside, along, jnp.inf)
            first += length
        return total

    def recede(self, y: Vector) -> Float[Array, " row"]:
        """The nearest direction along which the set's support is finite."""
        first = self.intervals
        head = y[:first]
        head = jnp.where(jnp.isinf(self.upper[:first]), jnp.minimum(head, 0.0), head)
        head = jnp.where(jnp.isinf(self.lower[:first]), jnp.maximum(head, 0.0), head)
        parts = [head]
        for length in self.cones:
            parts.append(into_cone(y[first : first + length]))
            first += length
        return jnp.concatenate(parts)

    @property
    def equalities(self) -> Float[Array, " row"]:
        """1 where a row is an equality, 0 elsewhere."""
        same = (self.lower == self.upper) & (jnp.arange(self.upper.shape[-1]) < self.intervals)
        return same.astype(self.upper.dtype)


def into_cone(s: Vector) -> Float[Array, " row"]:
    """The nearest point of the second-order cone `s[0] >= norm(s[1:])`."""
    head, tail = s[0], s[1:]
    squares = jnp.sum(tail * tail)
    length = jnp.sqrt(jnp.where(squares > 0, squares, 1.0)) * (squares > 0)
    half = jnp.maximum(0.5 * (head + length), 0.0)
    inside, polar = length <= head, length <= -head
    scale = jnp.where(inside, 1.0, half / jnp.where(length > 0, length, 1.0))
    scale = jnp.where(polar & ~inside, 0.0, scale)
    top = jnp.where(inside, head, jnp.where(polar, 0.0, half))
    return jnp.concatenate([top[None], scale * tail])


def require_cones(cones: tuple[int, ...], rows: int) -> None:
    """Refuse cones that cannot be, or that need more rows than there are."""
    if any(length < 1 for length in cones) or sum(cones) > rows:
        raise ProblemError(
            f"second-order cones of {cones} rows do not fit into {rows} constraints: each needs at "
            "least one row, and together they are the last ones"
        )
