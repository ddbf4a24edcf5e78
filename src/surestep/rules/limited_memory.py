"""The memory of L-BFGS in compact form: two passes over the pairs make a direction.

Byrd, Nocedal and Schnabel (1994) write the inverse Hessian that L-BFGS estimates with the matrices
of moves `S` and of gradient changes `Y`, and with small matrices of their inner products. The small
inverse that appears there grows by a column with each pair, so nothing is solved. Pairs lie where
there is room, not in their order, and nothing is moved when one is added.

The multiple of the identity that the estimate begins with may be a multiple of another matrix, the
metric. Then the metric's products with the changes are kept, too.
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
    images: Float[Array, "memory n"] | None
    """The metric times the changes; none where it is the identity."""
    products: Float[Array, "memory memory"]
    """The changes' inner products, in the metric."""
    inverse: Float[Array, "memory memory"]
    """Of the moves' inner products with changes that are as old or newer."""
    curvatures: Float[Array, " memory"]
    """The inner product of each pair."""
    used: Bool[Array, " memory"]
    next: Int[Array, ""]
    scale: Scalar
    """What steepest descent is multiplied by: the inverse of a curvature."""

    @classmethod
    def empty(cls, size: int, x: Vector, scale: Scalar, metric: bool = False) -> "Memory":
        """No pairs; with a metric, room for its products."""
        none, small = jnp.zeros((size, x.size), x.dtype), jnp.zeros((size, size), x.dtype)
        return cls(
            moves=none,
            changes=none,
            images=none if metric else None,
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

    def with_pair(self, move: Vector, change: Vector, image: Vector | None = None) -> "Memory":
        """With one pair more, unless the gradient did not change as it does around a minimum.

        **Arguments:**

        - `move`: of norm 1.
        - `change`: of the gradient along the move, divided by the move's length.
        - `image`: the metric times the change, where there is one.
        """
        image = change if image is None else image
        curvature, squared = jnp.vdot(move, change), jnp.vdot(change, image)
        acute = curvature > _ACUTE * jnp.sqrt(jnp.vdot(change, change))
        sound = acute & (squared > 0) & jnp.isfinite(1 / squared)
        here = (jnp.arange(self.used.size) == self.next % self.used.size) & sound
        # Pairs that are not used, and the one that is overwritten, take part in nothing.
        kept = self.used & ~here
        both = kept[:, None] & kept[None, :]
        beside = jnp.where(kept, self.changes @ image, 0.0)
        # What is not sound is not kept, but its derivatives must be numbers too.
        curvature, squared = (jnp.where(sound, one, 1.0) for one in (curvature, squared))
        column = -(jnp.where(both, self.inverse, 0.0) @ (self.moves @ change)) / curvature
        products = jnp.where(here[:, None], beside[None, :], jnp.where(both, self.products, 0.0))
        products = jnp.where(here[None, :], beside[:, None], products)
        corner = here[:, None] & here[None, :]
        return Memory(
            moves=jnp.where(here[:, None], move, self.moves),
            changes=jnp.where(here[:, None], change, self.changes),
            images=None if self.images is None else jnp.where(here[:, None], image, self.images),
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

    def descent(self, gradient: Vector, image: Vector | None = None) -> Vector:
        """The estimated inverse Hessian times the gradient, given the metric's product with it."""
        images = self.changes if self.images is None else self.images
        along = jnp.where(self.used, self.moves @ gradient, 0.0)
        across = jnp.where(self.used, images @ gradient, 0.0)
        weights = self.inverse @ along
        rest = self.curvatures * weights + self.scale * (self.products @ weights - across)
        return (
            self.scale * (gradient if image is None else image)
            + jnp.where(self.used, self.inverse.T @ rest, 0.0) @ self.moves
            - jnp.where(self.used, self.scale * weights, 0.0) @ images
        )
