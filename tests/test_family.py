"""The bound for exponential families: by hand, by brute force, and its pitfalls."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize
from scipy.special import logsumexp

from surestep.bounds import geometric_lambdas, grid_bound, normalised, sublevel_bound
from surestep.errors import ConfigurationError

# Three samples, four train instances, two lambdas: everything can be written out.
PRIOR_RISKS = np.array([1.0, 2.0, 4.0])
RISKS = np.array([0.5, 0.25, 3.0])
MOMENTS = np.array([4.0, 9.0, 1.0])
LAMBDAS = np.array([0.5, 2.0])
EPSILON = 0.05


def by_hand(lambda_):
    """F(lambda) written out with plain exponentials."""
    weights = [2.718281828459045**-1, 2.718281828459045**-2, 2.718281828459045**-4]
    total = weights[0] + weights[1] + weights[2]
    expectation = 0.0
    for weight, risk, moment in zip(weights, RISKS, MOMENTS, strict=True):
        exponent = -lambda_ * risk - lambda_**2 / 2 * moment / 4
        expectation += weight / total * np.exp(exponent)
    return -(np.log(expectation) - np.log(2 / 0.05)) / lambda_


def test_three_samples_by_hand():
    bound = sublevel_bound(-PRIOR_RISKS, RISKS, MOMENTS, 4, LAMBDAS, EPSILON)
    values = np.array([by_hand(0.5), by_hand(2.0)])
    np.testing.assert_allclose(bound.values, values, rtol=0, atol=1e-12)
    assert bound.value == pytest.approx(values.min(), abs=1e-12)
    assert bound.lambda_ == LAMBDAS[np.argmin(values)]
    # These digits were computed separately, with forty-digit arithmetic (see the test below).
    posterior = np.exp(bound.log_posterior)
    lam = bound.lambda_
    gibbs = np.exp(-PRIOR_RISKS - lam * RISKS - lam**2 / 2 * MOMENTS / 4)
    np.testing.assert_allclose(posterior, gibbs / gibbs.sum(), rtol=1e-13)
    assert bound.mode == int(np.argmax(gibbs))


def test_the_prior_must_be_normalised():
    """Shifting all log-weights changes no prior, so it may not change the bound."""
    bound = sublevel_bound(-PRIOR_RISKS, RISKS, MOMENTS, 4, LAMBDAS, EPSILON)
    for shift in (-700.0, -3.0, 5.0, 700.0):
        moved = sublevel_bound(-PRIOR_RISKS + shift, RISKS, MOMENTS, 4, LAMBDAS, EPSILON)
        np.testing.assert_allclose(moved.values, bound.values, rtol=1e-12)
    # What the public code computes: no normalisation, and another number.
    exponents = -np.outer(LAMBDAS, RISKS) - np.outer(LAMBDAS**2 / 2, MOMENTS / 4)
    wrong = -(logsumexp(-PRIOR_RISKS + exponents, axis=1) - np.log(2 / EPSILON)) / LAMBDAS
    assert np.all(np.abs(wrong - bound.values) > 0.1)


def test_one_sample_is_a_plain_chernoff_bound():
    bound = sublevel_bound(np.array([-123.0]), np.array([0.3]), np.array([2.0]), 10, LAMBDAS, 0.1)
    expected = 0.3 + LAMBDAS * 2.0 / 20 + np.log(2 / 0.1) / LAMBDAS
    np.testing.assert_allclose(bound.values, expected, rtol=1e-13)


def test_the_grid_is_paid_for_and_not_refined():
    coarse = sublevel_bound(-PRIOR_RISKS, RISKS, MOMENTS, 4, LAMBDAS, EPSILON)
    fine_grid = np.unique(np.concatenate([LAMBDAS, np.geomspace(0.1, 10, 500)]))
    fine = sublevel_bound(-PRIOR_RISKS, RISKS, MOMENTS, 4, fine_grid, EPSILON)
    at = np.searchsorted(fine_grid, LAMBDAS)
    price = np.log(len(fine_grid) / 2) / LAMBDAS
    np.testing.assert_allclose(fine.values[at], coarse.values + price, rtol=1e-12)
    assert coarse.value in coarse.values
    assert coarse.lambda_ in LAMBDAS


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 6))
def test_donsker_varadhan(seed, number):
    """No posterior does better in `Q[risk] + (KL + log(K/eps))/lambda + ...` than Gibbs."""
    random = np.random.default_rng(seed)
    log_prior = normalised(random.normal(size=number))
    risks, moments = random.random(number) * 3, random.random(number) * 5
    lambdas = np.array([0.7])
    bound = sublevel_bound(log_prior, risks, moments, 20, lambdas, 0.1)

    def objective(log_posterior):
        log_q = log_posterior - logsumexp(log_posterior)
        q = np.exp(log_q)
        kl = np.sum(q * (log_q - log_prior))
        return q @ risks + (kl + np.log(1 / 0.1)) / 0.7 + 0.7 / 40 * q @ moments

    found = optimize.minimize(objective, random.normal(size=number), tol=1e-12)
    assert bound.value == pytest.approx(found.fun, rel=1e-6)
    assert objective(bound.log_posterior) == pytest.approx(bound.value, rel=1e-12)


def test_simulated_coverage_where_everything_is_known():
    """Losses uniform on [0, c_j]: p = 1, g = 1, all moments exact; false at most epsilon."""
    random = np.random.default_rng(1)
    scales = np.array([0.2, 0.5, 1.0])
    lambdas, size, epsilon = np.geomspace(1, 100, 10), 30, 0.3
    false = 0
    for _ in range(2000):
        losses = random.random((3, size)) * scales[:, None]
        bound = sublevel_bound(np.zeros(3), losses.mean(1), scales**2 / 3, size, lambdas, epsilon)
        truth = np.exp(bound.log_posterior) @ (scales / 2)
        false += truth > bound.value
    assert false <= epsilon * 2000


def test_weights_that_underflow_are_no_trouble():
    risks = np.array([1e5, 2e5, 3e5])
    bound = sublevel_bound(-risks, np.ones(3), np.ones(3), 10, np.array([1.0]), 0.05)
    assert np.isfinite(bound.value)
    assert bound.mode == 0


@pytest.mark.parametrize("epsilon", [0.0, 1.0, -0.1, float("nan")])
def test_epsilon_outside_its_range_is_refused(epsilon):
    with pytest.raises(ConfigurationError, match="epsilon"):
        sublevel_bound(-PRIOR_RISKS, RISKS, MOMENTS, 4, LAMBDAS, epsilon)


def test_priors_and_grids_that_make_no_sense_are_refused():
    with pytest.raises(ConfigurationError, match="at least one sample"):
        normalised(np.array([]))
    with pytest.raises(ConfigurationError, match="positive weight"):
        normalised(np.array([-np.inf, -np.inf]))
    with pytest.raises(ConfigurationError, match="positive weight"):
        normalised(np.array([0.0, np.nan]))
    with pytest.raises(ConfigurationError, match="centre"):
        geometric_lambdas(np.inf, 10, 5)
    with pytest.raises(ConfigurationError, match="first natural parameter"):
        grid_bound(np.zeros(2), np.ones((2, 1)), -np.ones((1, 1)), np.ones(1), 0.05)


def test_geometric_lambdas():
    lambdas = geometric_lambdas(2.0, 10.0, 5)
    np.testing.assert_allclose(lambdas[[0, 2, 4]], [0.2, 2.0, 20.0])
    np.testing.assert_allclose(np.diff(np.log(lambdas)), np.log(10) / 2)
