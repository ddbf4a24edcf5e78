"""Where candidates meet: counts of iterations and times, against counts that are made by hand."""

import math
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from surestep.auto import arena as timing
from surestep.auto.arena import SHARE, Arena, Entry
from surestep.problem.base import Problem
from surestep.problem.datasets import PriorSet
from surestep.rollout.batched import rollouts
from surestep.rules import GradientDescent

SCALES = np.array([1.0, 1.5, 2.0, 3.0, 4.0])


def loss(x, theta):
    """Gradient descent makes every loss smaller in every step, by factors that are known."""
    return 0.5 * jnp.sum(SCALES * (x - theta) ** 2)


def sample(key):
    return jax.random.normal(key, (5,))


BOWL = Problem.of(loss, np.ones(5), sample=sample)
DATA = PriorSet.draw(BOWL, 60, 0)
STARTS = 0.5 * np.sum(SCALES * (1 - np.asarray(DATA.thetas)) ** 2, axis=1)


def arena_for(accuracy):
    return Arena.of(BOWL, DATA.thetas, STARTS, np.zeros(60), 40, accuracy)


def by_hand(arena, rule, most=4000):
    """After how many iterations nine of ten instances are solved, from every loss on the way."""
    losses = np.asarray(rollouts(rule, BOWL, arena.held, most, arena.size).losses)
    shares = np.mean(losses <= arena.targets[:, None], axis=0)
    assert np.all(np.diff(shares) >= 0)
    return int(np.argmax(shares[1:] >= SHARE)) + 1 if shares[-1] >= SHARE else math.inf


def test_instances_are_parted_into_those_for_making_and_those_for_comparing():
    arena = arena_for(1e-3)
    assert arena.size == 20
    np.testing.assert_array_equal(arena.makers, DATA.thetas[:40])
    np.testing.assert_array_equal(arena.held, DATA.thetas[40:])
    np.testing.assert_allclose(arena.targets, 1e-3 * STARTS[40:], rtol=1e-12)
    np.testing.assert_array_equal(arena.gaps, STARTS[:40])
    # No more than is needed to compare, and no target is finer than losses are computed.
    many = PriorSet.draw(BOWL, 120, 1)
    deep = Arena.of(BOWL, many.thetas, np.full(120, 8.0), np.full(120, 7.0), 50, 1e-30)
    assert deep.size == 64
    np.testing.assert_allclose(deep.targets - 7.0, 28 * np.finfo(np.float64).eps, rtol=0.1)
    # A start that is below what the trusted solver found leaves nothing to gain, not less.
    odd = Arena.of(BOWL, many.thetas, np.full(120, 6.0), np.full(120, 7.0), 50, 0.5)
    assert np.all(odd.gaps == 0) and np.all(odd.targets >= 7.0)


@pytest.mark.parametrize("step", [0.4, 0.1, 0.01])
@pytest.mark.parametrize("accuracy", [0.5, 1e-3, 1e-8])
def test_iterations_are_those_that_are_counted_by_hand(step, accuracy):
    arena, rule = arena_for(accuracy), GradientDescent(step)
    expected = by_hand(arena, rule)
    found = arena.iterations(arena.program(rule), 60.0)
    if expected < 40:
        assert found == expected
    else:
        # Large numbers are found to a twentieth, and are enough.
        assert expected <= found <= 1.06 * expected
    assert arena.solved(arena.program(rule), int(found)) >= SHARE


@pytest.mark.parametrize("bar", [1, 2, 5, 30, 31, 200, 3000])
@pytest.mark.parametrize("step", [0.4, 0.05])
def test_a_variant_that_needs_fewer_is_counted_as_well(bar, step):
    """Also one that needs far fewer than what it is measured against."""
    arena, rule = arena_for(1e-6), GradientDescent(step)
    expected = by_hand(arena, rule)
    found = arena.fewer(arena.program(rule), float(bar))
    if expected > 0.97 * bar or expected >= bar:
        assert found == math.inf
    elif expected < 40:
        assert found == expected
    else:
        assert expected <= found <= 1.06 * expected


def test_nothing_is_fewer_than_what_nobody_has_counted():
    arena = arena_for(1e-6)
    assert arena.fewer(arena.program(GradientDescent(0.4)), math.inf) == math.inf


@pytest.mark.parametrize("step", [0.6, 50.0, 1e200, 0.0, math.nan])
def test_who_diverges_or_stands_still_is_never_there(step):
    """A number that is infinite, and no error."""
    arena = arena_for(1e-6)
    program = arena.program(GradientDescent(step))
    assert arena.iterations(program, 0.2) == math.inf
    assert arena.solved(program, 500) == 0


def test_who_is_far_behind_a_rival_is_given_up(monkeypatch):
    """Unless a pause of the machine is all that was measured."""
    arena = arena_for(1e-8)
    rule = GradientDescent(0.01)
    program = arena.program(rule)
    assert arena.iterations(program, 60.0, rival=1e-12) == math.inf
    expected = by_hand(arena, rule)
    assert expected <= arena.iterations(program, 60.0, rival=1e3) <= 1.06 * expected
    calls = []

    def paused(self, program, iterations, solved=Arena.solved):
        calls.append(iterations)
        if len(calls) == 4:
            time.sleep(0.3)
        return solved(self, program, iterations)

    monkeypatch.setattr(Arena, "solved", paused)
    assert math.isfinite(arena.iterations(program, 60.0, rival=0.1 / arena.size))


def test_a_search_ends_in_time():
    arena = arena_for(1e-8)
    program = arena.program(GradientDescent(1e-9))
    began = time.process_time()
    assert arena.iterations(program, 0.05) == math.inf
    assert time.process_time() - began < 5


def test_times_are_those_of_a_solve():
    arena = arena_for(1e-6)
    program = arena.program(GradientDescent(0.1))
    for measure in (arena.batch_seconds, arena.alone_seconds):
        few, many = measure(program, 10), measure(program, 1_000_000)
        assert 3 * few < many < 30
        assert few > 0


def test_the_fastest_of_some_calls_counts():
    waits = iter([0.03, 0.0, 0.02, 0.04])
    assert timing._fastest(lambda: time.sleep(next(waits))) < 0.015
    calls = []
    timing._fastest(lambda: calls.append(1))
    assert len(calls) == 20
    calls.clear()
    timing._fastest(lambda: calls.append(time.sleep(0.6)))
    assert len(calls) == 1  # long ones are measured once


def test_what_a_score_is():
    entry = Entry("one", False, 7, alone=4e-3, batch=1e-3)
    assert entry.score("single") == 4e-3
    assert entry.score("batch") == 1e-3
    assert entry.score("both") == pytest.approx(2e-3)
    late = Entry("late", False, math.inf, math.inf, math.inf)
    assert all(late.score(use) == math.inf for use in ("single", "batch", "both"))
