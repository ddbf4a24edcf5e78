"""The bound for exponential families: by hand, by brute force, and its pitfalls."""

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize
from scipy.special import logsumexp

from surestep.base.errors import ConfigurationError
from surestep.bounds import (
    Family,
    catoni_family,
    constant_goal_bound,
    convex_bound,
    geometric_lambdas,
    normalised,
    optimised_sublevel_bound,
    sublevel_family,
    worst_case_family,
)
from surestep.bounds.kl import binary_kl, kl_upper, log_kl_moment, pac_bayes_kl
from surestep.bounds.logarithms import log_sum_exp
from surestep.bounds.special_cases import best_lambda, quadratic
from surestep.train.sample import sublevel_risks

# Three samples, four train instances, two lambdas: everything can be written out.
PRIOR_RISKS = np.array([1.0, 2.0, 4.0])
RISKS = np.array([0.5, 0.25, 3.0])
MOMENTS = np.array([4.0, 9.0, 1.0])
LAMBDAS = np.array([0.5, 2.0])
EPSILON = 0.05


def sublevel_bound(log_prior, risks, moments, size, lambdas, epsilon):
    return sublevel_family(log_prior, risks, moments, size).minimise_on_set(lambdas, epsilon)


def by_hand(lambda_):
    """F(lambda) written out with plain exponentials."""
    weights = [2.718281828459045**-1, 2.718281828459045**-2, 2.718281828459045**-4]
    total = weights[0] + weights[1] + weights[2]
    expectation = 0.0
    for weight, risk, moment in zip(weights, RISKS, MOMENTS, strict=True):
        exponent = -lambda_ * risk - lambda_**2 / 2 * moment / 4
        expectation += weight / total * np.exp(exponent)
    return -(np.log(expectation) - np.log(2 / 0.05)) / lambda_


def test_three_samples_from_their_losses_with_forty_digits():
    """From a table of losses to the bound, in high precision, term by term."""
    mpmath.mp.dps = 40
    losses = np.array([[0.5, 1.0, 3.0, 0.25], [2.0, 0.125, 0.5, 9.0], [1.5, 1.5, 0.75, 0.5]])
    threshold = np.array([1.0, 2.0, 2.5, 1.0])
    p, prior_risks = np.array([0.75, 0.8, 0.95]), np.array([0.3, 1.2, 0.7])
    exact = []
    weights = [mpmath.exp(-mpmath.mpf(r)) for r in prior_risks]
    for lam in LAMBDAS:
        expectation = mpmath.mpf(0)
        for j in range(3):
            risk = moment = mpmath.mpf(0)
            for i in range(4):
                if losses[j, i] <= threshold[i]:
                    risk += mpmath.mpf(losses[j, i]) / 4 / mpmath.mpf(p[j])
                    moment += mpmath.mpf(threshold[i]) ** 2 / 4 / mpmath.mpf(p[j]) ** 2
            exponent = -lam * risk - mpmath.mpf(lam) ** 2 / 2 * moment / 4
            expectation += weights[j] / sum(weights) * mpmath.exp(exponent)
        exact.append(-(mpmath.log(expectation) - mpmath.log(2 / mpmath.mpf(0.05))) / lam)
    good = losses <= threshold
    moments = np.mean(np.where(good, threshold**2, 0), axis=1) / p**2
    risks = sublevel_risks(losses, threshold, p)
    bound = sublevel_bound(-prior_risks, risks, moments, 4, LAMBDAS, EPSILON)
    for found, wanted in zip(bound.values, exact, strict=True):
        assert abs(mpmath.mpf(found) - wanted) < 1e-12
    assert bound.value == min(bound.values)


def test_three_samples_by_hand():
    bound = sublevel_bound(-PRIOR_RISKS, RISKS, MOMENTS, 4, LAMBDAS, EPSILON)
    values = np.array([by_hand(0.5), by_hand(2.0)])
    np.testing.assert_allclose(bound.values, values, rtol=0, atol=1e-12)
    assert bound.value == pytest.approx(values.min(), abs=1e-12)
    assert bound.lambda_ == LAMBDAS[np.argmin(values)]
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


def false_share(normalise, repeats=600):
    """How often the bound is false for 300 samples whose losses are mostly 0 and rarely 1.

    All means and moments are known. With few instances some samples look perfect by luck, which is
    what the prior's normalisation has to pay for.
    """
    random = np.random.default_rng(1)
    number, size, chance, epsilon = 300, 20, 0.15, 0.3
    lambdas = np.array([20.0])
    shift = 0.0 if normalise else np.log(number)
    false = 0
    for _ in range(repeats):
        risks = random.binomial(size, chance, number) / size
        family = sublevel_family(np.zeros(number), risks, np.full(number, chance), size)
        # Weights of 1 instead of 1 / 300: kappa is too large by log 300.
        price = np.log(1 / epsilon) - shift
        false += chance > family.bound(20.0, price)
    assert sublevel_bound(np.zeros(2), np.zeros(2), np.ones(2), 5, lambdas, epsilon).value > 0
    return false / repeats, epsilon


def test_simulated_coverage_where_everything_is_known():
    share, epsilon = false_share(normalise=True)
    assert share <= epsilon
    # The simulation can tell: without the normalisation the bound is false too often.
    share, epsilon = false_share(normalise=False)
    assert share > epsilon


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
        Family(np.zeros(2), np.ones((2, 1)), lambda _: -np.ones(1)).bound(1.0, 3.0)


def test_geometric_lambdas():
    lambdas = geometric_lambdas(2.0, 10.0, 5)
    np.testing.assert_allclose(lambdas[[0, 2, 4]], [0.2, 2.0, 20.0])
    np.testing.assert_allclose(np.diff(np.log(lambdas)), np.log(10) / 2)


PRICE = np.log(2 / EPSILON)


def posterior_bound(family, log_q, lambda_, price):
    """The theorem itself, for any posterior: risk from `Q[<eta, T>] <= KL + price`."""
    q = np.exp(log_q)
    eta = family.natural(lambda_)
    rest = q @ family.statistics[:, 1:] @ eta[1:]
    kl = np.sum(q * (log_q - normalised(family.log_prior)))
    return -(q @ family.statistics[:, 0]) + (kl + price - rest) / eta[0]


def test_catoni_in_its_usual_form():
    family = catoni_family(-PRIOR_RISKS, RISKS, 3.5, 40)
    log_q = normalised(np.array([0.3, -0.2, 0.9]))
    q = np.exp(log_q)
    kl = np.sum(q * (log_q - normalised(-PRIOR_RISKS)))
    lam = 0.8
    usual = q @ RISKS + (kl + np.log(1 / 0.05) + lam**2 * 3.5**2 / (8 * 40)) / lam
    assert posterior_bound(family, log_q, lam, np.log(1 / 0.05)) == pytest.approx(usual, rel=1e-13)
    assert family.bound(lam, np.log(1 / 0.05)) <= usual


def test_worst_case_in_its_usual_form():
    factors = np.array([0.5, 1.0, 2.0])
    family = worst_case_family(-PRIOR_RISKS, RISKS, factors, 7.0, 40)
    log_q = normalised(np.array([0.3, -0.2, 0.9]))
    q, lam = np.exp(log_q), 0.8
    kl = np.sum(q * (log_q - normalised(-PRIOR_RISKS)))
    usual = q @ RISKS + (kl + PRICE) / lam + lam / (2 * 40) * (q @ factors**2) * 7.0
    assert posterior_bound(family, log_q, lam, PRICE) == pytest.approx(usual, rel=1e-13)


def test_the_optimised_form_is_the_minimum_over_lambda():
    size, kl, risk, moment = 40, 0.7, 0.4, 3.0

    def at(lam):
        return risk + (kl + PRICE) / lam + lam / (2 * size) * moment

    best = best_lambda(moment, kl, size, PRICE)
    exact = optimised_sublevel_bound(risk, moment, kl, size, PRICE, 1.0)
    assert at(best) == pytest.approx(exact, rel=1e-13)
    searched = min(at(lam) for lam in np.geomspace(0.01, 100, 100_001))
    assert searched == pytest.approx(exact, rel=1e-7)
    assert searched >= exact
    # On a geometric set the nearer member is at most as bad as the factor says, for any offset.
    ratio = 1.7
    allowed = optimised_sublevel_bound(risk, moment, kl, size, PRICE, ratio)
    worst = max(
        min(at(best * ratio ** (i + shift)) for i in (-1, 0, 1)) for shift in np.linspace(0, 1, 101)
    )
    assert worst <= allowed * (1 + 1e-12)
    assert worst == pytest.approx(allowed, rel=1e-6)


def test_the_constant_goal_form():
    value = constant_goal_bound(0.4, 2.0, 0.9, 0.7, 40, PRICE, 1.0)
    assert value == pytest.approx(0.4 + 2.0 / 0.9 * np.sqrt(2 * (0.7 + PRICE) / 40), rel=1e-13)


def test_the_convex_form_gives_pac_bayes_kl_and_pinsker():
    size, kl, mean = 60, 0.8, 0.2
    moment = log_kl_moment(size)
    through_kl = convex_bound(lambda r, m: float(binary_kl(m, r)), moment, mean, kl, size, EPSILON)
    assert through_kl == pytest.approx(float(pac_bayes_kl(mean, kl, size, EPSILON)), rel=1e-9)
    # 2 (r - m)^2 <= kl(m, r), so the same moment serves; the closed form is a square root.
    radius = (kl + np.log(1 / EPSILON) + moment) / size
    through_square = convex_bound(lambda r, m: 2 * (r - m) ** 2, moment, mean, kl, size, EPSILON)
    assert through_square == pytest.approx(mean + np.sqrt(radius / 2), rel=1e-12)
    assert through_kl <= through_square
    assert convex_bound(lambda r, m: 0.0, moment, mean, kl, size, EPSILON) == 1.0
    assert float(kl_upper(mean, radius)) == pytest.approx(through_kl, rel=1e-9)


def test_an_interval_pays_for_its_cover_and_finds_the_minimum():
    family = sublevel_family(-PRIOR_RISKS, RISKS, MOMENTS, 4)
    low, high, slope = 0.2, 4.0, 10.0
    found = family.minimise_on_interval(low, high, slope, EPSILON)
    pieces = round(slope * (high - low))
    price = np.log(pieces / EPSILON) + slope * (high - low) / pieces
    fine = min(family.bound(x, price) for x in np.linspace(low, high, 20_001))
    assert found.value == pytest.approx(fine, rel=1e-7)
    assert found.value <= fine * (1 + 1e-12)
    assert low <= found.lambda_ <= high
    # No other number of pieces is much cheaper.
    for other in (1, pieces // 3, 3 * pieces):
        assert family.minimise_on_interval(low, high, slope, EPSILON, other).value >= (
            found.value * (1 - 1e-9)
        )
    with pytest.raises(ConfigurationError, match="interval"):
        family.minimise_on_interval(2.0, 1.0, slope, EPSILON)


def test_coverage_of_an_interval_where_the_slope_is_known():
    """Losses in [0, 1], Catoni: |R - mean| <= 1 and the moment is 1, so the slope is bounded."""
    random = np.random.default_rng(2)
    means, size, epsilon = np.array([0.3, 0.5]), 40, 0.3
    low, high = 5.0, 80.0
    slope = 1 + high / 4 / size
    false = 0
    for _ in range(500):
        losses = random.random((2, size)) < means[:, None]
        family = catoni_family(np.zeros(2), losses.mean(1), 1.0, size)
        found = family.minimise_on_interval(low, high, slope, epsilon)
        false += np.exp(found.log_posterior) @ means > found.value
    assert false <= epsilon * 500


def test_natural_parameters_of_the_paper():
    np.testing.assert_array_equal(quadratic(0.5)(3.0), [3.0, -4.5])


@pytest.mark.parametrize(
    "terms",
    [
        [1e4, 1e4 - 1],
        [-1e4, -1e4],
        [-np.inf, 0.3],
        [-np.inf, -np.inf],
        [np.inf, 0.0],
        [[0.1, 5], [2, -np.inf]],
    ],
)
def test_sums_of_exponentials(terms):
    np.testing.assert_allclose(log_sum_exp(np.array(terms)), logsumexp(terms, axis=0), rtol=1e-14)


def test_statistics_beyond_the_largest_number_make_bounds_infinite_and_nothing_else():
    prior, lambdas = np.log([0.2, 0.8]), np.array([0.5, 2.0])
    for moments in ([np.inf, np.inf], [1e308, np.inf]):
        found = sublevel_family(prior, np.ones(2), np.array(moments), 10)
        bound = found.minimise_on_set(1e140 * lambdas, 0.05)
        assert bound.value == np.inf
        np.testing.assert_allclose(bound.log_posterior, prior)
        assert found.point_bound(0, 1e140 * lambdas, 0.05) == np.inf
    # One that is finite carries all the weight, and the bound is its own.
    mixed = sublevel_family(prior, np.ones(2), np.array([np.inf, 1.0]), 10)
    bound = mixed.minimise_on_set(lambdas, 0.05)
    assert bound.mode == 1
    assert np.exp(bound.log_posterior[0]) == 0
    alone = min((np.log(2 / 0.05) - np.log(0.8) + lam + 0.05 * lam**2) / lam for lam in lambdas)
    assert bound.value == pytest.approx(alone)
