"""Quadratics: strongly convex, ill-conditioned least squares, the paper's first experiment."""

import dataclasses
from typing import NamedTuple, Self

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from surestep.base.errors import ConfigurationError
from surestep.base.keys import named_key
from surestep.paper import base
from surestep.paper.building import Accuracies, Experiment, is_residual, prior_set, rule_of
from surestep.paper.normal import half_square_moments
from surestep.problem import Goal, LeastSquares, working_precision
from surestep.rules import (
    LBFGS,
    ConjugateGradients,
    Coordinatewise,
    GradientDescent,
    HeavyBall,
    MetricConjugateGradients,
    Nesterov,
    PreconditionedConjugateGradients,
)
from surestep.train import coordinate_steps

SUMMARY = "strongly convex, ill-conditioned least squares, the paper's first experiment"


@dataclasses.dataclass(frozen=True)
class QuadraticsSettings:
    """The family of quadratics."""

    dimension: int = 200
    """Number of unknowns."""
    convexity: tuple[float, float] = (1e-3, 5e-3)
    """Range of the smallest eigenvalue."""
    smoothness: tuple[float, float] = (1e2, 5e2)
    """Range of the largest eigenvalue."""
    spread: float = 5.0
    """The right-hand side's mean and mixing matrix have entries up to this size."""
    rotated: bool = False
    """Whether the spectra sit in one random orthogonal basis in place of the coordinates."""

    def validate(self) -> None:
        """Refuse ranges that make no strongly convex family."""
        if self.dimension < 1:
            raise ConfigurationError("problem.dimension must be at least 1")
        if not self.spread > 0:
            raise ConfigurationError(f"problem.spread must be positive, not {self.spread}")
        (m_low, m_high), (l_low, l_high) = self.convexity, self.smoothness
        if not 0 < m_low <= m_high <= l_low <= l_high:
            raise ConfigurationError(
                "problem.convexity and problem.smoothness must be rising ranges of positive "
                f"numbers, the first below the second, not {self.convexity} and {self.smoothness}"
            )


class Quadratic(NamedTuple):
    """One instance: the singular values of A (its diagonal) and the right-hand side b."""

    diagonal: Float[Array, " n"]
    target: Float[Array, " n"]


class Quadratics(LeastSquares):
    """`0.5 norm(A x - b)^2` with `A` diagonal, from `x = 0`.

    The diagonal runs evenly, both ends included, from the square root of the instance's smallest
    eigenvalue to that of its largest. Mean and mixing matrix of `b` are the family's.

    With a basis `Q` (orthogonal, the family's) the matrix is `diag(diagonal) Q`: the Hessian
    `Q' diag(diagonal)^2 Q` has the same eigenvalues, but no coordinate is an eigenvector. The loss
    at `Q' x` is then what it is at `x` without a basis, so rules that treat no coordinate specially
    (heavy ball, conjugate gradients) do the same on both, and rules that do are put to the test.
    """

    summary = SUMMARY

    mean: Float[Array, " n"]
    mixing: Float[Array, "n n"]
    convexity: tuple[float, float]
    smoothness: tuple[float, float]
    basis: Float[Array, "n n"] | None = None

    @classmethod
    def create(cls, settings: QuadraticsSettings, seed: int) -> Self:
        """Draw what all instances share."""
        settings.validate()
        n, spread = settings.dimension, settings.spread
        key_mean, key_mixing = jax.random.split(named_key(seed, "family", "quadratics"))
        with jax.enable_x64(True):
            return cls(
                mean=jax.random.uniform(key_mean, (n,), minval=-spread, maxval=spread),
                mixing=jax.random.uniform(key_mixing, (n, n), minval=-spread, maxval=spread),
                convexity=settings.convexity,
                smoothness=settings.smoothness,
                basis=random_basis(n, seed) if settings.rotated else None,
            )

    def sample(self, key: Array) -> Quadratic:
        """Two eigenvalues, uniform in their ranges, and a normal right-hand side."""
        key_m, key_l, key_b = jax.random.split(key, 3)
        lowest = jax.random.uniform(key_m, minval=self.convexity[0], maxval=self.convexity[1])
        highest = jax.random.uniform(key_l, minval=self.smoothness[0], maxval=self.smoothness[1])
        n = self.mean.size
        return Quadratic(
            diagonal=jnp.linspace(jnp.sqrt(lowest), jnp.sqrt(highest), n),
            target=self.mean + self.mixing.T @ jax.random.normal(key_b, (n,)),
        )

    def goal_second_moment(self, goal: Goal) -> float | None:
        """`E[g^2]`, exactly: the start's loss is half the squared norm of a normal vector."""
        with jax.enable_x64(True):
            first, second = half_square_moments(self.mean, self.mixing)
        moment = {0.0: 1.0, 0.5: first, 1.0: second}.get(goal.exponent)
        return None if moment is None else goal.scale**2 * moment

    def start(self, theta: Quadratic) -> Float[Array, " n"]:
        """The origin."""
        return jnp.zeros_like(theta.target)

    def residual(self, x: Float[Array, " n"], theta: Quadratic) -> Float[Array, " n"]:
        """`A x - b`."""
        coordinates = x if self.basis is None else self.basis @ x
        return theta.diagonal * coordinates - theta.target


def random_basis(dimension: int, seed: int) -> Float[Array, "n n"]:
    """A family's orthogonal matrix, uniform among all of them (Haar)."""
    key = named_key(seed, "family", "quadratics", "basis")
    orthogonal, triangular = jnp.linalg.qr(jax.random.normal(key, (dimension, dimension)))
    # Signs are free in a factorisation, and LAPACK's choice of them would not be uniform.
    return orthogonal * jnp.sign(jnp.diagonal(triangular))


def shifts(problem: Quadratics) -> dict[str, Quadratics]:
    """Families next to this one."""
    (m_low, m_high), (l_low, l_high) = problem.convexity, problem.smoothness
    with working_precision(problem):
        mean, mixing = 5 * problem.mean, 5 * problem.mixing
    return {
        "ten times the condition number": dataclasses.replace(
            problem, convexity=(m_low / 10, m_high / 10)
        ),
        "twice the largest eigenvalue": dataclasses.replace(
            problem, smoothness=(2 * l_low, 2 * l_high)
        ),
        "five times the right-hand side": dataclasses.replace(problem, mean=mean, mixing=mixing),
    }


Config = base.RunConfig[QuadraticsSettings]


def family(config: Config) -> Quadratics:
    """The problem that a configuration describes."""
    return Quadratics.create(config.problem, config.family_seed)


def build(config: Config) -> Experiment:
    """The experiment that a configuration describes; one opponent's metric is the prior set's."""
    config.validate()
    problem = family(config)
    metric = coordinate_steps(problem, prior_set(config, problem))
    convexity, smoothness = config.problem.convexity[0], config.problem.smoothness[1]
    heavy_ball = HeavyBall.for_constants(smoothness, convexity)

    return Experiment(
        problem=problem,
        create_rule=rule_of(
            config,
            paper=Coordinatewise.create,
            fallback=GradientDescent(1 / smoothness),
            # Conjugate gradients in a learned metric, from the best classical one on: the loss
            # falls with every iteration.
            residual=lambda _: MetricConjugateGradients(jnp.log(metric)),
        ),
        teacher=None if is_residual(config) else heavy_ball,
        baselines={
            "heavy ball": heavy_ball,
            "Nesterov": Nesterov(1 / smoothness),
            "conjugate gradients": ConjugateGradients(),
            "preconditioned CG": PreconditionedConjugateGradients(metric),
            "L-BFGS": LBFGS(),
        },
        accuracies=Accuracies((1e-2, 1e-4, 1e-6)),
        shifts=shifts(problem),
        goal_second_moment=problem.goal_second_moment(config.goal),
    )


PAPER = Config(
    name="quadratics",
    preset="paper",
    problem=QuadraticsSettings(),
    goal=Goal(scale=1.0, exponent=0.5),
    horizon=350,
)

BEST = base.best(
    PAPER,
    training=base.TrainingSettings(objective="log", floor=1e-20, through=True),
    population=base.PopulationSettings(members=4, steps=250, length=5, rates=(1.0, 0.3, 3.0, 0.1)),
    locate=base.LocateSettings(
        steps=4_000, learning_rate=0.01, halve_every=1_000, length=(5, 10), check_every=1_000,
        chunk=500, keep="best",
    ),
    sample=base.SampleSettings(samples=30, length=10),
)  # fmt: skip

QUICK = base.quick(
    PAPER,
    problem=QuadraticsSettings(dimension=100),
    goal=Goal(scale=1.0, exponent=0.75),
    horizon=200,
    imitate=base.ImitateSettings(steps=1000),
    locate=base.LocateSettings(steps=100_000, check_every=10_000),
    sample=base.SampleSettings(samples=30),
)

TINY = base.tiny(
    QUICK,
    problem=QuadraticsSettings(dimension=8),
    goal=Goal(scale=1.0, exponent=1.0),
    sample=base.SampleSettings(samples=5, burn_in=2, thinning=2),
    evaluate=base.EvaluateSettings(
        limit=100, baselines=("heavy ball", "conjugate gradients"), shifted=8
    ),
)

PRESETS: dict[str, Config] = {"tiny": TINY, "quick": QUICK, "paper": PAPER, "best": BEST}
