"""The stopwatch: what a process has worked, and never more than the time that has passed."""

import time

import pytest

from surestep.base import clock
from surestep.base.clock import Stopwatch


class Times:
    """Both clocks, moved by hand."""

    def __init__(self, monkeypatch):
        self.passed, self.worked = 1000.0, 30.0
        monkeypatch.setattr(clock.time, "monotonic", lambda: self.passed)
        monkeypatch.setattr(clock.time, "process_time", lambda: self.worked)

    def move(self, passed, worked):
        self.passed, self.worked = self.passed + passed, self.worked + worked


@pytest.mark.parametrize(
    ("passed", "worked", "expected"),
    [
        (0.0, 0.0, 0.0),
        (5.0, 5.0, 5.0),
        (5.0, 20.0, 5.0),  # on four processors
        (8.0, 2.0, 2.0),  # a quarter of one
        (100.0, 0.0, 10.0),  # waiting for something else
    ],
)
def test_what_is_counted(passed, worked, expected, monkeypatch):
    times = Times(monkeypatch)
    watch = Stopwatch()
    assert watch.seconds == 0
    times.move(passed, worked)
    assert watch.seconds == pytest.approx(expected)


def test_each_watch_counts_from_its_own_start(monkeypatch):
    times = Times(monkeypatch)
    first = Stopwatch()
    times.move(3.0, 3.0)
    second = Stopwatch()
    times.move(1.0, 1.0)
    assert (first.seconds, second.seconds) == (4.0, 1.0)


def test_it_never_runs_backwards():
    watch, seen = Stopwatch(), [0.0]
    until = time.process_time() + 0.05
    while time.process_time() < until:
        seen.append(watch.seconds)
    assert seen == sorted(seen)
    assert seen[-1] > 0.02


def test_sleep_is_hardly_counted():
    watch = Stopwatch()
    time.sleep(0.2)
    assert watch.seconds < 0.15
