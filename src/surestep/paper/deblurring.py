"""Deblurring photographs with a smoothed total variation: the problem of the image experiment."""

import dataclasses
import functools
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
import tyro
from jaxtyping import Array, Float, Int, Scalar, UInt8

from surestep.base.errors import ConfigurationError
from surestep.paper.photographs import Photographs
from surestep.problem import DualisedProblem, KnownSmoothness
from surestep.rules.cosine import cosines
from surestep.train import TuningSettings

SUMMARY = "deblurring photographs with a smoothed total variation, the paper's second experiment"

BLUR = np.array([[41, 26, 7], [26, 16, 4], [7, 4, 1]]) / 273
"""The blur's 5 x 5 kernel from its centre on: it is symmetric in both directions."""

SHRINK_ITERATIONS = 8
"""Newton iterations that bring shrunk lengths to single precision."""


@dataclasses.dataclass(frozen=True)
class ImageSettings:
    """The family of deblurring problems."""

    height: int = 250
    """Rows of a picture."""
    width: int = 187
    """Columns of a picture."""
    images: Annotated[str, tyro.conf.arg(aliases=["--images"])] = ""
    """Folder of photographs; without one, those that scikit-image carries."""
    shorter_side: int = 600
    """Photographs whose shorter side has more pixels are scaled down to so many."""
    weight: tuple[float, float] = (0.05, 0.5)
    """Range of the weight of the total variation."""
    rounding: float = 0.01
    """Epsilon of the paper: how far the total variation is rounded off at 0."""
    noise: float = 25 / 256
    """Standard deviation of the noise."""
    accuracies: tuple[float, ...] = (10.0, 5.0, 1.0)
    """When solvers are timed: how far above Nesterov's last loss."""
    minimum_iterations: int = 300
    """Iterations of the primal-dual method after which its best loss passes for the minimum."""
    dual_step: TuningSettings = TuningSettings(2.0, 200.0, values=9, instances=8)
    """Steps that are tried for the multipliers of the primal-dual method, times the weight."""

    def validate(self) -> None:
        """Refuse pictures that cannot be blurred and ranges that make no convex family."""
        if min(self.height, self.width) < 3:
            raise ConfigurationError(
                "problem.height and problem.width must be at least 3, the blur reaches so far, "
                f"not {self.height} and {self.width}"
            )
        if self.shorter_side < max(self.height, self.width):
            raise ConfigurationError(
                f"problem.shorter_side must be at least {max(self.height, self.width)}, else no "
                f"crop of {self.height} x {self.width} fits, not {self.shorter_side}"
            )
        if not 0 < self.weight[0] <= self.weight[1]:
            raise ConfigurationError(
                f"problem.weight must be a rising range of positive numbers, not {self.weight}"
            )
        if not (self.rounding > 0 and self.noise >= 0):
            raise ConfigurationError(
                "problem.rounding must be positive and problem.noise not negative, not "
                f"{self.rounding} and {self.noise}"
            )
        self.dual_step.validate("problem.dual_step")


Picture = Float[Array, "height width"]


class Frequencies(NamedTuple):
    """Cosine transforms, in which blur and differences are nearly diagonal.

    They would be diagonal if pictures were reflected with their edges repeated.
    """

    down: Float[Array, "height height"]
    right: Float[Array, "width width"]
    blurred: Picture
    """For each frequency, what `A'A` makes of it."""
    rough: Picture
    """The same for `D'D`."""

    @classmethod
    def create(cls, shape: tuple[int, int], dtype: str) -> Self:
        """For pictures of a shape."""
        down, right = (np.pi * np.arange(size) / size for size in shape)
        waves = [np.cos(np.outer(down, range(3))), np.cos(np.outer(right, range(3)))]
        # Every weight but the centre's stands for both directions.
        doubled = BLUR * np.outer([1, 2, 2], [1, 2, 2])
        rough = 4 - 2 * np.cos(down)[:, None] - 2 * np.cos(right)
        found = (*map(cosines, shape), (waves[0] @ doubled @ waves[1].T) ** 2, rough)
        return cls(*(jnp.asarray(array, dtype) for array in found))


class Blurred(NamedTuple):
    """One instance: what was observed and the weight; the original is there to compare with."""

    observed: Picture
    weight: Scalar
    original: Picture


class Deblurring(KnownSmoothness, DualisedProblem):
    """`0.5 norm(A x - b)^2 + weight * sum(sqrt(Dh^2 + Dw^2 + rounding^2))`, from `x = 0`.

    `A` blurs; `Dh` and `Dw` are differences of neighbours; all three reflect the picture at its
    edges, which are not repeated. Every instance is a random crop, maybe mirrored, of a random
    photograph of one pool, with its own noise and weight.
    """

    summary = SUMMARY

    precision: ClassVar[Literal["float32", "float64"]] = "float32"

    pixels: UInt8[Array, " pixel"]
    """All photographs, row by row, one after the other: padding them would waste memory."""
    first: Int[Array, " photograph"]
    rows: Int[Array, " photograph"]
    columns: Int[Array, " photograph"]
    height: int
    width: int
    weight: tuple[float, float]
    rounding: float
    noise: float
    blur_curvature: float
    """Largest eigenvalue of `A'A`."""
    curvature: float
    """The same of `A'A + weight / rounding * D'D` at the largest weight."""
    frequencies: Frequencies

    @classmethod
    def create(cls, settings: ImageSettings, pool: Photographs) -> Self:
        """The family that is cut from a pool of photographs."""
        settings.validate()
        shape = (settings.height, settings.width)
        steep = settings.weight[1] / settings.rounding
        shapes = np.array([picture.shape for picture in pool.pictures], np.int32)
        areas = [picture.size for picture in pool.pictures]
        return cls(
            pixels=jnp.asarray(np.concatenate([picture.ravel() for picture in pool.pictures])),
            first=jnp.asarray(np.cumsum([0, *areas[:-1]]), jnp.int32),
            rows=jnp.asarray(shapes[:, 0]),
            columns=jnp.asarray(shapes[:, 1]),
            height=settings.height,
            width=settings.width,
            weight=settings.weight,
            rounding=settings.rounding,
            noise=settings.noise,
            blur_curvature=largest_eigenvalue(0.0, shape),
            curvature=largest_eigenvalue(steep, shape),
            frequencies=Frequencies.create(shape, cls.precision),
        )

    def sample(self, key: Array) -> Blurred:
        """A crop of a photograph, blurred, with noise, cut off at black and white."""
        keys = jax.random.split(key, 6)
        photograph = jax.random.randint(keys[0], (), 0, self.first.size)
        columns = self.columns[photograph]
        top = jax.random.randint(keys[1], (), 0, self.rows[photograph] - self.height + 1)
        left = jax.random.randint(keys[2], (), 0, columns - self.width + 1)
        down, right = jnp.arange(self.height)[:, None], jnp.arange(self.width)
        mirrored = jnp.where(jax.random.bernoulli(keys[3]), right, self.width - 1 - right)
        places = self.first[photograph] + (top + down) * columns + left + mirrored
        original = self.pixels[places].astype(jnp.result_type(float)) / 255
        noise = self.noise * jax.random.normal(keys[4], original.shape)
        low, high = self.weight
        return Blurred(
            observed=jnp.clip(blur(original) + noise, 0, 1),
            weight=jax.random.uniform(keys[5], minval=low, maxval=high),
            original=original,
        )

    def start(self, theta: Blurred) -> Picture:
        """A black picture."""
        return jnp.zeros_like(theta.observed)

    def loss(self, x: Picture, theta: Blurred) -> Scalar:
        """Distance to what was observed, plus the rounded total variation."""
        residual = blur(x) - theta.observed
        down, right = differences(x)
        variation = jnp.sum(jnp.sqrt(down * down + right * right + self.rounding**2))
        return 0.5 * jnp.sum(residual * residual) + theta.weight * variation

    def smoothness(self, theta: Blurred) -> Scalar:
        """At most this much: exact at the largest weight, and a valid bound at every other.

        The largest eigenvalue is convex in the weight, so below the largest weight the line to
        the value at weight 0 bounds it; above, it grows no faster than the weight.
        """
        share = theta.weight / self.weight[1]
        return self.curvature * share + self.blur_curvature * jnp.maximum(1 - share, 0)

    def fidelity(self, x: Picture, theta: Blurred) -> Scalar:
        """Distance to what was observed."""
        return 0.5 * jnp.sum((blur(x) - theta.observed) ** 2)

    def transform(self, x: Picture) -> tuple[Picture, Picture]:
        """Differences of neighbours."""
        return differences(x)

    def dual_prox(
        self, y: tuple[Picture, Picture], step: Scalar, theta: Blurred
    ) -> tuple[Picture, Picture]:
        """By Moreau's identity, from the shrunk lengths of the pixels' differences."""
        down, right = y
        length = jnp.sqrt(down * down + right * right)
        shrunk = shrink(length / step, theta.weight / step, self.rounding)
        share = 1 - step * shrunk / jnp.maximum(length, jnp.finfo(length.dtype).tiny)
        return share * down, share * right

    def dual_scale(self, theta: Blurred) -> Scalar:
        """The weight: no multiplier is longer."""
        return theta.weight

    def primal_step(self, slope: Picture, dual_step: Scalar) -> Picture:
        """Half the inverse of `A'A + dual_step D'D`, as if edges were repeated in reflections.

        Half of it, because the last row and column of differences occur twice here: with `B` for
        the operator whose edges are repeated, `D'D` is at most `2 B'B`, and the blur differs less.
        """
        down, right, blurred, rough = self.frequencies
        waves = (down @ slope @ right.T) / (blurred + dual_step * rough)
        return 0.5 * (down.T @ waves @ right)

    def largest_start_loss(self) -> float:
        """What no loss at the start exceeds: observed values lie between 0 and 1."""
        return self.height * self.width * (0.5 + self.weight[1] * self.rounding)


def blur(x: Picture) -> Picture:
    """The blurred picture.

    Values that share a weight of the symmetric kernel are added first: on a CPU this takes a
    sixteenth of the time of a convolution.
    """
    height, width = x.shape
    padded = jnp.pad(x, 2, mode="reflect")

    def around(values: Array, offset: int, axis: int, size: int) -> Array:
        cut = functools.partial(jax.lax.slice_in_dim, values, axis=axis)
        below = cut(2 + offset, 2 + offset + size)
        return below if offset == 0 else below + cut(2 - offset, 2 - offset + size)

    vertical = [around(padded, i, 0, height) for i in range(3)]
    mixed = [sum(float(BLUR[i, j]) * vertical[i] for i in range(3)) for j in range(3)]
    return sum((around(jnp.asarray(mixed[j]), j, 1, width) for j in range(3)), jnp.zeros_like(x))


def differences(x: Picture) -> tuple[Picture, Picture]:
    """Every pixel's lower and right neighbour minus the pixel itself."""
    padded = jnp.pad(x, ((0, 1), (0, 1)), mode="reflect")
    return padded[1:, :-1] - x, padded[:-1, 1:] - x


def shrink(
    length: Picture, weight: Scalar, rounding: float, iterations: int = SHRINK_ITERATIONS
) -> Picture:
    """The minimiser over `r >= 0` of `weight sqrt(r^2 + rounding^2) + (r - length)^2 / 2`.

    Newton's method on the derivative, which is concave: from below it never jumps too far.
    """
    r = jnp.maximum(length - weight, 0)
    for _ in range(iterations):
        inverse = jax.lax.rsqrt(r * r + rounding**2)
        slope = r + weight * r * inverse - length
        r = r - slope / (1 + weight * rounding**2 * inverse**3)
    return r


def largest_eigenvalue(steep: float, shape: tuple[int, int], iterations: int = 400) -> float:
    """The largest eigenvalue of `A'A + steep * D'D`, by power iteration in float64."""
    with jax.enable_x64(True):
        start = jax.random.normal(jax.random.key(0), shape)
        return float(_power_iteration(start, jnp.asarray(steep), iterations))


@functools.partial(jax.jit, static_argnames="iterations")
def _power_iteration(start: Picture, steep: Scalar, iterations: int) -> Scalar:
    def energy(x: Picture) -> Scalar:
        down, right = differences(x)
        return 0.5 * (jnp.sum(blur(x) ** 2) + steep * jnp.sum(down**2 + right**2))

    def body(_: Any, x: Picture) -> Picture:
        product = jax.grad(energy)(x)
        return product / jnp.linalg.norm(product)

    last = jax.lax.fori_loop(0, iterations, body, start / jnp.linalg.norm(start))
    return jnp.linalg.norm(jax.grad(energy)(last))


def peak_signal_to_noise(x: Picture, theta: Blurred) -> Scalar:
    """How close a picture, as it would be shown, is to the original, in decibels."""
    error = jnp.mean((jnp.clip(x, 0, 1) - theta.original) ** 2)
    return -10 * jnp.log10(jnp.maximum(error, 1e-12))


def shifts(problem: Deblurring) -> dict[str, Deblurring]:
    """Families next to this one."""
    low, high = problem.weight
    return {
        "no noise": dataclasses.replace(problem, noise=0.0),
        "three times the noise": dataclasses.replace(problem, noise=3 * problem.noise),
        "three times the weights": dataclasses.replace(problem, weight=(3 * low, 3 * high)),
    }
