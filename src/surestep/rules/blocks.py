"""Building blocks of learned rules."""

import functools
import itertools
import operator
from collections.abc import Callable
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from surestep.rules.fused import Product, apply_chain, apply_fused

Prepared = TypeVar("Prepared")


def trained_product(
    matrix: Float[Array, "out in"], columns: Float[Array, "in n"]
) -> Float[Array, "out n"]:
    """A product that is quick to train on a processor; it has no forward derivatives.

    Of automatic differentiation's two products backwards, one has the matrix turned, and XLA hands
    only those to its fast library that have not. If it is turned beforehand, a training step of the
    paper's quadratics takes 38 microseconds instead of 41.
    """
    if matrix.ndim == columns.ndim == 2 and matrix.dtype == columns.dtype:
        return _product(matrix, columns)
    return matrix @ columns


@jax.custom_vjp
def _product(matrix: Array, columns: Array) -> Array:
    return matrix @ columns


def _product_backwards(kept: tuple[Array, Array], slope: Array) -> tuple[Array, Array]:
    matrix, columns = kept
    turned = matrix.T
    if jax.default_backend() == "cpu":
        # XLA would put the turning back into the product.
        turned = jax.lax.optimization_barrier(turned)
    return slope @ columns.T, turned @ slope


_product.defvjp(lambda matrix, columns: (matrix @ columns, (matrix, columns)), _product_backwards)


class LinearChain(eqx.Module):
    """Linear maps without bias, in groups; a ReLU stands between groups, none within.

    Adjacent maps of a group make one matrix: they are multiplied together before they meet the
    input, which is cheaper than applying them one after the other, in training too.
    """

    groups: tuple[tuple[Float[Array, "_out _in"], ...], ...]

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

    def multiplied(self, product: Product = operator.matmul) -> "LinearChain":
        """The same map with each group as one matrix."""
        return LinearChain(
            tuple((functools.reduce(lambda m, w: product(w, m), group),) for group in self.groups)
        )

    def prepared(self) -> "LinearChain":
        """The same map in the form that is fastest to iterate."""
        return _IteratedChain(self.multiplied().groups)

    def __call__(self, columns: Float[Array, "in n"]) -> Float[Array, "out n"]:
        """Apply the map to every column."""
        return apply_chain(self._matrices(trained_product), (), columns, trained_product)

    def _matrices(self, product: Product = operator.matmul) -> tuple[Float[Array, "_out _in"], ...]:
        return tuple(group[0] for group in self.multiplied(product).groups)


class _IteratedChain(LinearChain):
    """A chain that is not trained any more."""

    def __call__(self, columns: Float[Array, "in n"]) -> Float[Array, "out n"]:
        return apply_fused(self._matrices(), (), columns)


class Perceptron(eqx.Module):
    """Linear maps with a ReLU between any two of them, with biases or without."""

    weights: tuple[Float[Array, "_out _in"], ...]
    biases: tuple[Float[Array, " _out"], ...]
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

    def prepared(self) -> "Perceptron":
        """The same map in the form that is fastest to iterate."""
        return _IteratedPerceptron(self.weights, self.biases)

    def __call__(self, columns: Float[Array, "in n"]) -> Float[Array, "out n"]:
        """Apply the maps to every column."""
        return apply_chain(self.weights, self.biases, columns, trained_product)


class _IteratedPerceptron(Perceptron):
    """A perceptron that is not trained any more."""

    def __call__(self, columns: Float[Array, "in n"]) -> Float[Array, "out n"]:
        return apply_fused(self.weights, self.biases, columns)


class _PlainChain(LinearChain):
    """A chain that stays as it is when it is prepared again, and has derivatives of all kinds."""

    def prepared(self) -> LinearChain:
        return self

    def __call__(self, columns: Float[Array, "in n"]) -> Float[Array, "out n"]:
        return apply_chain(self._matrices(), (), columns)


class _PlainPerceptron(Perceptron):
    """A perceptron that stays as it is when it is prepared again, and has all derivatives."""

    def prepared(self) -> Perceptron:
        return self

    def __call__(self, columns: Float[Array, "in n"]) -> Float[Array, "out n"]:
        return apply_chain(self.weights, self.biases, columns)


def without_kernels(rule: Prepared) -> Prepared:
    """A prepared rule (or a part of one) whose program needs no kernel of ours, and no one JAX."""

    def plain(part: Any) -> Any:
        if isinstance(part, LinearChain):
            return _PlainChain(part.groups)
        if isinstance(part, Perceptron):
            return _PlainPerceptron(part.weights, part.biases)
        return part

    kinds = (LinearChain, Perceptron)
    return jax.tree.map(plain, rule, is_leaf=lambda part: isinstance(part, kinds))


class ConvolutionChain(eqx.Module):
    """3 x 3 convolutions without bias, a ReLU between them.

    Pictures keep their size: they are reflected at their edges, which are not repeated.
    Convolutions cannot be multiplied together beforehand, for each meets its own reflection.

    Which form is the fastest depends: convolutions to train on a CPU, products to iterate there
    (a batch one by one, for the cache: 7 and 11 ms a picture of 250 x 187) and on a GPU.
    """

    kernels: tuple[Float[Array, "3 3 _in _out"], ...]
    to_iterate: bool = eqx.field(default=False, static=True)

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

    def prepared(self) -> "ConvolutionChain":
        """The same map in the form that is fastest to iterate."""
        return ConvolutionChain(self.kernels, to_iterate=True)

    def __call__(self, picture: Float[Array, "in h w"]) -> Float[Array, "out h w"]:
        """Apply the map to a picture."""
        if jax.default_backend() != "cpu":
            return _chain(convolve_by_products, self.kernels, picture)
        if self.to_iterate:
            return _one_by_one(self.kernels, picture)
        return _chain(convolve, self.kernels, picture)


Kernels = tuple[Float[Array, "3 3 _in _out"], ...]
Convolve = Callable[[Float[Array, "in h w"], Float[Array, "3 3 in out"]], Float[Array, "out h w"]]


def _chain(
    apply: Convolve, kernels: Kernels, picture: Float[Array, "in h w"]
) -> Float[Array, "out h w"]:
    *hidden, last = kernels
    for kernel in hidden:
        picture = jnp.maximum(apply(picture, kernel), 0)
    return apply(picture, last)


@jax.custom_batching.sequential_vmap
def _one_by_one(kernels: Kernels, picture: Float[Array, "in h w"]) -> Float[Array, "out h w"]:
    return _chain(convolve_by_products, kernels, picture)


@jax.custom_vjp
def convolve(
    picture: Float[Array, "in h w"], kernel: Float[Array, "3 3 in out"]
) -> Float[Array, "out h w"]:
    """A convolution of a reflected picture.

    Its derivatives are convolutions in the one layout that XLA hands to its fast library. Those
    of automatic differentiation have others, and inside a loop XLA does not put them in order:
    on a CPU training is then nine times slower.
    """
    return jnp.moveaxis(_valid(_reflected(picture), kernel), -1, 0)


def _reflected(picture: Float[Array, "c h w"]) -> Float[Array, "h+2 w+2 c"]:
    return jnp.pad(jnp.moveaxis(picture, 0, -1), ((1, 1), (1, 1), (0, 0)), mode="reflect")


def _valid(picture: Float[Array, "... h w in"], kernel: Float[Array, "a b in out"]) -> Array:
    batch = picture if picture.ndim == 4 else picture[None]
    layout = ("NHWC", "HWIO", "NHWC")
    result = jax.lax.conv_general_dilated(batch, kernel, (1, 1), "VALID", dimension_numbers=layout)
    return result if picture.ndim == 4 else result[0]


def _convolve_forwards(picture: Array, kernel: Array) -> tuple[Array, tuple[Array, Array]]:
    return convolve(picture, kernel), (picture, kernel)


def _convolve_backwards(kept: tuple[Array, Array], slope: Array) -> tuple[Array, Array]:
    picture, kernel = kept
    slope = jnp.moveaxis(slope, 0, -1)
    # To the kernel: every input channel is a picture of its own, the slope is the kernel.
    channels = jnp.moveaxis(_reflected(picture), -1, 0)[..., None]
    to_kernel = jnp.moveaxis(_valid(channels, slope[:, :, None, :]), 0, 2)
    # To the picture: the turned kernel, then what was reflected goes back to where it came from.
    turned = kernel[::-1, ::-1].transpose(0, 1, 3, 2)
    wide = _valid(jnp.pad(slope, ((2, 2), (2, 2), (0, 0))), turned)
    rows = wide[1:-1].at[1].add(wide[0]).at[-2].add(wide[-1])
    both = rows[:, 1:-1].at[:, 1].add(rows[:, 0]).at[:, -2].add(rows[:, -1])
    return jnp.moveaxis(both, -1, 0), to_kernel


convolve.defvjp(_convolve_forwards, _convolve_backwards)


def convolve_by_products(
    picture: Float[Array, "in h w"], kernel: Float[Array, "3 3 in out"]
) -> Float[Array, "out h w"]:
    """The same by one matrix product: three rows go in together, three columns are added after."""
    (_, height, width), out = picture.shape, kernel.shape[-1]
    reflected = jnp.pad(picture, ((0, 0), (1, 1), (1, 1)), mode="reflect")
    rows = jnp.concatenate([reflected[:, i : i + height] for i in range(3)])
    matrix = kernel.transpose(1, 3, 0, 2).reshape(3 * out, -1)
    columns = (matrix @ rows.reshape(len(rows), -1)).reshape(3, out, height, width + 2)
    return columns[0, :, :, :-2] + columns[1, :, :, 1:-1] + columns[2, :, :, 2:]
