"""Events under laws near the certified one: high precision, actual laws, the sharpest of them."""

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq

from surestep.base.errors import ConfigurationError
from surestep.bounds.shift import (
    entropy_radius,
    entropy_upper,
    ratio_radius,
    ratio_upper,
    variation_radius,
    variation_upper,
)

mpmath.mp.dps = 60
probabilities = st.floats(0, 1) | st.floats(1e-300, 1e-6) | st.floats(1 - 1e-9, 1)
radii = st.floats(0, 5) | st.floats(1e-12, 1e-4)


def exact_kl(q, p):
    q, p = mpmath.mpf(q), mpmath.mpf(p)
    total = mpmath.mpf(0)
    if q > 0:
        total += q * mpmath.log(q / p) if p > 0 else mpmath.inf
    if q < 1:
        total += (1 - q) * mpmath.log((1 - q) / (1 - p)) if p < 1 else mpmath.inf
    return total


@settings(max_examples=300, deadline=None)
@given(probabilities, radii)
def test_the_inverse_of_relative_entropy_is_sure_and_tight(p, radius):
    found = float(entropy_upper(p, radius))
    assert p <= found <= 1
    assert found in (0, 1) or exact_kl(found, p) >= mpmath.mpf(radius)
    below = found - max(1e-7, 1e-4 * (found - p))
    assert below <= p or exact_kl(below, p) <= radius + 1e-9


@settings(max_examples=300, deadline=None)
@given(probabilities, st.floats(0, 1))
def test_radii_are_rounded_down(p, allowed):
    p, allowed = min(p, allowed), max(p, allowed)
    exact = mpmath.mpf(allowed) - mpmath.mpf(p)
    assert mpmath.mpf(float(variation_radius(p, allowed))) <= exact
    assert exact <= float(variation_radius(p, allowed)) + 1e-15
    entropy = float(entropy_radius(p, allowed))
    assert mpmath.mpf(entropy) <= exact_kl(allowed, p)
    assert np.isinf(entropy) or exact_kl(allowed, p) <= entropy * (1 + 1e-9) + 1e-14
    ratio = float(ratio_radius(p, allowed))
    assert ratio == 1 or np.isinf(ratio) or mpmath.mpf(ratio) * mpmath.mpf(p) <= allowed


def test_closed_forms():
    assert float(variation_upper(0.05, 0.02)) == pytest.approx(0.07, rel=1e-15)
    assert float(ratio_upper(0.05, 3.0)) == pytest.approx(0.15, rel=1e-15)
    assert float(ratio_upper(0.05, 30.0)) == float(variation_upper(0.5, 0.6)) == 1.0
    # Where the law lies on the event alone, its relative entropy is log(1 / p).
    assert float(entropy_upper(0.1, np.log(10) + 1e-9)) == 1.0
    assert float(entropy_upper(0.1, np.log(10) - 1e-3)) < 1.0
    assert float(entropy_upper(0.0, 3.0)) == 0.0
    assert float(entropy_upper(0.3, 0.0)) == pytest.approx(0.3, abs=1e-7)
    assert float(entropy_radius(0.1, 1.0)) == pytest.approx(np.log(10), rel=1e-10)
    assert np.isinf(ratio_radius(0.0, 0.5))
    # The duality of the supremum: the least over lambda of (r + log(1 - p + p e^lambda)) / lambda.
    lambdas = np.geomspace(1e-3, 30, 200_000)
    dual = np.min((0.1 + np.log1p(0.05 * np.expm1(lambdas))) / lambdas)
    assert float(entropy_upper(0.05, 0.1)) == pytest.approx(dual, rel=1e-6)


def some_law(random, chances, size):
    """A law somewhere else, sometimes far away."""
    other = random.dirichlet(np.full(len(chances), 0.3))
    mix = random.random() ** 3 * size
    return (1 - mix) * chances + mix * other


def test_no_law_that_is_near_makes_an_event_more_probable_than_its_bound():
    random = np.random.default_rng(0)
    for _ in range(2000):
        chances = random.dirichlet(np.ones(12))
        failed = random.random(12) < random.random()
        law = some_law(random, chances, 1.0)
        p, q = chances @ failed, law @ failed
        assert q <= variation_upper(min(p, 1), 0.5 * np.sum(np.abs(law - chances))) + 1e-12
        entropy = np.sum(np.where(law > 0, law * np.log(law / chances), 0.0))
        assert q <= entropy_upper(min(p, 1), max(entropy, 0.0)) + 1e-7
        assert q <= ratio_upper(min(p, 1), max(np.max(law / chances), 1.0)) + 1e-12


@pytest.mark.parametrize("p", [0.01, 0.05, 0.3])
def test_there_are_laws_that_reach_the_bounds(p):
    """What fails is made more frequent and the rest less, each in proportion."""
    chances = np.array([0.25 * p, 0.75 * p, 0.6 * (1 - p), 0.4 * (1 - p)])
    failed = np.array([1, 1, 0, 0])

    def tilted(q):
        return np.where(failed, chances * q / p, chances * (1 - q) / (1 - p))

    def entropy(q):
        return float(np.sum(tilted(q) * np.log(tilted(q) / chances)))

    for radius in (1e-3, 0.1, 0.5):
        law = tilted(p + radius)
        assert 0.5 * np.sum(np.abs(law - chances)) == pytest.approx(radius)
        assert law @ failed == pytest.approx(float(variation_upper(p, radius)), rel=1e-12)
        q = brentq(lambda q, r=radius: entropy(q) - r, p, 1 - 1e-12, xtol=1e-14)
        assert q == pytest.approx(float(entropy_upper(p, radius)), rel=1e-6)
    law = tilted(2 * p)
    assert np.max(law / chances) == pytest.approx(2)
    assert law @ failed == pytest.approx(float(ratio_upper(p, 2.0)))


def test_what_is_no_probability_or_no_radius_is_refused():
    with pytest.raises(ConfigurationError, match=r"in \[0, 1\]"):
        variation_upper(1.2, 0.1)
    with pytest.raises(ConfigurationError, match="at least 0"):
        entropy_upper(0.2, -0.1)
    with pytest.raises(ConfigurationError, match="at least 1"):
        ratio_upper(0.2, 0.5)
    with pytest.raises(ConfigurationError, match="at least the probability itself"):
        entropy_radius(0.2, 0.1)
