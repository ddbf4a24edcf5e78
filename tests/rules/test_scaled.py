"""Scaled rules: scales of 1 change nothing; others are the same rule in another metric."""

import jax.numpy as jnp
import numpy as np
import pytest

from support.catalogue import PROBLEMS, WIDE
from support.traced import trace
from surestep.base.errors import ConfigurationError
from surestep.base.keys import named_key
from surestep.problem.oracle import Oracle
from surestep.rules import (
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
    PrimalDual,
    QuasiNewton,
    Scaled,
    ScaledFista,
    Started,
)
from surestep.rules.base import hyper_of

REGRESSION, LASSO = PROBLEMS["regression"], PROBLEMS["lasso"]
STEP = float(1 / REGRESSION.smoothness)
SCALES = np.random.default_rng(0).uniform(-0.7, 0.7, 6)

RULES = {
    "heavy ball": (HeavyBall(STEP, 0.6), REGRESSION),
    "conjugate gradients": (ConjugateGradients(), REGRESSION),
    "Nesterov": (Nesterov(STEP), REGRESSION),
    "Nesterov, own step": (NesterovPerInstance(), REGRESSION),
    "Adam": (Adam(0.05), REGRESSION),
    "L-BFGS": (LBFGS(), REGRESSION),
    "quasi-Newton": (QuasiNewton(), REGRESSION),
    "FISTA with restart": (FistaWithRestart(float(1 / LASSO.smoothness)), LASSO),
}


def sampled(entry, seed=1):
    return entry.problem.sample(named_key(seed, "scaled"))


@pytest.mark.parametrize("name", RULES)
def test_untrained_scales_and_starts_change_nothing(name):
    rule, entry = RULES[name]
    plain = trace(rule, entry.problem, sampled(entry), 12)
    both = Started.around(Scaled.around(rule, entry.dimension), entry.dimension)
    for found, wanted in zip(trace(both, entry.problem, sampled(entry), 12), plain, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=1e-13)
    assert hyper_of(both).size == 2 * entry.dimension


def test_scaled_conjugate_gradients_are_preconditioned_ones():
    theta = sampled(REGRESSION)
    scaled = Scaled(ConjugateGradients(), jnp.asarray(SCALES))
    metric = PreconditionedConjugateGradients(jnp.asarray(np.exp(2 * SCALES)))
    found = trace(scaled, REGRESSION.problem, theta, 6)
    wanted = trace(metric, REGRESSION.problem, theta, 6)
    np.testing.assert_allclose(found[0], wanted[0], rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(found[1], wanted[1], rtol=1e-10)
    np.testing.assert_array_equal(found[2:], wanted[2:])


def test_scaled_gradient_descent_has_one_step_size_a_coordinate():
    theta = sampled(REGRESSION)
    A, b = np.asarray(REGRESSION.problem.matrix), np.asarray(theta)
    x, expected = np.zeros(6), []
    for _ in range(5):
        expected.append(x)
        x = x - 0.2 * STEP * np.exp(2 * SCALES) * (A.T @ (A @ x - b))
    rule = Scaled(GradientDescent(0.2 * STEP), jnp.asarray(SCALES))
    found = trace(rule, REGRESSION.problem, theta, 4)[0]
    np.testing.assert_allclose(found, expected, rtol=1e-11, atol=1e-14)


def test_scaled_fista_with_restart_is_the_scaled_fista_of_the_opponents():
    theta = sampled(LASSO)
    scales = np.random.default_rng(1).uniform(-1, 0, 16)
    step = float(1 / LASSO.smoothness)
    ours = Scaled(FistaWithRestart(step), jnp.asarray(scales))
    theirs = ScaledFista(jnp.asarray(step * np.exp(2 * scales)))
    np.testing.assert_allclose(
        trace(ours, LASSO.problem, theta, 60)[0],
        trace(theirs, LASSO.problem, theta, 60)[0],
        rtol=1e-8,
        atol=1e-10,
    )


@pytest.mark.parametrize("seed", range(3))
def test_the_lassos_minimiser_stays_where_it_is_in_every_metric(seed):
    theta = sampled(LASSO, seed)
    plain = FistaWithRestart(float(1 / LASSO.smoothness))
    x, losses, _, _ = trace(plain, LASSO.problem, theta, 5000)
    assert losses[-1] == pytest.approx(LASSO.problem.minimum(theta), rel=1e-12)
    minimiser = x[-1]
    # Independent of the rule: the optimality conditions of the lasso.
    correlation = WIDE.T @ (WIDE @ minimiser - np.asarray(theta))
    active = minimiser != 0
    np.testing.assert_allclose(correlation[active], -0.7 * np.sign(minimiser[active]), atol=1e-9)
    assert np.all(np.abs(correlation) <= 0.7 + 1e-9)
    scales = np.random.default_rng(seed).normal(size=16)
    rule = Scaled(Fista(float(1 / LASSO.smoothness)), jnp.asarray(scales))
    oracle = Oracle(LASSO.problem, theta)
    stayed = rule.step(oracle, rule.init(oracle, jnp.asarray(minimiser)))
    np.testing.assert_allclose(stayed.x, minimiser, atol=1e-9)
    moved = rule.step(oracle, rule.init(oracle, jnp.asarray(minimiser + 0.1)))
    assert np.max(np.abs(np.asarray(moved.x) - minimiser - 0.1)) > 1e-3


def test_smoothness_in_scaled_coordinates_is_large_enough():
    """Nesterov's own step, one over it, still converges."""
    theta = sampled(REGRESSION)
    rule = Scaled(NesterovPerInstance(), jnp.asarray(SCALES))
    _, losses, _, _ = trace(rule, REGRESSION.problem, theta, 3000)
    assert losses[-1] == pytest.approx(REGRESSION.problem.minimum(theta), rel=1e-9)


def test_relocating_moves_the_point_in_the_problems_coordinates():
    theta, elsewhere = sampled(REGRESSION), jnp.linspace(0.0, 1.0, 6)
    rule = Scaled(HeavyBall(STEP, 0.5), jnp.asarray(SCALES))
    oracle = Oracle(REGRESSION.problem, theta)
    for state in (
        rule.relocate(oracle, rule.init(oracle, oracle.start), elsewhere),
        rule.resume(oracle, elsewhere),
    ):
        np.testing.assert_allclose(state.x, elsewhere, rtol=1e-14)
        assert rule.loss(oracle, state) == pytest.approx(float(oracle.unmetered_value(elsewhere)))


def test_what_has_no_scaled_form_is_refused():
    rule = Scaled.around(PrimalDual(1.0), 6)
    with pytest.raises(ConfigurationError, match="cannot be scaled"):
        trace(rule, REGRESSION.problem, sampled(REGRESSION), 1)
