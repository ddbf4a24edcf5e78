"""Sizes: the power they are planned for is the one they have."""

import numpy as np
import pytest
from scipy import stats

from surestep.base.errors import ConfigurationError
from surestep.bounds.kl import binomial_upper
from surestep.bounds.sizes import best_failure, likely_failure, needed_size, power_of
from surestep.bounds.uniform import quantile_uppers


@pytest.mark.parametrize("weight", [1.0, 0.9, 0.01])
def test_without_failures_it_is_the_smallest_size(weight):
    size = needed_size(0.01, 0.05, weight)
    # Without failures the bound is 1 - level^(1/n).
    assert size == int(np.ceil(np.log(0.05 * weight) / np.log(0.99)))
    assert best_failure(size, 0.05, weight) <= 0.01 < best_failure(size - 1, 0.05, weight)


def powers(failure, level, observed, sizes):
    """By adding up what every number of failures certifies."""
    found = []
    for size in sizes:
        counts = np.arange(size + 1)
        certified = binomial_upper(counts, size, level) <= failure
        found.append(stats.binom.pmf(counts, size, observed) @ certified)
    return np.array(found)


@pytest.mark.parametrize(
    ("failure", "observed", "power"),
    [(0.05, 0.02, 0.9), (0.05, 0.02, 0.5), (0.05, 0.04, 0.9), (0.2, 0.01, 0.99), (0.01, 1e-4, 0.9)],
)
def test_it_is_the_smallest_size_from_which_on_the_power_is_there(failure, observed, power):
    size = needed_size(failure, 0.05, 0.3, observed, power)
    after = powers(failure, 0.015, observed, range(size, size + 40))
    assert np.all(after >= power * (1 - 1e-9))
    assert powers(failure, 0.015, observed, [size - 1])[0] < power
    assert power_of(size, failure, 0.05, 0.3, observed) == pytest.approx(after[0], rel=1e-9)
    assert likely_failure(size, 0.05, 0.3, observed, power) <= failure


def test_simulated_certificates_succeed_as_often_as_was_planned():
    random, runs = np.random.default_rng(0), 4000
    size = needed_size(0.05, 0.05, 0.9, observed=0.02)
    failures = random.binomial(size, 0.02, runs)
    reached = int(np.sum(binomial_upper(failures, size, 0.045) <= 0.05))
    planned = power_of(size, 0.05, 0.05, 0.9, 0.02)
    assert planned >= 0.9
    assert stats.binomtest(reached, runs, planned).pvalue > 1e-3


def test_order_statistics_come_below_the_quantile_as_often_as_was_planned():
    """At least 95 % of new instances, after as many iterations as 99 % of all instances take."""
    random, runs, level = np.random.default_rng(1), 1500, 0.01
    size = needed_size(0.05, level, 1.0, observed=0.01)
    least = needed_size(0.05, level, 1.0)
    # Times that are uniform: the 99 % quantile is 0.99.
    times = random.random((runs, size))
    certified = np.array([quantile_uppers(t[None], 0.95, np.zeros(1), level)[0] for t in times])
    assert np.all(np.isfinite(certified))
    planned = power_of(size, 0.05, level, 1.0, 0.01)
    assert planned >= 0.9
    assert stats.binomtest(int(np.sum(certified <= 0.99)), runs, planned).pvalue > 1e-3
    assert stats.binomtest(int(np.sum(certified < 0.95)), runs, level, "greater").pvalue > 1e-3
    few = random.random((1, least))
    assert np.isfinite(quantile_uppers(few, 0.95, np.zeros(1), level)[0])
    assert np.isinf(quantile_uppers(few[:, 1:], 0.95, np.zeros(1), level)[0])


def test_impossible_sizes_are_refused():
    with pytest.raises(ConfigurationError, match="cannot be certified"):
        needed_size(0.01, 0.05, 0.9, observed=0.02)
    with pytest.raises(ConfigurationError, match="instances would be needed"):
        needed_size(1e-9, 0.05, 1.0, limit=1000)
    with pytest.raises(ConfigurationError, match="instances would be needed"):
        needed_size(0.02, 0.05, 1.0, observed=0.0199, limit=10_000)
    with pytest.raises(ConfigurationError, match="power"):
        needed_size(0.02, 0.05, 1.0, power=1.0)
    with pytest.raises(ConfigurationError, match="weight"):
        best_failure(10, 0.05, 0.0)
