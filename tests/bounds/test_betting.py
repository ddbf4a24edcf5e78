"""Bounds by betting against high-precision arithmetic, other bounds, and coverage."""

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from surestep.base.errors import ConfigurationError
from surestep.bounds.betting import Bet, mean_uppers, tuned_bets
from surestep.bounds.kl import binomial_upper, mean_upper

mpmath.mp.dps = 60
values = st.lists(
    st.floats(0, 1) | st.floats(0, 1e-9) | st.floats(1 - 1e-12, 1) | st.sampled_from([0.0, 1.0]),
    min_size=1,
    max_size=30,
)
sizes = st.floats(1e-3, 10) | st.floats(1e-9, 1e12)
bets = st.lists(sizes, min_size=1, max_size=4).map(
    lambda some: tuple(Bet(size, 1 / len(some)) for size in some)
)
levels = st.floats(-30, -0.01) | st.floats(-1e-6, -1e-9)


def capital(m, seen, some):
    """What the bets make of the capital if the mean is said to be below `m`, exactly."""
    m, total = mpmath.mpf(m), mpmath.mpf(0)
    for bet in some:
        size = mpmath.mpf(bet.size)
        if m < 1:
            size = min(size, mpmath.mpf(0.999) / (1 - m))
        one = mpmath.mpf(bet.weight)
        for x in seen:
            one *= 1 + size * (m - mpmath.mpf(x))
        total += one
    return total


@settings(max_examples=300, deadline=None)
@given(values, levels, bets)
def test_the_bound_is_sure_and_tight(seen, log_level, some):
    bound = float(mean_uppers(np.array(seen), log_level, some))
    assert np.mean(seen) * (1 - 1e-12) <= bound <= 1
    wanted = mpmath.exp(-mpmath.mpf(log_level))
    # Sure: at the bound the exact capital has reached what is rejected with.
    assert bound == 1 or capital(bound, seen, some) >= wanted
    # Tight: a little below it has not, or only by what rounding may take.
    below = bound * (1 - 1e-6) - 1e-12
    assert below < 0 or capital(below, seen, some) < wanted * (1 + mpmath.mpf(1e-6))


@settings(max_examples=100, deadline=None)
@given(values, bets, st.floats(0, 1), st.floats(0, 1))
def test_the_capital_rises_with_the_mean_that_is_denied(seen, some, one, other):
    low, high = sorted((one, other))
    assert capital(low, seen, some) <= capital(high, seen, some) * (1 + mpmath.mpf(10) ** -40)


def test_closed_forms():
    # One value of 0, half of what may be bet: 1 + m / (2 (1 - m)) = 20.
    assert float(mean_uppers(np.zeros(1), -np.log(20), (Bet(19.5),))) == pytest.approx(38 / 39)
    # Zeros and the largest bet: (1 - m)^N = level, as for coins, but for a thousandth.
    exact = float(binomial_upper(0, 50, 0.01))
    assert float(mean_uppers(np.zeros(50), np.log(0.01), (Bet(1e3),))) == pytest.approx(exact, 2e-3)
    # Values that are all the same leave (1 + c (m - x))^N.
    found = float(mean_uppers(np.full(100, 0.3), -6.0, (Bet(0.8),)))
    assert found == pytest.approx(0.3 + np.expm1(0.06) / 0.8)
    # Nothing is bound by what can reject nothing.
    assert float(mean_uppers(np.ones(10), -1.0, (Bet(1.0),))) == 1.0


@pytest.mark.parametrize("size", [1, 7, 250, 5000])
def test_rows_are_bounded_each_by_itself(size):
    random = np.random.default_rng(0)
    seen = random.beta(0.5, 3, (2, 60, size))
    log_levels = -random.uniform(1, 20, (2, 60))
    some = (Bet(0.5, 0.6), Bet(2.0, 0.4))
    together = mean_uppers(seen, log_levels, some)
    alone = [
        [float(mean_uppers(row, level, some)) for row, level in zip(rows, ls, strict=True)]
        for rows, ls in zip(seen, log_levels, strict=True)
    ]
    np.testing.assert_allclose(together, alone, rtol=1e-9)
    assert mean_uppers(seen[:, :0], log_levels[:, :0], some).shape == (2, 0)


def test_levels_that_underflow_certify_nothing_and_break_nothing():
    found = mean_uppers(np.zeros((2, 10)), np.array([-3.0, -1e5]), (Bet(1.0),))
    assert found[0] < 1
    assert found[1] == pytest.approx(1)


def few_kinds(random, chances, kinds):
    return lambda shape: random.choice(kinds, shape, p=chances)


@pytest.mark.parametrize("law", ["coins", "three kinds", "rare and large", "beta"])
def test_coverage(law):
    """False at most as often as the level says, for every kind of bet."""
    random = np.random.default_rng(3)
    draw, mean = {
        "coins": (lambda shape: (random.random(shape) < 0.1).astype(float), 0.1),
        "three kinds": (few_kinds(random, [0.6, 0.3, 0.1], [0.0, 0.4, 1.0]), 0.22),
        "rare and large": (few_kinds(random, [0.95, 0.05], [0.02, 1.0]), 0.069),
        "beta": (lambda shape: random.beta(2, 6, shape), 0.25),
    }[law]
    level, repeats, size = 0.2, 4000, 30
    seen = draw((repeats, size))
    noise = 4 * np.sqrt(level / repeats)
    honest = tuned_bets(draw(40), size, np.log(level))
    for some in (honest, (Bet(0.1),), (Bet(1.0),), (Bet(1e9),), (Bet(0.3, 0.5), Bet(3.0, 0.5))):
        false = np.mean(mean_uppers(seen, np.log(level), some) < mean * (1 - 1e-12))
        assert false <= level + noise


def test_bets_that_are_tuned_on_values_like_these_are_tighter_than_relative_entropy():
    random = np.random.default_rng(0)
    size, level = 250, np.exp(-6.0)
    for a, b, part in [(20, 20, 0.35), (2, 5, 0.5), (0.1, 2, 0.7)]:
        some = tuned_bets(random.beta(a, b, 250), size, np.log(level))
        seen = random.beta(a, b, (50, size))
        wide = np.mean(mean_upper(seen.mean(axis=1), size, level) - seen.mean(axis=1))
        assert np.mean(mean_uppers(seen, np.log(level), some) - seen.mean(axis=1)) < part * wide


@pytest.mark.parametrize("chance", [0.0, 0.02, 0.3])
def test_bets_for_coins_lose_little_to_the_exact_bound(chance):
    random = np.random.default_rng(1)
    size, level = 250, np.exp(-6.0)
    # A pilot so small that it may have seen no failure at all.
    some = tuned_bets((random.random(40) < chance).astype(float), size, np.log(level))
    seen = (random.random((100, size)) < chance).astype(float)
    exact = binomial_upper(seen.sum(axis=1), size, level)
    found = mean_uppers(seen, np.log(level), some)
    assert np.all(found >= exact - 1e-9)
    assert np.mean(found - seen.mean(axis=1)) < 1.45 * np.mean(exact - seen.mean(axis=1))


@settings(max_examples=60, deadline=None)
@given(values, st.integers(1, 300), st.floats(-20, -0.1))
def test_tuned_bets_are_bets(seen, size, log_level):
    some = tuned_bets(np.array(seen), size, log_level)
    assert sum(bet.weight for bet in some) <= 1 + 1e-12
    assert all(np.isfinite(bet.size) and bet.size > 0 for bet in some)
    assert float(mean_uppers(np.array(seen), log_level, some)) <= 1


@pytest.mark.parametrize(
    "call",
    [
        lambda: mean_uppers(np.array([0.5, 1.2]), -1.0, (Bet(1.0),)),
        lambda: mean_uppers(np.array([0.5, np.nan]), -1.0, (Bet(1.0),)),
        lambda: mean_uppers(np.array([]), -1.0, (Bet(1.0),)),
        lambda: mean_uppers(np.array([0.5]), 0.0, (Bet(1.0),)),
        lambda: mean_uppers(np.array([0.5]), np.nan, (Bet(1.0),)),
        lambda: mean_uppers(np.array([0.5]), -1.0, ()),
        lambda: mean_uppers(np.array([0.5]), -1.0, (Bet(0.0),)),
        lambda: mean_uppers(np.array([0.5]), -1.0, (Bet(np.inf),)),
        lambda: mean_uppers(np.array([0.5]), -1.0, (Bet(np.nan),)),
        lambda: mean_uppers(np.array([0.5]), -1.0, (Bet(1.0, 0.6), Bet(2.0, 0.6))),
        lambda: mean_uppers(np.array([0.5]), -1.0, (Bet(1.0, -0.1),)),
    ],
)
def test_nonsense_is_refused(call):
    with pytest.raises(ConfigurationError):
        call()
