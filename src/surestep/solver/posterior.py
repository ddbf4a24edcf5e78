"""The posterior as a solver carries it: weighted hypers to draw from."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int


@dataclasses.dataclass(frozen=True)
class Posterior:
    """The samples of a certificate's posterior, and the logarithms of their weights."""

    hypers: Float[np.ndarray, "sample weight"]
    log_weights: Float[np.ndarray, " sample"]

    def draw(self, key: Array, number: int) -> Int[Array, " number"]:
        """Which samples `number` independent draws give."""
        return jax.random.categorical(key, jnp.asarray(self.log_weights), shape=(number,))
