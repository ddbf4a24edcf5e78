"""Small problems with known minima, and every rule with settings that suit them.

Rules and problems meet in one table (`test_every_rule.py`): each rule runs on each problem it
fits and must find the minimum that an independent method found.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from scipy import optimize
from sklearn.linear_model import Lasso

from surestep.problem.base import Problem
from surestep.problem.kinds import CompositeProblem, KnownSmoothness, LeastSquares, ProximableSmooth
from surestep.rules import (
    ADMM,
    LBFGS,
    Adam,
    ConjugateGradients,
    Fista,
    FistaWithRestart,
    GradientDescent,
    HeavyBall,
    Nesterov,
    NesterovPerInstance,
    PreconditionedConjugateGradients,
    ScaledFista,
)
from surestep.rules.base import Rule

_random = np.random.default_rng(0)
MATRIX = _random.normal(size=(12, 6)) @ np.diag(np.linspace(0.5, 2.0, 6))
WIDE = _random.normal(size=(10, 16))


class Regression(LeastSquares, KnownSmoothness, ProximableSmooth):
    """Overdetermined least squares: its minimum is not zero."""

    matrix: Array

    @classmethod
    def create(cls) -> "Regression":
        with jax.enable_x64(True):
            return cls(jnp.asarray(MATRIX))

    def sample(self, key):
        return jax.random.normal(key, (self.matrix.shape[0],))

    def start(self, theta):
        return jnp.zeros(self.matrix.shape[1])

    def residual(self, x, theta):
        return self.matrix @ x - theta

    def smoothness(self, theta):
        return jnp.linalg.norm(self.matrix, 2) ** 2

    def smooth_prox(self, x, step, theta):
        return _least_squares_prox(self.matrix, theta, x, step)

    def minimum(self, theta) -> float:
        return 0.5 * float(np.linalg.lstsq(MATRIX, np.asarray(theta))[1][0])


def _least_squares_prox(matrix, target, x, step):
    left = matrix.T @ matrix + jnp.eye(x.size) / step
    return jnp.linalg.solve(left, matrix.T @ target + x / step)


class SmallLasso(CompositeProblem, ProximableSmooth):
    """Underdetermined lasso, checked against scikit-learn."""

    matrix: Array
    weight: float = 0.7

    @classmethod
    def create(cls) -> "SmallLasso":
        with jax.enable_x64(True):
            return cls(jnp.asarray(WIDE))

    def sample(self, key):
        return 3 * jax.random.normal(key, (self.matrix.shape[0],))

    def start(self, theta):
        return jnp.ones(self.matrix.shape[1])

    def smooth(self, x, theta):
        return 0.5 * jnp.sum((self.matrix @ x - theta) ** 2)

    def nonsmooth(self, x, theta):
        return self.weight * jnp.sum(jnp.abs(x))

    def prox(self, x, step, theta):
        return jnp.sign(x) * jnp.maximum(jnp.abs(x) - step * self.weight, 0)

    def smooth_prox(self, x, step, theta):
        return _least_squares_prox(self.matrix, theta, x, step)

    def minimum(self, theta) -> float:
        target = np.asarray(theta)
        rows = len(target)
        model = Lasso(alpha=self.weight / rows, fit_intercept=False, tol=1e-14, max_iter=10**6)
        x = model.fit(WIDE, target).coef_
        return float(0.5 * np.sum((WIDE @ x - target) ** 2) + self.weight * np.abs(x).sum())


class Bowl(Problem):
    """Smooth, convex, not quadratic, and its variable is a pytree of two shapes."""

    def sample(self, key):
        return jax.random.normal(key, (2, 2))

    def start(self, theta):
        return {"a": jnp.full((2, 2), 2.0), "b": jnp.asarray(-1.0)}

    def loss(self, x, theta):
        inner = jnp.sum(jnp.logaddexp(x["a"] - theta, theta - x["a"]) - jnp.log(2.0))
        return inner + jnp.sum((x["b"] - theta[0, 0]) ** 2) + 0.1 * jnp.sum(x["a"] ** 2)

    def minimum(self, theta) -> float:
        t = np.asarray(theta)

        def f(v):
            a, b = v[:4].reshape(2, 2), v[4]
            inner = np.sum(np.logaddexp(a - t, t - a) - np.log(2.0))
            return inner + (b - t[0, 0]) ** 2 + 0.1 * np.sum(a**2)

        options: Any = {"gtol": 1e-10}
        return float(optimize.minimize(f, np.zeros(5), method="BFGS", options=options).fun)


@dataclasses.dataclass(frozen=True)
class Entry:
    """A problem with its constants: largest and smallest curvature, number of unknowns."""

    problem: Any
    smoothness: float
    convexity: float
    dimension: int


def _eigenvalues(matrix: np.ndarray) -> np.ndarray:
    return np.linalg.eigvalsh(matrix.T @ matrix)


PROBLEMS = {
    "regression": Entry(Regression.create(), _eigenvalues(MATRIX)[-1], _eigenvalues(MATRIX)[0], 6),
    "lasso": Entry(SmallLasso.create(), _eigenvalues(WIDE)[-1], 0.0, 16),
    "bowl": Entry(Bowl(), 2.2, 0.2, 5),
}


def rules_for(entry: Entry) -> dict[str, tuple[Rule, int, float]]:
    """Every classical rule, the iterations it gets and how close it must come."""
    L, m = entry.smoothness, entry.convexity
    # Any positive numbers will do for a metric; these are at most 1, so steps stay below 1/L.
    with jax.enable_x64(True):
        uneven = jnp.linspace(0.3, 1.0, entry.dimension)
        uneven_steps = uneven / L
    heavy_ball = HeavyBall.for_constants(L, m) if m > 0 else HeavyBall(1 / L, 0.5)
    return {
        "gradient descent": (GradientDescent(1 / L), 3000, 1e-9),
        "heavy ball": (heavy_ball, 1000, 1e-9),
        "Nesterov": (Nesterov(1 / L), 3000, 1e-9),
        "Nesterov, own step": (NesterovPerInstance(), 3000, 1e-9),
        "FISTA": (Fista(1 / L), 3000, 1e-8),
        "FISTA with restart": (FistaWithRestart(1 / L), 3000, 1e-9),
        # Near a minimum it jumps now and then, as rounding has it: by little with small steps.
        "Adam": (Adam(0.003), 6000, 1e-6),
        "L-BFGS": (LBFGS(), 200, 1e-9),
        "conjugate gradients": (ConjugateGradients(), 30, 1e-9),
        "preconditioned CG": (PreconditionedConjugateGradients(uneven), 30, 1e-9),
        "scaled FISTA": (ScaledFista(uneven_steps), 4000, 1e-9),
        "ADMM": (ADMM(1.0), 3000, 1e-9),
    }


# A subgradient method with a constant step only comes near a kink, so rules that ask for the
# gradient of the whole loss are held to less on the lasso.
NEAR_ON_LASSO = {"gradient descent": 0.5, "heavy ball": 2.0, "Adam": 0.5, "L-BFGS": 0.5}
