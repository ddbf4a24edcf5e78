"""Image: deblurring photographs with a smoothed total variation, the paper's second experiment."""

import dataclasses
import functools
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
import tyro
from jaxtyping import Array, Float, Int, Scalar, UInt8

from surestep.base.errors import ConfigurationError
from surestep.base.machine import require
from surestep.evaluate.test_set import EvaluateSettings
from surestep.paper import photographs
from surestep.paper.photographs import Photographs
from surestep.problem.base import DualisedProblem, KnownSmoothness, Theta
from surestep.problem.datasets import PriorSet, SplitSizes, TestSet
from surestep.problem.draw import working_precision
from surestep.problem.goal import Goal
from surestep.rollout.batched import losses_at, rollouts
from surestep.rules import (
    LBFGS,
    Convolutional,
    GradientDescent,
    LearnedPrimalDual,
    Nesterov,
    NesterovPerInstance,
    PrimalDual,
)
from surestep.rules.base import Rule
from surestep.rules.cosine import cosines
from surestep.run.config import RunConfig
from surestep.run.pipeline import Learned
from surestep.train.constraint import Constraint
from surestep.train.experiment import Accuracies, Experiment
from surestep.train.imitate import ImitateSettings
from surestep.train.locate import LocateSettings
from surestep.train.population import PopulationSettings
from surestep.train.sample import SampleSettings
from surestep.train.trajectory import TrainingSettings
from surestep.train.tuning import TuningSettings, tuned

SUMMARY = "deblurring photographs with a smoothed total variation, the paper's second experiment"

BLUR = np.array([[41, 26, 7], [26, 16, 4], [7, 4, 1]]) / 273
"""The blur's 5 x 5 kernel from its centre on: it is symmetric in both directions."""

_SIDE_BY_SIDE = 10
"""Instances that classical solvers take at a time, before a run has its pace."""

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


Config = RunConfig[ImageSettings]


def family(config: Config) -> Deblurring:
    """The problem that a configuration describes."""
    settings = config.problem
    pool = photographs.load(settings.images, settings.height, settings.width, settings.shorter_side)
    return Deblurring.create(settings, pool)


def build(config: Config) -> Experiment:
    """The experiment that a configuration describes; primal-dual is tuned on its prior set."""
    config.validate()
    settings = config.problem
    pool = photographs.load(settings.images, settings.height, settings.width, settings.shorter_side)
    problem = Deblurring.create(settings, pool)
    nesterov, limit = Nesterov(1 / problem.curvature), config.evaluate.limit
    # No more instances than decide: drawing 250 large pictures takes its time.
    few = min(settings.dual_step.instances, config.sizes.prior)
    dual_step = tuned(
        *("problem.dual_step", settings.dual_step, PrimalDual, problem),
        PriorSet.draw(problem, few, config.seed),
        *(config.horizon, _SIDE_BY_SIDE),
    )

    def last_losses(thetas: Theta) -> Float[np.ndarray, " instance"]:
        with working_precision(problem):
            return np.asarray(losses_at(nesterov, problem, thetas, (limit,), _SIDE_BY_SIDE)[:, 0])

    def minima(thetas: Theta) -> Float[np.ndarray, " instance"]:
        """The least losses that a long primal-dual run finds."""
        with working_precision(problem):
            long = PrimalDual(float(dual_step))
            found = rollouts(long, problem, thetas, settings.minimum_iterations, _SIDE_BY_SIDE)
            return np.asarray(jnp.min(found.losses, axis=1), np.float64)

    def create_rule(key: Array) -> Rule:
        if config.rule == "residual":
            # It converges by itself: after its learned iterations it is the classical method.
            return LearnedPrimalDual.around(PrimalDual(dual_step))
        rule = Convolutional.create(key, height=settings.height, width=settings.width)
        careful = GradientDescent(1 / problem.curvature)
        return rule if config.rule == "paper" else config.guard.around(rule, careful)

    own = config.rule == "residual"
    after = Accuracies(
        settings.accuracies, last_losses, f"Nesterov's loss after {limit} iterations"
    )
    above = Accuracies((0.01, 0.001, 1e-4), minima, "the minimum", relative=True)
    return Experiment(
        problem=problem,
        create_rule=create_rule,
        teacher=None if own else nesterov,
        minima=minima,
        baselines={
            "Nesterov": nesterov,
            "Nesterov, own step": NesterovPerInstance(),
            "L-BFGS": LBFGS(),
            "primal-dual": PrimalDual(dual_step),
        },
        accuracies=above if own else after,
        measures={"PSNR in dB": peak_signal_to_noise},
        shifts=shifts(problem),
        pool=pool.describe(),
        goal_second_moment=(
            config.goal.scale * problem.largest_start_loss() ** config.goal.exponent
        )
        ** 2,
    )


def draw(config: Config, experiment: Experiment, learned: Learned, folder: Path) -> list[Path]:
    """A few test pictures: observed, as two rules leave them at the horizon, and the original."""
    from surestep.paper.pictures import Tile, save_pictures  # noqa: PLC0415

    similarity = require(
        "skimage.metrics", "scikit-image", "comparing pictures"
    ).structural_similarity
    problem = experiment.problem
    few = TestSet.draw(problem, min(4, config.sizes.test), config.seed).thetas
    name, baseline = next(iter(experiment.baselines.items()))

    def solved(rule: Rule) -> np.ndarray:
        with working_precision(problem):
            found = rollouts(rule, problem, few, config.horizon, _SIDE_BY_SIDE).x
        return np.asarray(found).reshape(few.observed.shape)

    original = np.asarray(few.original, np.float64)
    columns = {
        "observed": np.asarray(few.observed),
        f"learned, {config.horizon} iterations": solved(learned.deployed),
        f"{name}, {config.horizon} iterations": solved(baseline),
        "original": original,
    }

    def tile(title: str, values: np.ndarray, truth: np.ndarray) -> Tile:
        shown = np.clip(values, 0, 1).astype(np.float64)
        if title != "original":
            error = max(float(np.mean((shown - truth) ** 2)), 1e-12)
            likeness = similarity(shown, truth, data_range=1.0)
            title += f"\n{-10 * np.log10(error):.1f} dB, SSIM {likeness:.2f}"
        return Tile(title, shown)

    grid = [
        [tile(title, values[i], original[i]) for title, values in columns.items()]
        for i in range(len(original))
    ]
    return save_pictures("pictures", f"{len(original)} test pictures", grid, folder)


PAPER = Config(
    name="image",
    preset="paper",
    problem=ImageSettings(),
    goal=Goal(scale=0.2, exponent=1.0),
    # The paper's text says 50 iterations, its code and figure 25.
    horizon=25,
    evaluate=EvaluateSettings(limit=1000),
)

BEST = dataclasses.replace(
    PAPER,
    preset="best",
    rule="residual",
    # A dozen iterations are enough, and a shorter horizon asks for speed.
    horizon=12,
    training=TrainingSettings(objective="log", floor=1.5, through=True, distances=True),
    population=PopulationSettings(members=2, steps=50, length=8, instances=32, rates=(1.0, 0.3)),
    locate=LocateSettings(
        steps=5_000, learning_rate=0.03, halve_every=1_250, length=(8, 12), check_every=1_000,
        chunk=500, keep="best",
    ),
    sample=SampleSettings(samples=20, length=8),
    evaluate=EvaluateSettings(limit=1000),
)  # fmt: skip

QUICK = dataclasses.replace(
    PAPER,
    preset="quick",
    problem=ImageSettings(height=48, width=36, shorter_side=120, accuracies=(0.4, 0.2, 0.04)),
    # Small crops are darker here and there: on some even the minimum is above a fifth.
    goal=Goal(scale=0.35, exponent=1.0),
    sizes=SplitSizes(160, 200, 200, 48),
    locate=LocateSettings(steps=12_000, halve_every=3_000, check_every=3_000, chunk=1_000),
    sample=SampleSettings(samples=10),
    evaluate=EvaluateSettings(limit=250),
)

TINY = dataclasses.replace(
    QUICK,
    preset="tiny",
    problem=ImageSettings(height=16, width=12, shorter_side=40, accuracies=(0.1, 0.05)),
    goal=Goal(scale=0.7, exponent=1.0),
    horizon=10,
    # All at once: a rest that fills no block would be compiled once more.
    block=64,
    sizes=SplitSizes(64, 64, 64, 64),
    imitate=ImitateSettings(steps=200),
    locate=LocateSettings(steps=2_000, check_every=500, chunk=250),
    sample=SampleSettings(samples=4),
    constraint=Constraint(lower=0.8, width=0.15),
    evaluate=EvaluateSettings(limit=50, baselines=("Nesterov",), shifted=0),
)

PRESETS: dict[str, Config] = {"tiny": TINY, "quick": QUICK, "paper": PAPER, "best": BEST}
