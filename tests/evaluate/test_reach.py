"""Iterations to an accuracy: how long is looked for them, and that they are those of `reach`."""

import math
import time
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest

from support.reach import reach
from support.tiny import CONFIG, EXPERIMENT, PROBLEM, SPLIT, TASK, changed
from support.types import unchecked
from surestep.evaluate.test_set import _iterations_needed, evaluate
from surestep.evaluate.timing import timed
from surestep.problem.base import instance
from surestep.problem.datasets import TestSet
from surestep.rollout.loop import Status
from surestep.rules import Checked, GradientDescent, HeavyBall
from surestep.train.experiment import Accuracies

FEW = TestSet(instance(SPLIT.test.thetas, slice(0, 10)))


class Losses(NamedTuple):
    loss: np.ndarray
    passed: bool = True


class Scripted:
    """A program whose losses are known: instance i is below 1 from its own iteration on."""

    def __init__(self, solved_at):
        self.solved_at, self.asked = np.asarray(solved_at), []

    def solve(self, thetas, steps, x):
        self.asked.append(steps)
        return Losses(np.where(steps >= self.solved_at, 0.5, np.where(steps < 3, np.inf, 2.0)))


class Slow(Scripted):
    """A millisecond an iteration, on a clock of its own."""

    now = 0.0

    def solve(self, thetas, steps, x):
        Slow.now += 1e-3 * steps
        return super().solve(thetas, steps, x)


@unchecked()
def test_who_takes_too_long_is_not_waited_for(monkeypatch):
    monkeypatch.setattr(time, "perf_counter", lambda: Slow.now)
    program: Any = Slow([40, 300])
    number, took, _ = _iterations_needed(program, FEW, np.ones((1, 2)), 1, 10_000, 0.05)
    assert number == 64 and took > 0.05
    assert _iterations_needed(program, FEW, np.ones((1, 2)), 1, 10_000, 10.0)[0] == 512


def needed(solved_at, limit=10_000, targets=None, short=1):
    program: Any = Scripted(solved_at)
    targets = np.ones((1, len(program.solved_at))) if targets is None else targets
    number, *_ = _iterations_needed(program, FEW, targets, short, limit, math.inf)
    return number, program.asked[1:]


@unchecked()  # with a program of the test's own
@pytest.mark.parametrize(
    ("solved_at", "limit", "expected"),
    [
        ([1, 1], 1000, 1),
        ([1, 5], 1000, 8),
        ([1, 5], 7, 7),
        ([30, 250, 700], 1000, 1000),
        ([30, 200], 10_000, 256),
        ([1e9, 1e9], 10_000, 128),  # hopeless
        ([7, 1e9], 10_000, 128),  # half of it
        ([7, 100, 1e9], 10_000, 1024),  # nothing more from 128 to 1024
        ([1e9], 50, 50),
        ([1], 1, 1),
    ],
)
def test_the_hopeless_are_given_up(solved_at, limit, expected):
    found, asked = needed(solved_at, limit)
    assert found == expected
    assert asked == sorted(set(asked)) and len(asked) <= 14


@unchecked()
def test_nothing_shorter_than_what_is_shown_anyway_is_looked_at():
    assert needed([3, 5], short=20) == (20, [20])
    assert needed([3, 50], short=20) == (80, [20, 40, 80])
    assert needed([3, 50], limit=30, short=20) == (30, [20])
    assert needed([3, 5], limit=10, short=20) == (10, [])


@unchecked()
def test_every_accuracy_counts():
    """Who reaches one of two accuracies only is looked at until it is hopeless."""
    targets = np.array([[1.0, 1.0], [0.1, 0.1]])
    assert needed([2, 4], targets=targets)[0] == 128
    assert needed([2, 4], targets=np.array([[1.0, 1.0], [3.0, 3.0]]))[0] == 4
    # What is no number is below nothing.
    assert needed([2, 4], targets=np.full((1, 2), np.nan))[0] == 128


@unchecked()
def test_times_are_taken_for_the_iterations_that_are_needed():
    program: Any = Scripted(np.ones(10))
    iterations = np.arange(20).reshape(2, 10) + 1
    found = timed(program, FEW, iterations, True)
    assert found["seconds"].shape == (2, 10) and np.all(found["seconds"] > 0)
    assert found["seconds_batch"].shape == (2,)
    # First the longest compiles. One by one with as many as each needs, together with as many as
    # nine of ten need.
    first, *asked = program.asked
    assert first == 20 and asked[::2] == [*range(1, 11), 9, *range(11, 21), 19]


@unchecked()
def test_the_same_iterations_aretimed_once():
    program: Any = Scripted(np.ones(10))
    found = timed(program, FEW, np.full((3, 10), 7), np.arange(10) != 4)
    # What is compiled for an instance that failed its check is compiled before.
    assert program.asked == [7] * (2 + 2 * 11)
    for name in ("seconds", "seconds_batch"):
        np.testing.assert_array_equal(
            found[name], np.broadcast_to(found[name][0], found[name].shape)
        )


def solvers():
    """Rules that reach, that come too late, that diverge, and that are checked on the way."""
    steady: Any = EXPERIMENT.baselines["heavy ball"]
    slow = GradientDescent(steady.step_size / 300)
    wild = HeavyBall(1e8 * steady.step_size, 0.5)
    return {
        "steady": steady,
        "slow": slow,
        "wild": wild,
        "checked": Checked(steady, slow, at=5, tolerance=1e9),
        "rescued": Checked(slow, steady, at=5, tolerance=1e-2, rescue=20),
        "saved": Checked(wild, steady, at=3, tolerance=1e-3, rescue=10),
    }


def test_the_arrays_are_those_of_reach():
    rules = solvers()
    first, *others = rules
    starts = TASK.start_losses(FEW)
    shares = tuple(share * float(np.median(starts)) for share in (0.5, 0.02, 1e-6))
    accuracies = Accuracies(shares, lambda _: starts * 1e-12)
    settings = changed(CONFIG.evaluate, limit=60, baselines=(), factor=1)
    found = evaluate(
        settings, TASK, rules[first], {name: rules[name] for name in others}, accuracies, FEW
    )
    np.testing.assert_allclose(found.targets[0], starts * 1e-12 + shares[0])
    statuses = set()
    for s, rule in enumerate(rules.values()):
        for a in range(len(shares)):

            def one(theta, target, rule=rule):
                return reach(rule, PROBLEM, theta, target, 60)

            ends = jax.jit(jax.vmap(one))(FEW.thetas, found.targets[a])
            solved = np.asarray(ends.status) == Status.REACHED
            statuses |= set(found.reach_status[s, a].tolist())
            where = (list(rules)[s], a)
            assert np.all((found.reach_status[s, a] == Status.REACHED) == solved), where
            for name in ("iterations", "gradients"):
                mine = getattr(found, f"reach_{name}")[s, a]
                np.testing.assert_array_equal(
                    mine[solved], np.asarray(getattr(ends, name))[solved], err_msg=str(where)
                )
            # Who has not reached it has made all the iterations that were looked at.
            assert np.all(found.reach_iterations[s, a][~solved] <= 60)
    assert statuses == {Status.REACHED, Status.LIMIT, Status.DIVERGED}
