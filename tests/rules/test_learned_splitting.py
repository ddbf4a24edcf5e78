"""The learned splitting: untrained it is ADMM, and it converges whatever it learned."""

import jax.numpy as jnp
import numpy as np
import pytest

from support.catalogue import PROBLEMS, WIDE
from support.traced import trace
from surestep.base.errors import ConfigurationError
from surestep.base.keys import named_key
from surestep.rules import ADMM, LearnedSplitting, Scaled
from surestep.rules.base import hyper_of, require_fit

PROBLEM = PROBLEMS["lasso"].problem


def theta():
    return PROBLEM.sample(named_key(1, "splitting"))


@pytest.mark.parametrize(("penalty", "relaxation"), [(1.0, 1.6), (7.3, 1.0)])
def test_untrained_it_is_admm(penalty, relaxation):
    base = ADMM(penalty, relaxation)
    found = trace(LearnedSplitting.around(base, 5), PROBLEM, theta(), 20)
    for ours, wanted in zip(found, trace(base, PROBLEM, theta(), 20), strict=True):
        np.testing.assert_allclose(ours, wanted, rtol=1e-12, atol=1e-12)


def test_numbers_of_every_iteration_by_hand():
    """Unscaled multipliers, so that a change of the penalty needs no rescaling at all."""
    random = np.random.default_rng(0)
    penalties, relaxations = np.exp(random.normal(size=4)), random.uniform(0.5, 1.9, 4)
    rule = LearnedSplitting(jnp.asarray(np.log(penalties)), jnp.asarray(relaxations))
    b, lam = np.asarray(theta()), PROBLEM.weight
    x, dual, expected = np.ones(16), np.zeros(16), [np.ones(16)]
    for i in range(8):
        rho, alpha = penalties[min(i, 3)], relaxations[min(i, 3)]
        left = WIDE.T @ WIDE + rho * np.eye(16)
        smooth = np.linalg.solve(left, WIDE.T @ b + rho * x - dual)
        relaxed = alpha * smooth + (1 - alpha) * x
        moved = relaxed + dual / rho
        x = np.sign(moved) * np.maximum(np.abs(moved) - lam / rho, 0)
        dual = dual + rho * (relaxed - x)
        expected.append(x)
    found = trace(rule, PROBLEM, theta(), 8)[0]
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("seed", range(3))
def test_whatever_was_learned_it_ends_at_the_lassos_minimum(seed):
    """Scikit-learn's minimum; relaxations outside of what converges are cut."""
    random = np.random.default_rng(seed)
    log_penalties, relaxations = random.normal(scale=2.0, size=8), random.uniform(-3, 5, 8)
    # The last numbers serve for good: they decide how long it takes.
    log_penalties[-1], relaxations[-1] = 0.0, 5.0
    rule = LearnedSplitting(jnp.asarray(log_penalties), jnp.asarray(relaxations))
    _, losses, gradients, _ = trace(rule, PROBLEM, theta(), 4000)
    assert losses[-1] == pytest.approx(PROBLEM.minimum(theta()), rel=1e-9)
    assert np.all(np.diff(gradients) == 1)


def test_it_learns_two_numbers_an_iteration_and_says_what_it_needs():
    rule = LearnedSplitting.around(ADMM(1.0), 30)
    assert hyper_of(rule).size == 60
    with pytest.raises(ConfigurationError, match="smooth_prox"):
        require_fit(rule, PROBLEMS["bowl"].problem)
    with pytest.raises(ConfigurationError, match="cannot be scaled"):
        trace(Scaled.around(rule, 16), PROBLEM, theta(), 1)
