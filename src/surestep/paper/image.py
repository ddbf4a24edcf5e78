"""Image: deblurring photographs with a smoothed total variation, the paper's second experiment."""

from pathlib import Path

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from surestep.base.machine import require
from surestep.paper import base, photographs
from surestep.paper.building import (
    BATCH,
    Accuracies,
    Experiment,
    PriorSet,
    Rule,
    is_residual,
    rule_of,
    tuned_number,
)
from surestep.paper.deblurring import (
    SUMMARY,
    Deblurring,
    ImageSettings,
    peak_signal_to_noise,
    shifts,
)
from surestep.paper.pictures import Tile, save_pictures
from surestep.problem import Goal, TestSet, Theta, working_precision
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
from surestep.run.learned import Learned

__all__ = ["PRESETS", "SUMMARY", "Config", "build", "draw", "family"]

_BATCH = BATCH["image"]

Config = base.RunConfig[ImageSettings]


def family(config: Config) -> Deblurring:
    """The problem that a configuration describes."""
    return Deblurring.create(config.problem, _pool(config))


def _pool(config: Config) -> photographs.Photographs:
    settings = config.problem
    return photographs.load(settings.images, settings.height, settings.width, settings.shorter_side)


def build(config: Config) -> Experiment:
    """The experiment that a configuration describes; primal-dual is tuned on its prior set."""
    config.validate()
    settings, limit = config.problem, config.evaluate.limit
    pool = _pool(config)
    problem = Deblurring.create(settings, pool)
    nesterov = Nesterov(1 / problem.curvature)
    # No more instances than decide: drawing 250 large pictures takes its time.
    few = min(settings.dual_step.instances, config.sizes.prior)
    prior = PriorSet.draw(problem, few, config.seed)
    dual_step = tuned_number(config, "dual_step", PrimalDual, problem, prior)

    def last_losses(thetas: Theta) -> Float[np.ndarray, " instance"]:
        with working_precision(problem):
            return np.asarray(losses_at(nesterov, problem, thetas, (limit,), _BATCH)[:, 0])

    def minima(thetas: Theta) -> Float[np.ndarray, " instance"]:
        """The least losses that a long primal-dual run finds."""
        with working_precision(problem):
            long = PrimalDual(float(dual_step))
            found = rollouts(long, problem, thetas, settings.minimum_iterations, _BATCH)
            return np.asarray(jnp.min(found.losses, axis=1), np.float64)

    def paper(key: Array) -> Rule:
        return Convolutional.create(key, height=settings.height, width=settings.width)

    after = Accuracies(
        settings.accuracies, last_losses, f"Nesterov's loss after {limit} iterations"
    )
    above = Accuracies((0.01, 0.001, 1e-4), minima, "the minimum", relative=True)
    largest_goal = config.goal.scale * problem.largest_start_loss() ** config.goal.exponent
    return Experiment(
        problem=problem,
        create_rule=rule_of(
            config,
            paper=paper,
            fallback=GradientDescent(1 / problem.curvature),
            # It converges by itself: after its learned iterations it is the classical method.
            residual=lambda _: LearnedPrimalDual.around(PrimalDual(dual_step)),
        ),
        teacher=None if is_residual(config) else nesterov,
        minima=minima,
        baselines={
            "Nesterov": nesterov,
            "Nesterov, own step": NesterovPerInstance(),
            "L-BFGS": LBFGS(),
            "primal-dual": PrimalDual(dual_step),
        },
        accuracies=above if is_residual(config) else after,
        measures={"PSNR in dB": peak_signal_to_noise},
        shifts=shifts(problem),
        pool=pool.describe(),
        goal_second_moment=largest_goal**2,
    )


def draw(config: Config, experiment: Experiment, learned: Learned, folder: Path) -> list[Path]:
    """A few test pictures: observed, as two rules leave them at the horizon, and the original."""
    similarity = require(
        "skimage.metrics", "scikit-image", "comparing pictures"
    ).structural_similarity
    problem = experiment.problem
    few = TestSet.draw(problem, min(4, config.sizes.test), config.seed).thetas
    name, baseline = next(iter(experiment.baselines.items()))

    def solved(rule: Rule) -> np.ndarray:
        with working_precision(problem):
            found = rollouts(rule, problem, few, config.horizon, _BATCH).x
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
    evaluate=base.EvaluateSettings(limit=1000),
)

BEST = base.best(
    PAPER,
    # A dozen iterations are enough, and a shorter horizon asks for speed.
    horizon=12,
    training=base.TrainingSettings(objective="log", floor=1.5, through=True, distances=True),
    population=base.PopulationSettings(
        members=2, steps=50, length=8, instances=32, rates=(1.0, 0.3)
    ),
    locate=base.LocateSettings(
        steps=5_000, learning_rate=0.03, halve_every=1_250, length=(8, 12), check_every=1_000,
        chunk=500, keep="best",
    ),
    sample=base.SampleSettings(samples=20, length=8),
)  # fmt: skip

QUICK = base.quick(
    PAPER,
    problem=ImageSettings(height=48, width=36, shorter_side=120, accuracies=(0.4, 0.2, 0.04)),
    # Small crops are darker here and there: on some even the minimum is above a fifth.
    goal=Goal(scale=0.35, exponent=1.0),
    sizes=base.SplitSizes(160, 200, 200, 48),
    locate=base.LocateSettings(steps=12_000, halve_every=3_000, check_every=3_000, chunk=1_000),
    sample=base.SampleSettings(samples=10),
    evaluate=base.EvaluateSettings(limit=250),
)

TINY = base.tiny(
    QUICK,
    problem=ImageSettings(height=16, width=12, shorter_side=40, accuracies=(0.1, 0.05)),
    goal=Goal(scale=0.7, exponent=1.0),
    # All at once: a rest that fills no batch would be compiled once more.
    block=64,
    sample=base.SampleSettings(samples=4),
    evaluate=base.EvaluateSettings(limit=50, baselines=("Nesterov",), shifted=0),
)

PRESETS: dict[str, Config] = {"tiny": TINY, "quick": QUICK, "paper": PAPER, "best": BEST}
