"""The memory of L-BFGS in compact form: two passes over the pairs make a direction.

Byrd, Nocedal and Schnabel (1994) write the inverse Hessian that L-BFGS estimates with the matrices
of moves `S` and of gradient changes `Y`, and with small matrices of their inner products. The small
inverse that appears there grows by a column with each pair, so nothing is solved. Pairs lie where
there is room, not in their order, and nothing is moved when one is added.
"""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Scalar

from surestep.problem import Vector

_ACUTE = 1e-10  # the least cosine of the angle between a move and the gradient's change


class Memory(eqx.Module):
    """Moves of norm 1 and the changes of the gradient along them, oldest overwritten first."""

    moves: Float[Array, "memory n"]
    changes: Float[Array, "memory n"]
    products: Float[Array, "memory memory"]
    """The changes' inner products."""
    inverse: Float[Array, "memory memory"]
    """Of the moves' inner products with changes that are as old or newer."""
    curvatures: Float[Array, " memory"]
    """The inner product of each pair."""
    used: Bool[Array, " memory"]
    next: Int[Array, ""]
    scale: Scalar
    """What steepest descent is multiplied by: the inverse of a curvature."""

    @classmethod
    def empty(cls, size: int, x: Vector, scale: Scalar) -> "Memory":
        """No pairs."""
        none, small = jnp.zeros((size, x.size), x.dtype), jnp.zeros((size, size), x.dtype)
        return cls(
            moves=none,
            changes=none,
            products=small,
            inverse=small,
            curvatures=jnp.zeros(size, x.dtype),
            used=jnp.zeros(size, bool),
            next=jnp.zeros((), jnp.int32),
            scale=scale.astype(x.dtype),
        )

    def forgotten(self, which: Array, scale: Scalar) -> "Memory":
        """Without its pairs and with another scale, where asked; else as it is."""
        return eqx.tree_at(
            lambda memory: (memory.used, memory.scale),
            self,
            (self.used & ~which, jnp.where(which, scale, self.scale)),
        )

    def with_pair(self, move: Vector, change: Vector) -> "Memory":
        """With one pair more, unless the gradient did not change as it does around a minimum.

        **Arguments:**

        - `move`: of norm 1.
        - `change`: of the gradient along the move, divided by the move's length.
        """
        curvature, squared = jnp.vdot(move, change), jnp.vdot(change, change)
        sound = (curvature > _ACUTE * jnp.sqrt(squared)) & jnp.isfinite(1 / squared)
        here = (jnp.arange(self.used.size) == self.next % self.used.size) & sound
        # Pairs that are not used, and the one that is overwritten, take part in nothing.
        kept = self.used & ~here
        both = kept[:, None] & kept[None, :]
        beside = jnp.where(kept, self.changes @ change, 0.0)
        column = -(jnp.where(both, self.inverse, 0.0) @ (self.moves @ change)) / curvature
        products = jnp.where(here[:, None], beside[None, :], jnp.where(both, self.products, 0.0))
        products = jnp.where(here[None, :], beside[:, None], products)
        corner = here[:, None] & here[None, :]
        return Memory(
            moves=jnp.where(here[:, None], move, self.moves),
            changes=jnp.where(here[:, None], change, self.changes),
            products=jnp.where(corner, squared, products),
            inverse=jnp.where(
                corner,
                1 / curvature,
                jnp.where(here[None, :], column[:, None], jnp.where(both, self.inverse, 0.0)),
            ),
            curvatures=jnp.where(here, curvature, self.curvatures),
            used=self.used | here,
            next=self.next + sound.astype(jnp.int32),
            scale=jnp.where(sound, curvature / squared, self.scale),
        )

    def descent(self, gradient: Vector) -> Vector:
        """The estimated inverse Hessian times the gradient."""
        along = jnp.where(self.used, self.moves @ gradient, 0.0)
        across = jnp.where(self.used, self.changes @ gradient, 0.0)
        weights = self.inverse @ along
        rest = self.curvatures * weights + self.scale * (self.products @ weights - across)
        return (
            self.scale * gradient
            + jnp.where(self.used, self.inverse.T @ rest, 0.0) @ self.moves
            - jnp.where(self.used, self.scale * weights, 0.0) @ self.changes
        )
