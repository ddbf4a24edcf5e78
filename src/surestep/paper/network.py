"""Network: training a small neural network on noisy points of a random polynomial, not convex."""

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
    Rule,
    is_residual,
    prior_set,
    rule_of,
    tuned_number,
)
from surestep.problem import Goal, Problem, working_precision
from surestep.rules import LBFGS, Adam, GradientDescent, Preconditioned, QuasiNewton, Started
from surestep.train import TuningSettings

SUMMARY = "training a small neural network on noisy points of a random polynomial, not convex"


@dataclasses.dataclass(frozen=True)
class NetworkSettings:
    """The family of regression problems, the network that solves them, and Adam's tuning."""

    points: int = 50
    """Noisy points of every polynomial."""
    degree: int = 5
    """The polynomials' degree; also how many powers of its input the network is given."""
    hidden: int = 50
    """The network's hidden units."""
    interval: float = 2.0
    """Inputs lie within this distance of 0."""
    spread: float = 5.0
    """Coefficients lie within this distance of 0."""
    noise: float = 1.0
    """The noise's standard deviation."""
    adam: TuningSettings = TuningSettings()
    """The learning rates that are tried for Adam."""

    def validate(self) -> None:
        """Refuse sizes that make no regression problem."""
        for name in ("points", "degree", "hidden"):
            if getattr(self, name) < 1:
                raise ConfigurationError(
                    f"problem.{name} must be at least 1, not {getattr(self, name)}"
                )
        for name in ("interval", "spread"):
            if not getattr(self, name) > 0:
                raise ConfigurationError(
                    f"problem.{name} must be positive, not {getattr(self, name)}"
                )
        if not self.noise >= 0:
            raise ConfigurationError(f"problem.noise must not be negative, not {self.noise}")
        self.adam.validate("problem.adam")


class Regression(NamedTuple):
    """One instance: the points, and the polynomial that they are noisy values of."""

    inputs: Float[Array, " point"]
    targets: Float[Array, " point"]
    coefficients: Float[Array, " coefficient"]
    """Lowest power first. The loss does not know them."""


class Weights(NamedTuple):
    """What is optimized: the weights and biases of a network with one hidden layer."""

    inner: Float[Array, "hidden degree"]
    inner_bias: Float[Array, " hidden"]
    outer: Float[Array, " hidden"]
    outer_bias: Float[Array, ""]


class NetworkTraining(Problem):
    """The mean squared error of a ReLU network that is given the powers of its input.

    Every instance starts from the same weights, drawn once from a standard normal distribution.
    """

    summary = SUMMARY

    initial: Weights
    settings: NetworkSettings

    @classmethod
    def create(cls, settings: NetworkSettings, seed: int) -> Self:
        """Draw the weights that all instances start from."""
        settings.validate()
        hidden, degree = settings.hidden, settings.degree
        keys = jax.random.split(named_key(seed, "family", "network"), 4)
        shapes = ((hidden, degree), (hidden,), (hidden,), ())
        with jax.enable_x64(True):
            drawn = [jax.random.normal(k, s) for k, s in zip(keys, shapes, strict=True)]
            return cls(Weights(*drawn), settings)

    def sample(self, key: Array) -> Regression:
        """Uniform inputs, uniform coefficients, normal noise."""
        points, reach, spread = self.settings.points, self.settings.interval, self.settings.spread
        key_inputs, key_coefficients, key_noise = jax.random.split(key, 3)
        inputs = jax.random.uniform(key_inputs, (points,), minval=-reach, maxval=reach)
        coefficients = jax.random.uniform(
            key_coefficients, (self.settings.degree + 1,), minval=-spread, maxval=spread
        )
        noise = self.settings.noise * jax.random.normal(key_noise, (points,))
        return Regression(inputs, jnp.polyval(coefficients[::-1], inputs) + noise, coefficients)

    def start(self, theta: Regression) -> Weights:
        """The weights that were drawn once."""
        return self.initial

    def loss(self, x: Weights, theta: Regression) -> Scalar:
        """The mean squared error on the points."""
        return jnp.mean((self.predict(x, theta.inputs) - theta.targets) ** 2)

    def predict(self, x: Weights, inputs: Float[Array, " point"]) -> Float[Array, " point"]:
        """The network's outputs."""
        powers = jnp.stack([inputs**k for k in range(1, self.settings.degree + 1)])
        hidden = jax.nn.relu(x.inner @ powers + x.inner_bias[:, None])
        return x.outer @ hidden + x.outer_bias

    def truth_losses(self, thetas: Regression) -> Float[np.ndarray, " instance"]:
        """The mean squared errors of the true polynomials on their own noisy points."""

        def one(theta: Regression) -> Scalar:
            truth = jnp.polyval(theta.coefficients[::-1], theta.inputs)
            return jnp.mean((truth - theta.targets) ** 2)

        with working_precision(self):
            return np.asarray(jax.vmap(one)(thetas), np.float64)

    def mean_start_loss(self) -> float:
        """The expected loss at the start, exactly.

        Coefficients and noise have mean 0, so the squares of network, polynomial and noise add up.
        The first is a polynomial between two points where a hidden unit switches, and Gauss's
        quadrature is exact there.
        """
        s, powers = self.settings, np.arange(self.settings.degree + 1)
        inner, bias = np.asarray(self.initial.inner), np.asarray(self.initial.inner_bias)
        units = np.concatenate([inner[:, ::-1], bias[:, None]], axis=1)
        switches = np.concatenate([np.roots(unit) for unit in units])
        real = switches[np.isreal(switches)].real
        ends = np.unique(np.clip(real, -s.interval, s.interval))
        ends = np.concatenate([[-s.interval], ends, [s.interval]])
        nodes, weights = np.polynomial.legendre.leggauss(s.degree + 1)
        half, middle = np.diff(ends) / 2, (ends[1:] + ends[:-1]) / 2
        with working_precision(self):
            places = jnp.asarray(middle[:, None] + half[:, None] * nodes).ravel()
            outputs = np.asarray(self.predict(self.initial, places)).reshape(-1, nodes.size)
        network = np.sum(half * (outputs**2 @ weights)) / (2 * s.interval)
        polynomial = s.spread**2 / 3 * np.sum(s.interval ** (2.0 * powers) / (2 * powers + 1))
        return float(network + polynomial + s.noise**2)

    def goal_second_moment(self, goal: Goal) -> float | None:
        """A bound on `E[g^2]`: exact for the exponent 0.5, by Jensen's inequality below it."""
        if goal.exponent > 0.5:
            return None
        return goal.scale**2 * self.mean_start_loss() ** (2 * goal.exponent)


def shifts(problem: NetworkTraining) -> dict[str, NetworkTraining]:
    """Families next to this one."""
    s = problem.settings
    changes = {
        "five times the noise": dataclasses.replace(s, noise=5 * s.noise),
        "three times the coefficients": dataclasses.replace(s, spread=3 * s.spread),
        "half again the interval": dataclasses.replace(s, interval=1.5 * s.interval),
    }
    return {name: NetworkTraining(problem.initial, changed) for name, changed in changes.items()}


Config = base.RunConfig[NetworkSettings]


def family(config: Config) -> NetworkTraining:
    """The problem that a configuration describes."""
    return NetworkTraining.create(config.problem, config.family_seed)


def build(config: Config) -> Experiment:
    """The experiment that a configuration describes; Adam is tuned on its prior set."""
    config.validate()
    problem = family(config)
    rate = tuned_number(config, "adam", Adam, problem, prior_set(config, problem))
    dimension = sum(weights.size for weights in problem.initial)
    careful = GradientDescent(1e-4)

    def residual(key: Array) -> Rule:
        """L-BFGS's direction without its line search, from a learned start."""
        return Started.around(config.guard.around(QuasiNewton(), careful), dimension)

    def informed(deployed: Rule) -> dict[str, Rule]:
        assert isinstance(deployed, Started)
        return {
            "Adam, learned start": Started(Adam(rate), deployed.shift),
            "L-BFGS, learned start": Started(LBFGS(), deployed.shift),
        }

    return Experiment(
        problem=problem,
        create_rule=rule_of(
            config,
            paper=lambda key: Preconditioned.create(key, dimension=dimension),
            fallback=careful,
            residual=residual,
        ),
        teacher=None if is_residual(config) else GradientDescent(1e-5),
        informed=informed if is_residual(config) else None,
        baselines={"Adam": Adam(rate), "L-BFGS": LBFGS()},
        accuracies=Accuracies(
            (1.0, 0.1, 0.01), problem.truth_losses, above="the true polynomial's loss"
        ),
        shifts=shifts(problem),
        goal_second_moment=problem.goal_second_moment(config.goal),
    )


PAPER = Config(
    name="network",
    preset="paper",
    problem=NetworkSettings(),
    goal=Goal(scale=0.25, exponent=0.5),
    horizon=100,
    evaluate=base.EvaluateSettings(limit=5_000),
)

BEST = base.best(
    PAPER,
    guard=base.SafeguardSettings(factor=10.0, patience=15),
    training=base.TrainingSettings(objective="log", floor=1e-3),
    population=base.PopulationSettings(members=4, steps=500, length=10, rates=(1.0, 0.3, 3.0)),
    locate=base.LocateSettings(
        steps=20_000, learning_rate=0.01, halve_every=5_000, length=(10, 25), check_every=2_500,
        chunk=500, keep="best",
    ),
    sample=base.SampleSettings(samples=10, length=10),
)  # fmt: skip

QUICK = base.quick(
    PAPER,
    locate=base.LocateSettings(steps=60_000, check_every=10_000, halve_every=10_000),
    sample=base.SampleSettings(samples=10),
    evaluate=base.EvaluateSettings(limit=400),
)

TINY = base.tiny(
    QUICK,
    problem=NetworkSettings(points=10, degree=3, hidden=6, adam=TuningSettings(values=10)),
    goal=Goal(scale=1.0, exponent=1.0),
    sample=base.SampleSettings(samples=3),
    evaluate=base.EvaluateSettings(limit=30, baselines=("Adam",), shifted=0),
)

PRESETS: dict[str, Config] = {"tiny": TINY, "quick": QUICK, "paper": PAPER, "best": BEST}
