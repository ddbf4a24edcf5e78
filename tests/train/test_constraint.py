"""Success probabilities: the paper's sequential estimate, and honest answers."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from surestep.base.errors import ConfigurationError
from surestep.train.constraint import Constraint, estimate_success

PAPER = Constraint(early_decision=0.0)


def one_by_one(outcomes, constraint):
    """The paper's algorithm as it is written, with SciPy's Beta distribution."""
    a, b = 1, 1
    drawn = 0
    for outcome in outcomes:
        quantiles = stats.beta.ppf([constraint.quantile_lower, constraint.quantile_upper], a, b)
        if quantiles[1] - quantiles[0] < constraint.width:
            break
        a, b, drawn = a + bool(outcome), b + (not outcome), drawn + 1
    quantiles = stats.beta.ppf([constraint.quantile_lower, constraint.quantile_upper], a, b)
    return a, b, drawn, quantiles[1] - quantiles[0] < constraint.width


def blocks(outcomes, size):
    return [outcomes[i : i + size] for i in range(0, len(outcomes), size)]


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1), st.floats(0.5, 1.0), st.integers(1, 90))
def test_agrees_with_the_algorithm_whatever_the_blocks(seed, probability, block):
    outcomes = np.random.default_rng(seed).random(400) < probability
    estimate = estimate_success(blocks(outcomes, block), PAPER)
    a, b, drawn, decided = one_by_one(outcomes, PAPER)
    assert (estimate.successes, estimate.trials) == (a - 1, drawn)
    assert estimate.probability == pytest.approx(a / (a + b))
    expected = "undecided"
    if decided:
        expected = "inside" if 0.95 <= a / (a + b) <= 1 else "outside"
    assert estimate.verdict == expected


def test_stops_as_soon_as_it_can():
    endless = (np.ones(10, bool) for _ in itertools.count())
    estimate = estimate_success(endless, PAPER)
    assert estimate.inside
    assert estimate.trials == PAPER.fewest_instances() == 58


def test_too_few_instances_are_undecided_and_not_inside():
    estimate = estimate_success([np.ones(40, bool)], PAPER)
    assert estimate.verdict == "undecided"
    assert not estimate.inside
    assert estimate.trials == 40
    assert "undecided" in str(estimate)


def test_nothing_drawn_is_undecided():
    estimate = estimate_success([], PAPER)
    assert (estimate.trials, estimate.verdict, estimate.probability) == (0, "undecided", 0.5)


def test_an_early_decision_saves_trials_and_is_rarely_wrong():
    eager = Constraint(early_decision=1e-4)
    hopeless = estimate_success([np.zeros(200, bool)], eager)
    assert hopeless.verdict == "outside"
    assert hopeless.trials < 5
    random = np.random.default_rng(0)
    changed = 0
    for _ in range(400):
        outcomes = random.random(250) < 0.97
        eager_verdict = estimate_success([outcomes], eager).verdict
        changed += eager_verdict != estimate_success([outcomes], PAPER).verdict
    assert changed <= 2


def test_mode_and_mean():
    outcomes = [np.array([True] * 95 + [False] * 5)]
    mode = estimate_success(outcomes, Constraint(point="mode", width=0.2, early_decision=0.0))
    assert mode.probability == mode.successes / mode.trials
    mean = estimate_success(outcomes, Constraint(point="mean", width=0.2, early_decision=0.0))
    assert mean.probability == (mean.successes + 1) / (mean.trials + 2)


@pytest.mark.parametrize("upper", [0.9, 1.0])
def test_the_upper_end_counts_too(upper):
    constraint = Constraint(lower=0.5, upper=upper)
    estimate = estimate_success([np.ones(400, bool)], constraint)
    assert estimate.verdict == ("inside" if upper == 1.0 else "outside")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lower": -0.1}, r"constraint.lower .* \[0, 1\]"),
        ({"upper": 1.5}, r"constraint.upper .* \[0, 1\]"),
        ({"lower": 0.9, "upper": 0.8}, "must be below constraint.upper"),
        ({"quantile_lower": 0.99, "quantile_upper": 0.01}, "quantile_lower .* must be below"),
        ({"width": 0.0}, "constraint.width"),
        ({"lower": float("nan")}, "constraint.lower"),
        ({"width": 0.01, "early_decision": 0.0}, "at least 4[0-9][0-9] are needed"),
    ],
)
def test_bad_settings_are_refused(changes, message):
    with pytest.raises(ConfigurationError, match=message):
        Constraint(**changes).validate(250)
