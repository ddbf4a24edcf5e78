"""Normal right-hand sides: what quadratics and lasso share."""

import jax.numpy as jnp
from jaxtyping import Array, Float


def half_square_moments(
    mean: Float[Array, " n"], mixing: Float[Array, "m n"]
) -> tuple[float, float]:
    """`E[q]` and `E[q^2]` of `q = 0.5 norm(v)^2`, where `v` is normal.

    The covariance of `v` is `mixing' mixing`.
    """
    covariance = mixing.T @ mixing
    spread = jnp.vdot(mean, mean) + jnp.trace(covariance)
    squares = 2 * jnp.sum(covariance**2) + 4 * mean @ covariance @ mean
    return float(spread) / 2, float(spread**2 + squares) / 4
