"""A metric for pictures and signals: diagonal for cosines, so it has one number per frequency."""

import functools

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from surestep.base.errors import ConfigurationError
from surestep.problem import Vector
from surestep.rules.quasi_newton import AbstractQuasiNewton, without_size

SHORTEST, LONGEST = 8, 1024
"""Axes of these lengths are transformed: shorter ones are channels, longer ones large matrices."""


@functools.cache
def cosines(size: int) -> Float[np.ndarray, "size size"]:
    """The orthogonal matrix of the discrete cosine transform (type 2)."""
    places = np.arange(size)
    matrix = np.sqrt(2 / size) * np.cos(np.pi / size * np.outer(places, places + 0.5))
    matrix[0] /= np.sqrt(2)
    return matrix


def transformed_axes(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The axes of a picture along which it is transformed: all but those of channels."""
    return tuple(i for i, size in enumerate(shape) if SHORTEST <= size <= LONGEST)


def transform(vector: Vector, shape: tuple[int, ...], back: bool = False) -> Vector:
    """A flattened picture's cosine coefficients, or the picture of such coefficients."""
    picture = vector.reshape(shape)
    for axis in transformed_axes(shape):
        matrix = jnp.asarray(cosines(shape[axis]), vector.dtype)
        product = jnp.tensordot(matrix.T if back else matrix, picture, axes=(1, axis))
        picture = jnp.moveaxis(product, 0, axis)
    return picture.ravel()


class CosineQuasiNewton(AbstractQuasiNewton):
    """L-BFGS without a line search in a learned metric that is diagonal for cosines.

    As `MetricQuasiNewton`, for variables in which neighbours belong together: pictures of the
    shape `(height, width)`, with channels first or last, and signals. Where what a loss does to one
    pixel it does to all alike, its mean Hessian is nearly diagonal for cosines, however large.
    The metric is `exp(2 log_size) * C' diag(root^2) C`. Not monotone: it is meant to be used
    inside safeguards.

    **Arguments:**

    - `root`: one number for each frequency; learned.
    - `log_size`: the logarithm of their size; learned.
    - `shape`: the picture's shape, with at least one axis of length 8 to 1024.
    - `first`, `longest`, `memory_size`: as for `QuasiNewton`.

    ```python
    import jax.numpy as jnp
    import surestep as ss

    rule = ss.rules.CosineQuasiNewton.of(jnp.ones(16 * 12), shape=(16, 12))
    ```
    """

    root: Float[Array, " n"]
    log_size: Float[Array, ""]
    shape: tuple[int, ...] = eqx.field(static=True)
    first: float = 1e6
    longest: float = 10.0
    memory_size: int = 10

    def __check_init__(self) -> None:
        """Refuse a shape that is not the vector's, or that has nothing to transform."""
        if self.root.shape != (int(np.prod(self.shape)),) or not transformed_axes(self.shape):
            raise ConfigurationError(
                f"a cosine metric needs one number for each of {self.shape} and an axis of length "
                f"{SHORTEST} to {LONGEST}, not numbers of shape {self.root.shape}"
            )

    @classmethod
    def of(
        cls, root: Float[Array, " n"], shape: tuple[int, ...], first: float = 1e6
    ) -> "CosineQuasiNewton":
        """The metric `C' diag(root^2) C`; `first` is the longest first step."""
        return cls(*without_size(root), tuple(shape), first)

    def metric(self, vector: Vector) -> Vector:
        """`C' diag(root^2) C` with its size, times a vector."""
        scaled = jnp.exp(2 * self.log_size) * self.root**2 * transform(vector, self.shape)
        return transform(scaled, self.shape, back=True)
