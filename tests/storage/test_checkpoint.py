"""States are left at a checkpoint rarely enough, and often enough."""

import pytest

from surestep.storage import checkpoint
from surestep.storage.checkpoint import NoCheckpoint, Saving


class Clock:
    """A clock that a test sets."""

    def __init__(self):
        self.now = 0.0

    def monotonic(self):
        return self.now


class Slow(NoCheckpoint):
    """A checkpoint that takes its time, and counts."""

    def __init__(self, clock, seconds):
        self.clock, self.seconds, self.saves = clock, seconds, []

    def save(self, tree):
        self.clock.now += self.seconds
        self.saves.append(tree)


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(checkpoint, "time", clock)
    return clock


def test_a_state_is_left_every_ten_seconds_at_most(clock):
    where = Slow(clock, seconds=0.0)
    saving = Saving(where)
    for second in range(35):
        clock.now = float(second)
        saving.now_and_then(second)
    assert where.saves == [11, 22, 33]


def test_saving_takes_a_twentieth_of_the_time_at_most(clock):
    where = Slow(clock, seconds=3.0)
    saving = Saving(where)
    saving.now("first")
    clock.now += 59.0
    saving.now_and_then("too early")
    clock.now += 2.0
    saving.now_and_then("second")
    assert where.saves == ["first", "second"]


def test_a_state_that_must_not_be_lost_is_left_at_once_and_counts(clock):
    where = Slow(clock, seconds=0.0)
    saving = Saving(where)
    clock.now = 9.0
    saving.now("a check")
    clock.now = 11.0
    saving.now_and_then("two seconds later")
    assert where.saves == ["a check"]
