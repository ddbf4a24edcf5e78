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


class Perceptron(eqx.Module):
    """Linear maps with a ReLU between any two of them, with biases or without."""

    weights: tuple[Float[Array, "out in"], ...]
    biases: tuple[Float[Array, " out"], ...]
    """One for every map; none at all for a perceptron without biases."""

    @classmethod
    def create(cls, widths: tuple[int, ...], key: Array, *, biases: bool) -> "Perceptron":
        """Draw weights and biases as PyTorch does by default: uniform up to `1 / sqrt(inputs)`.

        `widths` lists the widths that the input passes through, its own first.
        """
        pairs = list(itertools.pairwise(widths))
        key_weights, key_biases = (jax.random.split(k, len(pairs)) for k in jax.random.split(key))

        def drawn(key: Array, shape: tuple[int, ...], inputs: int) -> Array:
            return jax.random.uniform(key, shape, minval=-1, maxval=1) / inputs**0.5

        return cls(
            tuple(
                drawn(k, (after, before), before)
                for k, (before, after) in zip(key_weights, pairs, strict=True)
            ),
            tuple(
                drawn(k, (after,), before)
                for k, (before, after) in zip(key_biases, pairs, strict=True)
            )
            if biases
            else (),
        )

    def __call__(self, columns: Float[Array, "in n"]) -> Float[Array, "out n"]:
        """Apply the maps to every column."""
        for i, matrix in enumerate(self.weights):
            columns = matrix @ (jnp.maximum(columns, 0) if i else columns)
            if self.biases:
                columns = columns + self.biases[i][:, None]
        return columns


class ConvolutionChain(eqx.Module):
    """3 x 3 convolutions without bias, a ReLU between them.

    Pictures keep their size: they are reflected at their edges, which are not repeated.
    Convolutions cannot be multiplied together beforehand, for each meets its own reflection.
    """

    kernels: tuple[Float[Array, "3 3 in out"], ...]

    @classmethod
    def create(cls, channels: tuple[int, ...], key: Array) -> "ConvolutionChain":
        """Draw the weights as PyTorch does by default: uniform up to `1 / sqrt(inputs)`."""
        keys = jax.random.split(key, len(channels) - 1)
        return cls(
            tuple(
                jax.random.uniform(k, (3, 3, before, after), minval=-1, maxval=1)
                / (9 * before) ** 0.5
                for k, (before, after) in zip(keys, itertools.pairwise(channels), strict=True)
            )
        )

    def __call__(self, picture: Float[Array, "h w in"]) -> Float[Array, "h w out"]:
        """Apply the map to a picture."""
        *hidden, last = self.kernels
        for kernel in hidden:
            picture = jnp.maximum(_convolve(picture, kernel), 0)
        return _convolve(picture, last)


def _convolve(
    picture: Float[Array, "h w in"], kernel: Float[Array, "3 3 in out"]
) -> Float[Array, "h w out"]:
    reflected = jnp.pad(picture, ((1, 1), (1, 1), (0, 0)), mode="reflect")
    # Channels last: the fastest of the layouts tried on a CPU, forwards and backwards.
    layout = ("NHWC", "HWIO", "NHWC")
    return jax.lax.conv_general_dilated(
        reflected[None], kernel, (1, 1), "VALID", dimension_numbers=layout
    )[0]
