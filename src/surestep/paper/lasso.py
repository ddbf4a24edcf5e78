"""Lasso: sparse solutions of underdetermined linear equations, the paper's third experiment."""

import dataclasses
from typing import NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Scalar

from surestep.base.errors import ConfigurationError
from surestep.base.keys import named_key
from surestep.paper import base
from surestep.paper.building import (
    Accuracies,
    Experiment,
    is_residual,
    prior_set,
    rule_of,
    tuned_number,
)
from surestep.paper.coordinate_descent import CoordinateDescent
from surestep.paper.normal import half_square_moments
from surestep.problem import Goal, PenalisedProblem, ProximableSmooth, Theta, working_precision
from surestep.rules import (
    ADMM,
    Fista,
    FistaWithRestart,
    LearnedSplitting,
    Proximal,
    ProximalGradient,
    ScaledFista,
)
from surestep.train import TuningSettings, coordinate_steps, safe_steps

SUMMARY = "sparse solutions of underdetermined linear equations, the paper's third experiment"


@dataclasses.dataclass(frozen=True)
class LassoSettings:
    """The family of lasso problems."""

    rows: int = 70
    """Number of equations."""
    columns: int = 350
    """Number of unknowns."""
    entries: float = 0.5
    """The matrix has entries up to this size."""
    weights: tuple[float, float] = (5.0, 10.0)
    """Range of the penalty's weight."""
    spread: float = 5.0
    """The right-hand side's mean and mixing matrix have entries up to this size."""
    start: float = 100.0
    """The start has entries up to this size."""
    admm: TuningSettings = TuningSettings(0.01, 100.0, values=33)
    """The penalties that are tried for ADMM."""
    admm_iterations: int = 50
    """After how many iterations they are compared, at most the horizon.

    ADMM needs few: at the horizon the mean would only see the slowest of instances that were
    solved long before, and the penalty that is best for them is slower on all others.
    """

    learned_times: int = 60
    """Iterations with numbers of their own in the learned splitting."""
    accuracies: tuple[float, ...] = (10.0, 5.0, 1.0)
    """How far above the minimum counts as solved."""

    def validate(self) -> None:
        """Refuse sizes and ranges that make no lasso."""
        if min(self.rows, self.columns) < 1:
            raise ConfigurationError("problem.rows and problem.columns must be at least 1")
        if not self.start >= 0:
            raise ConfigurationError(f"problem.start must not be negative, not {self.start}")
        for name in ("entries", "spread"):
            if not getattr(self, name) > 0:
                raise ConfigurationError(
                    f"problem.{name} must be positive, not {getattr(self, name)}"
                )
        if not 0 < self.weights[0] <= self.weights[1]:
            raise ConfigurationError(
                f"problem.weights must be a rising range of positive numbers, not {self.weights}"
            )
        if not self.accuracies or self.learned_times < 1:
            raise ConfigurationError(
                "problem.accuracies must not be empty and problem.learned_times at least 1, not "
                f"{self.accuracies} and {self.learned_times}"
            )
        self.admm.validate("problem.admm")
        if self.admm_iterations < 1:
            raise ConfigurationError(
                f"problem.admm_iterations must be at least 1, not {self.admm_iterations}"
            )


class LassoInstance(NamedTuple):
    """One instance: the right-hand side b and the penalty's weight."""

    target: Float[Array, " m"]
    weight: Float[Array, ""]


class Factors(NamedTuple):
    """What the singular value decomposition `A = U S V'` leaves to be kept of a matrix."""

    left: Float[Array, "m k"]
    """`U`."""
    rotated: Float[Array, "k n"]
    """`U' A`, which is `S V'`."""
    squares: Float[Array, " k"]
    """The squares of the singular values."""

    @classmethod
    def of(cls, matrix: Float[Array, "m n"]) -> Self:
        """Factorise, once for a whole family."""
        left, singular, right = np.linalg.svd(np.asarray(matrix), full_matrices=False)
        rotated = singular[:, None] * right
        return cls(jnp.asarray(left), jnp.asarray(rotated), jnp.asarray(singular**2))


class Lasso(PenalisedProblem, ProximableSmooth):
    """`0.5 norm(A x - b)^2 + weight * norm1(x)`, with more unknowns than equations.

    The matrix, the start, and mean and mixing matrix of `b` are the family's.
    """

    summary = SUMMARY

    matrix: Float[Array, "m n"]
    factors: Factors
    origin: Float[Array, " n"]
    mean: Float[Array, " m"]
    mixing: Float[Array, "m m"]
    weights: tuple[float, float]

    @classmethod
    def create(cls, settings: LassoSettings, seed: int) -> Self:
        """Draw what all instances share."""
        settings.validate()
        m, n = settings.rows, settings.columns
        keys = iter(jax.random.split(named_key(seed, "family", "lasso"), 4))

        def uniform(shape: tuple[int, ...], size: float) -> Array:
            return jax.random.uniform(next(keys), shape, minval=-size, maxval=size)

        with jax.enable_x64(True):
            matrix = uniform((m, n), settings.entries)
            return cls(
                matrix=matrix,
                factors=Factors.of(matrix),
                origin=uniform((n,), settings.start),
                mean=uniform((m,), settings.spread),
                mixing=uniform((m, m), settings.spread),
                weights=settings.weights,
            )

    @property
    def smoothness(self) -> float:
        """The largest eigenvalue of `A' A`."""
        return float(np.linalg.norm(np.asarray(self.matrix), 2) ** 2)

    def sample(self, key: Array) -> LassoInstance:
        """A normal right-hand side and a weight that is uniform in its range."""
        key_target, key_weight = jax.random.split(key)
        noise = jax.random.normal(key_target, self.mean.shape)
        return LassoInstance(
            target=self.mean + self.mixing.T @ noise,
            weight=jax.random.uniform(key_weight, minval=self.weights[0], maxval=self.weights[1]),
        )

    def start(self, theta: LassoInstance) -> Float[Array, " n"]:
        """The family's start."""
        return self.origin

    def smooth(self, x: Float[Array, " n"], theta: LassoInstance) -> Scalar:
        """Half the squared norm of `A x - b`."""
        residual = self.matrix @ x - theta.target
        return 0.5 * jnp.sum(residual * residual)

    def penalty(self, x: Float[Array, " n"]) -> Scalar:
        """The sum of absolute values."""
        # Not jnp.abs: its derivative at 0 is 1, and this one's is 0.
        return jnp.sum(x * jnp.sign(x))

    def weight(self, theta: LassoInstance) -> Scalar:
        """The instance's weight."""
        return theta.weight

    def prox(
        self, x: Float[Array, " n"], step: Float[Array, "..."], theta: LassoInstance
    ) -> Float[Array, " n"]:
        """Soft thresholding; the step may be one number or one for each coordinate."""
        return jnp.sign(x) * jnp.maximum(jnp.abs(x) - step * theta.weight, 0.0)

    def smooth_prox(
        self, x: Float[Array, " n"], step: Scalar, theta: LassoInstance
    ) -> Float[Array, " n"]:
        """`x + A' (A A' + I / step)^-1 (b - A x)`: two products with a matrix of `A`'s size."""
        left, rotated, squares = self.factors
        residual = left.T @ theta.target - rotated @ x
        return x + (residual / (squares + 1 / step)) @ rotated

    def goal_second_moment(self, goal: Goal) -> float:
        """A bound on `E[g^2]`: by Jensen at most `scale^2 E[start loss^2]^exponent`.

        The start's loss is half the squared norm of a normal vector plus a uniform number, and
        the two are independent: its second moment is known exactly.
        """
        with jax.enable_x64(True):
            first, second = half_square_moments(self.mean - self.matrix @ self.origin, self.mixing)
            size = float(self.penalty(self.origin))
        low, high = self.weights
        weight, weight_squared = (low + high) / 2, (low**2 + low * high + high**2) / 3
        moment = second + 2 * first * weight * size + weight_squared * size**2
        return goal.scale**2 * moment**goal.exponent


def shifts(problem: Lasso) -> dict[str, Lasso]:
    """Families next to this one."""
    low, high = problem.weights
    with working_precision(problem):
        mean, mixing = 5 * problem.mean, 5 * problem.mixing
    return {
        "a quarter of the weights": dataclasses.replace(problem, weights=(low / 4, high / 4)),
        "four times the weights": dataclasses.replace(problem, weights=(4 * low, 4 * high)),
        "five times the right-hand side": dataclasses.replace(problem, mean=mean, mixing=mixing),
    }


Config = base.RunConfig[LassoSettings]


def family(config: Config) -> Lasso:
    """The problem that a configuration describes."""
    return Lasso.create(config.problem, config.family_seed)


def build(config: Config) -> Experiment:
    """The experiment that a configuration describes; opponents are tuned on its prior set."""
    config.validate()
    problem = family(config)
    prior = prior_set(config, problem)
    step_size = 1 / problem.smoothness
    few = min(config.problem.admm_iterations, config.horizon)
    penalty = tuned_number(config, "admm", ADMM, problem, prior, few)
    outside = CoordinateDescent.of(problem.matrix)

    def minima(thetas: Theta) -> Float[np.ndarray, " instance"]:
        return outside.minima(thetas.target, thetas.weight)

    return Experiment(
        problem=problem,
        create_rule=rule_of(
            config,
            paper=lambda key: Proximal.create(key, step_size),
            fallback=ProximalGradient(step_size),
            # It converges by itself: after its learned iterations it is ADMM.
            residual=lambda _: LearnedSplitting.around(
                ADMM(penalty), times=config.problem.learned_times
            ),
        ),
        teacher=None if is_residual(config) else Fista(step_size),
        minima=minima,
        baselines={
            "FISTA": Fista(step_size),
            "FISTA with restart": FistaWithRestart(step_size),
            "scaled FISTA": ScaledFista(
                safe_steps(coordinate_steps(problem, prior), problem.matrix)
            ),
            "ADMM": ADMM(penalty),
        },
        accuracies=Accuracies(config.problem.accuracies, minima, "the minimum"),
        external={
            "coordinate descent": lambda theta, target, accuracy: outside.solve(
                theta.target, float(theta.weight), accuracy
            )
        },
        shifts=shifts(problem),
        goal_second_moment=problem.goal_second_moment(config.goal),
    )


PAPER = Config(
    name="lasso",
    preset="paper",
    problem=LassoSettings(),
    goal=Goal(scale=1.0, exponent=0.6),
    horizon=350,
    evaluate=base.EvaluateSettings(limit=5_000),
)

BEST = base.best(
    PAPER,
    problem=LassoSettings(accuracies=(10.0, 1.0, 1e-6)),
    horizon=100,
    training=base.TrainingSettings(objective="log", floor=1e-4, through=True, distances=True),
    population=base.PopulationSettings(members=4, steps=100, length=50, rates=(1.0, 0.3, 3.0)),
    locate=base.LocateSettings(
        steps=2_400, learning_rate=0.03, halve_every=600, length=(50, 100), check_every=400,
        chunk=200, keep="best",
    ),
    sample=base.SampleSettings(samples=30, length=50),
)  # fmt: skip

BEST_FROM_0 = dataclasses.replace(
    BEST,
    preset="best-from-0",
    problem=dataclasses.replace(BEST.problem, start=0.0),
    # From 0 the paper's goal lies below the minimum. Chosen on the prior set: half the start's
    # loss is reached by all of its minima.
    goal=Goal(scale=0.5, exponent=1.0),
)

QUICK = base.quick(
    PAPER,
    problem=LassoSettings(rows=40, columns=200),
    horizon=200,
    locate=base.LocateSettings(steps=60_000, check_every=10_000),
    sample=base.SampleSettings(samples=20),
    evaluate=base.EvaluateSettings(limit=1_000),
)

TINY = base.tiny(
    QUICK,
    problem=LassoSettings(rows=4, columns=10),
    block=64,
    goal=Goal(scale=1.0, exponent=0.9),
    sample=base.SampleSettings(samples=5, burn_in=2, thinning=2),
    evaluate=base.EvaluateSettings(limit=200, baselines=("FISTA",), shifted=0),
)

PRESETS: dict[str, Config] = {
    "tiny": TINY,
    "quick": QUICK,
    "paper": PAPER,
    "best": BEST,
    "best-from-0": BEST_FROM_0,
}
