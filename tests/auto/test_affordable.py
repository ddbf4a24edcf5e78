"""What fits into the rest of a budget."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from surestep.auto.affordable import Means, afford
from surestep.problem import SplitSizes

SIZES = SplitSizes(prior=200, validation=200, train=250, test=100)


def test_with_time_enough_nothing_is_left_out():
    found = afford(Means(budget=600.0, left=400.0, solve=1e-4, compiling=1.0), SIZES, 2, 10)
    assert found.sizes == SIZES
    assert (found.samples, found.opponents, found.compared, found.left_out) == (10, 2, True, ())


def test_a_short_budget_leaves_out_samples_before_anything_else():
    found = afford(Means(budget=60.0, left=30.0, solve=1e-4, compiling=0.5), SIZES, 2, 10)
    assert found.left_out == ("further samples of the posterior",)
    assert found.samples == 1 and found.sizes == SIZES


def test_where_there_is_one_sample_none_is_left_out():
    short, long = (
        afford(Means(budget, -10.0, solve=1e-4, compiling=0.5), SIZES, 2, 1)
        for budget in (60.0, 600.0)
    )
    assert short.samples == long.samples == 1
    # And nothing else goes unsaid for it.
    assert (
        short.left_out
        == long.left_out
        == (
            "1 of 2 opponents",
            "the comparison with an opponent in the certificate",
        )
    )


def test_then_opponents_where_compiling_takes_what_is_left():
    found = afford(Means(budget=60.0, left=20.0, solve=1e-5, compiling=1.4), SIZES, 2, 10)
    assert found.sizes == SIZES
    assert (found.opponents, found.compared) == (1, False)
    assert found.left_out[1:] == (
        "1 of 2 opponents",
        "the comparison with an opponent in the certificate",
    )


def test_an_opponent_that_would_take_most_of_the_budget_is_not_kept():
    found = afford(Means(budget=60.0, left=5.0, solve=0.2, compiling=1.0), SIZES, 1, 10)
    assert (found.opponents, found.compared) == (0, False)
    assert found.sizes == SplitSizes(prior=10, validation=10, train=30, test=10)


def test_sizes_follow_from_shares_of_what_is_left():
    # 54 s for solves: 0.1 for the prior set, two solves each, and 0.3 for tests, twelve each.
    found = afford(Means(budget=240.0, left=58.0, solve=0.0625, compiling=0.0), SIZES, 1, 10)
    assert found.sizes == SplitSizes(prior=43, validation=43, train=151, test=21)
    assert found.minima == 1.0 and found.closeness


def test_minima_that_take_long_are_found_less_well_and_not_certified():
    means = Means(budget=240.0, left=58.0, solve=0.0625, compiling=0.0, minimum=0.5)
    found = afford(means, SIZES, 1, 10)
    # 21 test instances would take 10.5 s, of which 0.15 of 54 s are given.
    assert found.minima == pytest.approx(0.15 * 54 / 10.5)
    assert not found.closeness
    assert "how close to the minima solves come, in the certificate" in found.left_out
    # In time for tests, but 211 instances of a certificate are too many.
    less = afford(dataclasses.replace(means, minimum=0.1), SIZES, 1, 10)
    assert less.minima == 1.0 and not less.closeness
    assert afford(dataclasses.replace(means, minimum=0.05), SIZES, 1, 10).closeness


def test_instances_that_take_long_to_draw_are_fewer():
    means = Means(budget=240.0, left=58.0, solve=0.0, compiling=0.0, drawing=0.125)
    assert afford(means, SIZES, 1, 10).sizes == SplitSizes(43, 43, 151, 100)


@given(
    left=st.floats(-100, 1000),
    solve=st.floats(0, 100),
    compiling=st.floats(0, 60),
    opponents=st.integers(1, 3),
    minimum=st.floats(0, 10),
)
def test_a_run_is_always_possible_and_more_time_is_never_worse(
    left, solve, compiling, opponents, minimum
):
    few, many = (
        afford(Means(300.0, seconds, solve, compiling, minimum=minimum), SIZES, opponents, 10)
        for seconds in (left, left + 100.0)
    )
    assert few.sizes.train >= 30 and min(dataclasses.astuple(few.sizes)) >= 10
    assert 0 <= few.opponents <= opponents
    pairs = zip(*(dataclasses.astuple(one.sizes) for one in (few, many)), strict=True)
    assert all(less <= more for less, more in pairs)
    # What was said to be left out is what was.
    assert (few.sizes != SIZES) == any("instances" in words for words in few.left_out)
    assert few.compared == all("comparison" not in words for words in few.left_out)
    assert few.closeness == all("how close" not in words for words in few.left_out)
