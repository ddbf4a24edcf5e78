"""Building blocks of learned rules."""

import functools
import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


class LinearChain(eqx.Module):
    """Linear maps without bias, in groups; a ReLU stands between groups, none within.

    Adjacent maps of a group make one matrix: they are multiplied together before they meet the
    input, which is cheaper than applying them one after the other, in training too.
    """

    groups: tuple[tuple[Float[Array, "out in"], ...], ...]

    @classmethod
    def create(cls, widths: tuple[tuple[int, ...], ...], key: Array) -> "LinearChain":
        """Draw the weights as PyTorch does by default: uniform up to `1 / sqrt(inputs)`.

        `widths[i]` lists the widths a group passes through, its input's first.
        """
        keys = iter(jax.random.split(key, sum(len(group) - 1 for group in widths)))
        return cls(
            tuple(
                tuple(
                    jax.random.uniform(next(keys), (after, before), minval=-1, maxval=1)
                    / before**0.5
                    for before, after in itertools.pairwise(group)
                )
                for group in widths
            )
        )

    def multiplied(self) -> "LinearChain":
        """The same map with each group as one matrix."""
        return LinearChain(
            tuple((functools.reduce(lambda m, w: w @ m, group),) for group in self.groups)
        )

    def __call__(self, columns: Float[Array, "in n"]) -> Float[Array, "out n"]:
        """Apply the map to every column."""
        *hidden, last = (group[0] for group in self.multiplied().groups)
        for matrix in hidden:
            columns = jnp.maximum(matrix @ columns, 0)
        return last @ columns
