"""The smooth part's proximal map and ADMM, against NumPy."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import optimize

from support.catalogue import PROBLEMS
from surestep.base.errors import ConfigurationError
from surestep.base.keys import named_key
from surestep.paper.coordinate_descent import CoordinateDescent
from surestep.paper.lasso import Lasso, LassoSettings
from surestep.problem.base import instance
from surestep.problem.draw import draw
from surestep.problem.oracle import Oracle
from surestep.rollout.batched import rollouts
from surestep.rollout.loop import advance, begin, rollout
from surestep.rules import ADMM, FistaWithRestart
from surestep.rules.base import require_fit

WIDE = Lasso.create(LassoSettings(rows=20, columns=60), 0)
TALL = Lasso.create(LassoSettings(rows=30, columns=12), 0)
THETA = instance(draw(WIDE, 1, named_key(0, "theta")), 0)


@pytest.mark.parametrize("problem", [WIDE, TALL])
@pytest.mark.parametrize("step", [1e-3, 0.7, 1e4])
def test_the_smooth_parts_proximal_map_solves_its_linear_equations(problem, step):
    theta = problem.sample(named_key(1, "theta"))
    A, b, x = (np.asarray(a) for a in (problem.matrix, theta.target, problem.origin))
    expected = np.linalg.solve(A.T @ A + np.eye(x.size) / step, A.T @ b + x / step)
    found = problem.smooth_prox(problem.origin, jnp.asarray(step), theta)
    np.testing.assert_allclose(found, expected, rtol=1e-8, atol=1e-8)


def test_the_smooth_parts_proximal_map_is_a_minimiser():
    small = Lasso.create(LassoSettings(rows=3, columns=5, start=2.0), 0)
    theta = small.sample(named_key(2, "theta"))

    def objective(z):
        return float(small.smooth(z, theta) + jnp.sum((z - small.origin) ** 2) / (2 * 0.4))

    least = optimize.minimize(objective, np.zeros(5), method="BFGS")
    found = small.smooth_prox(small.origin, jnp.asarray(0.4), theta)
    np.testing.assert_allclose(found, least.x, atol=1e-4)
    assert objective(found) <= least.fun + 1e-12


def test_the_oracle_counts_it_as_a_gradient_and_differentiates_it():
    oracle = Oracle(WIDE, THETA)
    oracle.smooth_prox(oracle.start, 0.5)
    assert (oracle.gradients, oracle.values) == (1, 0)

    def first(step):
        return Oracle(WIDE, THETA).smooth_prox(WIDE.origin, step)[0]

    after, before = first(0.5 + 1e-5), first(0.5 - 1e-5)
    assert jax.grad(first)(0.5) == pytest.approx(float(after - before) / 2e-5, rel=1e-5)


@pytest.mark.parametrize("relaxation", [1.0, 1.6])
def test_admm_is_the_textbook_recurrence(relaxation):
    """Boyd et al., section 6.4, with the sparse point in the start and no multiplier."""
    A, b, rho = np.asarray(WIDE.matrix), np.asarray(THETA.target), 1.5
    z, u, expected = np.asarray(WIDE.origin), np.zeros(60), []
    inverse = np.linalg.inv(A.T @ A + rho * np.eye(60))
    for _ in range(15):
        x = inverse @ (A.T @ b + rho * (z - u))
        x = relaxation * x + (1 - relaxation) * z
        z = np.sign(x + u) * np.maximum(np.abs(x + u) - float(THETA.weight) / rho, 0)
        u = u + x - z
        expected.append(z)
    rule, found = ADMM(rho, relaxation), []
    progress = begin(rule, WIDE, THETA)
    for _ in range(15):
        progress = advance(rule, WIDE, THETA, progress)
        found.append(np.asarray(progress.state.x))
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("start", [100.0, 0.0])
def test_admm_ends_in_the_minimum_from_both_starts_and_is_ahead_of_fista(start):
    problem = dataclasses.replace(WIDE, origin=WIDE.origin * (start / 100))
    thetas = draw(problem, 6, named_key(0, "data"))
    minima = CoordinateDescent.of(problem.matrix).minima(thetas.target, thetas.weight)
    result = rollouts(ADMM(2.0), problem, thetas, 1500, 6)
    gaps = np.asarray(result.losses) - minima[:, None]
    assert np.all(gaps > -1e-9 * minima[:, None])
    assert np.all(gaps[:, -1] < 1e-8 * minima)
    fista = rollouts(FistaWithRestart(1 / problem.smoothness), problem, thetas, 100, 6).losses
    assert np.median(gaps[:, 50]) < np.median(np.asarray(fista)[:, 50] - minima) / 10
    # The point is the sparse one.
    x = np.asarray(result.x)
    assert np.all(np.sum(x != 0, axis=1) <= 20) and np.all(np.any(x != 0, axis=1))


def test_the_multiplier_becomes_minus_the_gradient():
    rule, progress = ADMM(2.0), begin(ADMM(2.0), WIDE, THETA)
    progress = jax.lax.fori_loop(0, 3000, lambda _, p: advance(rule, WIDE, THETA, p), progress)
    gradient = jax.grad(WIDE.smooth)(progress.state.x, THETA)
    state: Any = progress.state
    np.testing.assert_allclose(2.0 * state.multiplier, -gradient, atol=1e-7)


def test_each_iteration_is_counted_as_one_gradient():
    gradients = rollout(ADMM(1.0), WIDE, THETA, 5).gradients
    np.testing.assert_array_equal(gradients, np.arange(6))


def test_a_relocated_admm_keeps_its_multiplier():
    rule = ADMM(1.0)
    oracle = Oracle(WIDE, THETA)
    state = rule.step(oracle, rule.init(oracle, oracle.start))
    moved = rule.relocate(oracle, state, jnp.zeros(60))
    assert rule.loss(oracle, moved) == pytest.approx(float(WIDE.loss(jnp.zeros(60), THETA)))
    np.testing.assert_array_equal(moved.multiplier, state.multiplier)


def test_a_problem_without_the_map_is_refused():
    with pytest.raises(ConfigurationError, match=r"ADMM .* Bowl: .*`smooth_prox`"):
        require_fit(ADMM(1.0), PROBLEMS["bowl"].problem)


def test_instances_do_not_share_multipliers():
    thetas = draw(WIDE, 3, named_key(0, "data"))
    together = rollouts(ADMM(1.0), WIDE, thetas, 20, 3).losses
    alone = rollout(ADMM(1.0), WIDE, instance(thetas, 2), 20).losses
    np.testing.assert_allclose(together[2], alone, rtol=1e-10)
