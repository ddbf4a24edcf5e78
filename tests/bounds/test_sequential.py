"""Evidence that may be looked at after every outcome."""

import numpy as np
import pytest
from scipy import stats

from surestep.base.errors import ConfigurationError
from surestep.bounds.sequential import (
    Bets,
    SequentialTest,
    log_wealth,
    probability_lower,
)

LEVELS = (0.04, 0.01)
CLAIMED = 0.9
TEST = SequentialTest.guided(CLAIMED, 95, 5, LEVELS)
LONG = 400


def counted(random, probability, repeats, length=LONG):
    """Failures so far in simulated courses, from the first outcome on."""
    return np.cumsum(random.random((repeats, length)) >= probability, axis=1)


def table(decided):
    """Whether counts decide: by the number of outcomes (from 1 on) and of failures."""
    number = np.arange(1, LONG + 1)[:, None]
    failures = np.arange(LONG + 1)[None]
    return decided(np.maximum(number - failures, 0), failures) & (failures <= number)


def test_the_wealth_is_the_product_of_what_every_bet_wins_or_loses():
    bets = Bets((0.3, 1.0), (0.6, 0.4))
    wealths = np.ones(2)
    for success in (1, 0, 1, 1):
        for i, stake in enumerate(bets.stakes):
            wealths[i] *= 1 + stake / 0.8 * (success - 0.8)
    wanted = np.log(wealths @ bets.weights)
    assert log_wealth(bets, 0.8, 3, 1) == pytest.approx(wanted, abs=1e-8)
    assert log_wealth(bets, 0.8, 3, 1) < wanted  # rounded down


@pytest.mark.parametrize("size", [1, 7, 200])
def test_bets_are_fair_where_the_claim_is_just_wrong_and_lose_where_it_is_more_wrong(size):
    counts = np.arange(size + 1)
    wealth = np.exp(log_wealth(TEST.proving, CLAIMED, counts, size - counts))
    mean = stats.binom.pmf(counts, size, CLAIMED) @ wealth
    assert mean == pytest.approx(1.0, abs=1e-6)
    assert stats.binom.pmf(counts, size, 0.85) @ wealth < 1
    other = np.exp(log_wealth(TEST.refuting, 1 - CLAIMED, size - counts, counts))
    assert stats.binom.pmf(counts, size, CLAIMED) @ other == pytest.approx(1.0, abs=1e-6)
    assert stats.binom.pmf(counts, size, 0.95) @ other < 1


def test_wrong_claims_are_proved_and_right_ones_refuted_as_rarely_as_promised():
    """Whoever looks after every outcome, and stops at the best moment, gains nothing."""
    random = np.random.default_rng(0)
    rows = np.arange(LONG)
    failures = counted(random, CLAIMED, 2000)
    for decided, level in zip((TEST.proves, TEST.refutes), LEVELS, strict=True):
        ever = table(decided)[rows, failures].any(axis=1).mean()
        assert ever <= level + 3 * np.sqrt(level / 2000)
    # Not because nothing is ever decided.
    assert table(TEST.proves)[rows, counted(random, 0.95, 200)].any(axis=1).mean() > 0.8
    assert table(TEST.refutes)[rows, counted(random, 0.8, 200)].any(axis=1).mean() > 0.9


def test_a_test_that_is_read_like_one_of_fixed_size_is_found_by_the_same_simulation():
    def planted(successes, failures):
        return stats.binom.sf(successes - 1, successes + failures, CLAIMED) <= LEVELS[0]

    failures = counted(np.random.default_rng(1), CLAIMED, 500)
    ever = table(planted)[np.arange(LONG), failures].any(axis=1).mean()
    assert ever > 3 * LEVELS[0]


@pytest.mark.parametrize("probability", [0.5, 0.9, 0.97])
def test_the_confidence_sequence_covers_at_all_times(probability):
    failures = counted(np.random.default_rng(2), probability, 2000)
    number = np.arange(1, LONG + 1)[:, None]
    held = np.arange(LONG + 1)[None]
    low, high = (
        log_wealth(TEST.proving, probability, np.maximum(number - held, 0), held),
        log_wealth(TEST.refuting, 1 - probability, held, np.maximum(number - held, 0)),
    )
    rows = np.arange(LONG)
    for wealth, level in ((low, LEVELS[0]), (high, LEVELS[1])):
        ever = (wealth >= -np.log(level))[rows, failures].any(axis=1).mean()
        assert ever <= level + 3 * np.sqrt(level / 2000)


def test_bounds_are_where_the_wealth_reaches_what_is_needed():
    successes, failures = np.array([40, 90, 500]), np.array([0, 10, 3])
    low, high = TEST.bounds(successes, failures)
    enough = -np.log(LEVELS[0])
    assert np.all(log_wealth(TEST.proving, low, successes, failures) >= enough)
    assert np.all(log_wealth(TEST.proving, low + 1e-9, successes, failures) < enough)
    assert np.all(high > successes / (successes + failures) - 1e-12)
    assert np.all(low < successes / (successes + failures))


def test_nothing_is_known_before_an_outcome_and_failures_alone_prove_nothing():
    assert TEST.bounds(0, 0) == (0.0, 1.0)
    assert probability_lower(TEST.proving, 0.05, 0, 10) == 0
    assert TEST.decide(np.zeros(0, bool)) == ("undecided", 0)
    assert TEST.decide(np.zeros(50, bool))[0] == "refuted"


@pytest.mark.parametrize("seen", [(0, 0), (250, 0), (1000, 0)])
def test_without_a_failure_little_more_is_needed_than_with_a_fixed_size(seen: tuple[int, int]):
    fixed = int(np.ceil(np.log(LEVELS[0]) / np.log(0.999)))
    test = SequentialTest.guided(0.999, *seen, LEVELS)
    verdict, after = test.decide(np.ones(10_000, bool))
    assert (verdict, after) == ("proved", test.forecast(*seen).earliest)
    assert fixed <= after < 1.3 * fixed


def test_a_decision_is_the_first_one_wherever_blocks_begin():
    random = np.random.default_rng(3)
    outcomes = random.random(20_000) < 0.9995
    test = SequentialTest.guided(0.999, 250, 0, LEVELS)
    good = np.cumsum(outcomes)
    bad = np.arange(1, len(outcomes) + 1) - good
    first = int(np.argmax(test.proves(good, bad)))
    assert test.decide(outcomes) == ("proved", first + 1)
    assert test.decide(outcomes[:first])[0] == "undecided"


def test_a_forecast_says_what_courses_do():
    test = SequentialTest.guided(0.95, 980, 20, LEVELS)
    forecast = test.forecast(980_000, 20_000)
    random = np.random.default_rng(4)
    found = [test.decide(random.random(3000) < 0.98) for _ in range(400)]
    ends = [after for verdict, after in found]
    assert forecast.proved == pytest.approx(np.mean([v == "proved" for v, _ in found]), abs=0.05)
    assert forecast.refuted == pytest.approx(np.mean([v == "refuted" for v, _ in found]), abs=0.03)
    assert forecast.needed[1] == pytest.approx(np.median(ends), rel=0.15)
    assert forecast.needed[2] == pytest.approx(np.quantile(ends, 0.9), rel=0.2)


@pytest.mark.parametrize("probability", [0.0, 1.0, 1.5])
def test_what_is_sure_cannot_be_proved(probability):
    with pytest.raises(ConfigurationError, match="strictly between 0 and 1"):
        SequentialTest.guided(probability, 1, 1, LEVELS)


@pytest.mark.parametrize(
    ("stakes", "weights"), [((0.0,), (1.0,)), ((0.5, 1.1), (0.5, 0.5)), ((0.5,), (1.5,)), ((), ())]
)
def test_bets_that_are_not_fair_are_refused(stakes, weights):
    with pytest.raises(ConfigurationError, match="stakes"):
        Bets(stakes, weights)
