"""ADMM with one factor for all instances, against iterations that are written out in NumPy."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize

from surestep.base.errors import ConfigurationError
from surestep.problem.base import Problem
from surestep.problem.oracle import Oracle
from surestep.problem.penalties import L1, Simplex
from surestep.rules import SharedADMM

RNG = np.random.default_rng(2)
D = RNG.normal(size=(4, 10)) / 2
ROOT = RNG.normal(size=(10, 10))
H = ROOT @ ROOT.T / 10 + 0.1 * np.eye(10)


def signal(key):
    return jax.random.normal(key, (4,))


def returns(key):
    return jax.random.normal(key, (10,))


LASSO = Problem.of(
    lambda x, theta: 0.5 * jnp.sum((D @ x - theta) ** 2), np.zeros(10), sample=signal,
    penalty=L1(0.1),
)  # fmt: skip
PORTFOLIO = Problem.of(
    lambda x, theta: 0.5 * x @ H @ x - theta @ x, np.full(10, 0.2), sample=returns,
    penalty=Simplex(2.0), lower=None,
)  # fmt: skip


def points(rule, problem, number, prepared=True):
    with jax.enable_x64(True):
        theta = problem.sample(jax.random.key(0))
        rule = rule.prepare() if prepared else rule
        oracle = Oracle(problem, theta)
        state = rule.init(oracle, oracle.start)
        found = []
        for _ in range(number):
            state = rule.step(Oracle(problem, theta), state)
            found.append(np.asarray(state.x))
        return np.stack(found), np.asarray(theta)


def rule_of(matrix, **kwargs):
    with jax.enable_x64(True):
        penalties = jnp.log(jnp.asarray(RNG.uniform(0.5, 2.0, 10)))
        rule = SharedADMM.of(jnp.asarray(matrix), 1.0, 1.7, **kwargs)
        return dataclasses.replace(rule, log_penalty=penalties)


def test_iterates_are_those_of_the_textbook():
    rule = rule_of(D.T @ D)
    found, theta = points(rule, LASSO, 8)
    rho, linear = np.exp(np.asarray(rule.log_penalty)), D.T @ theta
    z = np.zeros(10)
    u = np.clip(linear / rho, -0.1 / rho, 0.1 / rho)
    for point in found:
        x = np.linalg.solve(D.T @ D + np.diag(rho), linear + rho * (z - u))
        mixed = 1.7 * x + (1 - 1.7) * z + u
        z = np.sign(mixed) * np.maximum(np.abs(mixed) - 0.1 / rho, 0.0)
        u = mixed - z
        np.testing.assert_allclose(point, z, rtol=1e-9, atol=1e-12)


def test_a_factor_of_low_rank_gives_the_same_iterates():
    whole = rule_of(D.T @ D)
    narrow = dataclasses.replace(whole, hessian=rule_of(D).hessian)
    expected = points(whole, LASSO, 8)[0]
    np.testing.assert_allclose(points(narrow, LASSO, 8)[0], expected, rtol=1e-9, atol=1e-12)
    unprepared = points(narrow, LASSO, 8, prepared=False)[0]
    np.testing.assert_allclose(unprepared, expected, rtol=1e-9, atol=1e-12)
    made = narrow.prepare()
    assert made.resolvent is None and made.down is not None and made.up is not None
    assert (made.down.array.shape, made.up.array.shape) == ((4, 10), (10, 4))


@pytest.mark.parametrize("matrix", [H, np.linalg.cholesky(H).T[:9]])
def test_on_the_simplex_every_point_is_inside_and_the_last_is_the_least(matrix):
    rule = rule_of(matrix, total=2.0)
    hessian = matrix if len(matrix) == 10 else matrix.T @ matrix
    problem = Problem.of(
        lambda x, theta: 0.5 * x @ hessian @ x - theta @ x, np.full(10, 0.2), sample=returns,
        penalty=Simplex(2.0), lower=None,
    )  # fmt: skip
    found, theta = points(rule, problem, 300)
    assert np.all(found >= 0)
    np.testing.assert_allclose(found.sum(axis=1), 2.0, rtol=1e-12)
    loss = lambda x: 0.5 * x @ hessian @ x - theta @ x  # noqa: E731
    best = scipy.optimize.minimize(
        loss, np.full(10, 0.2), jac=lambda x: hessian @ x - theta, bounds=[(0, None)] * 10,
        constraints={"type": "eq", "fun": lambda x: x.sum() - 2}, method="SLSQP",
        options={"ftol": 1e-14, "maxiter": 500},
    )  # fmt: skip
    assert loss(found[-1]) <= best.fun + 1e-9
    np.testing.assert_allclose(found[-1], best.x, atol=1e-4)


def test_the_multiplier_begins_where_the_start_tells():
    """From a solution nothing moves."""
    rule = rule_of(H, total=2.0)
    found = points(rule, PORTFOLIO, 400)[0]
    solved = Problem.of(
        lambda x, theta: 0.5 * x @ H @ x - theta @ x, found[-1], sample=returns,
        penalty=Simplex(2.0), lower=None,
    )  # fmt: skip
    np.testing.assert_allclose(points(rule, solved, 3)[0][-1], found[-1], atol=1e-9)


@pytest.mark.parametrize("problem", [LASSO, PORTFOLIO], ids=["lasso", "portfolio"])
def test_products_in_single_precision_lead_to_the_same_minimum(problem):
    """Their rounding does not add up, and the loss is as good as its square."""
    rule = rule_of(D.T @ D) if problem is LASSO else rule_of(H, total=2.0)
    short = dataclasses.replace(rule, single=True)
    expected, theta = points(rule, problem, 400)
    found = points(short, problem, 400)[0]
    assert found.dtype == np.float64
    inverse = short.prepare().resolvent
    assert inverse is not None and inverse.array.dtype == jnp.float32
    assert 0 < np.max(np.abs(found[-1] - expected[-1])) < 1e-5
    with jax.enable_x64(True):
        losses = [float(problem.loss(jnp.asarray(x), theta)) for x in (found[-1], expected[-1])]
    assert abs(losses[0] - losses[1]) < 1e-10


def test_a_total_must_be_positive():
    with pytest.raises(ConfigurationError, match="positive total"):
        rule_of(H, total=0.0)


@pytest.mark.parametrize(
    ("problem", "matrix", "total"), [(LASSO, D, None), (PORTFOLIO, H, 2.0)], ids=["lasso", "total"]
)
def test_what_the_check_sees_is_a_subgradient_of_the_whole_loss(problem, matrix, total):
    """Convexity: no point lies below the plane that a subgradient makes, whatever the iteration."""
    rule = rule_of(matrix, total=total).prepare()
    with jax.enable_x64(True):
        theta = problem.sample(jax.random.key(0))
        oracle = Oracle(problem, theta)
        state = rule.init(oracle, oracle.start)
        lengths = []
        for number in range(200):
            state = rule.step(oracle.fresh(), state)
            value, slope = rule.stationarity(oracle.fresh(), state, 1.0)
            np.testing.assert_allclose(value, problem.loss(state.x, theta), rtol=1e-12)
            lengths.append(float(jnp.linalg.norm(slope)))
            if number in (0, 3, 20):
                others = RNG.normal(size=(50, 10))
                if total is not None:
                    others = total * np.abs(others) / np.abs(others).sum(1, keepdims=True)
                for other in others:
                    plane = value + slope @ (other - state.x)
                    assert problem.loss(jnp.asarray(other), theta) >= plane - 1e-9
    assert lengths[-1] < 1e-2 * lengths[0]
