"""How soon the monitor raises its alarm: outcomes beside an oracle, and instances before outcomes.

`python -m benchmarks.monitor` prints the tables of docs/solver.md; words choose some of them
(outcomes, family, false). The
oracle knows when the failure probability rose and to what, and asks Wald's test from there on.
"""

import dataclasses
import sys
from typing import Any

import numpy as np

import surestep as ss
from surestep.solver.monitor import Monitor

DELTA, RUNS, LONGEST = 0.01, 1000, 4000
CERTIFIED, RATES, QUIET = (0.02, 0.05), (0.1, 0.3, 1.0), (0, 1000, 10_000)
STEP = 25  # outcomes that a monitor is fed before it is asked, at first


def until_alarm(before: Monitor, outcomes: np.ndarray) -> float:
    """After how many outcomes there is an alarm; infinite if there is none."""
    monitor, step = before, STEP
    for first in range(0, len(outcomes), STEP):
        fed = monitor.fed(outcomes[first : first + step])
        if fed.alarm:
            # Again, one by one.
            for number, outcome in enumerate(outcomes[first : first + step]):
                monitor = monitor.fed(outcome)
                if monitor.alarm:
                    return first + number + 1
        monitor = fed
    return np.inf


def until_oracle(certified: float, rate: float, outcomes: np.ndarray) -> float:
    """The same of a test that knows the new rate and when it came."""
    with np.errstate(divide="ignore"):
        gains = np.where(
            outcomes, np.log(rate / certified), np.log(1 - rate) - np.log(1 - certified)
        )
    there = np.cumsum(gains) >= -np.log(DELTA)
    return float(there.argmax() + 1) if there.any() else np.inf


def outcome_rows() -> None:
    """Medians over many sequences, and how many quiet ones raise an alarm."""
    print(f"outcomes until the alarm, delta {DELTA}, medians of {RUNS} sequences, seed 0")
    random = np.random.default_rng(0)
    for certified in CERTIFIED:
        quiet = {number: Monitor(certified, DELTA).fed(np.zeros(number)) for number in QUIET}
        for rate in RATES:
            drawn = random.random((RUNS, LONGEST)) < rate
            cells = [float(np.median([until_alarm(quiet[q], row) for row in drawn])) for q in QUIET]
            oracle = np.median([until_oracle(certified, rate, row) for row in drawn])
            print(f"certified {certified:g}, new {rate:g}: {cells}, oracle {oracle:g}", flush=True)


def false_alarms(runs: int = 2000, length: int = 10_000) -> None:
    """Outcomes exactly as certified, and instances from where the sample came from."""
    random = np.random.default_rng(1)
    for certified in CERTIFIED:
        raised = sum(
            Monitor(certified, DELTA).fed(random.random(length) < certified).alarm
            for _ in range(runs)
        )
        print(f"false alarms of outcomes, certified {certified:g}: {raised} of {runs}", flush=True)
    mixing = random.normal(size=(5, 5))
    raised = 0
    for seed in range(runs):
        sample = random.normal(size=(250, 5)) @ mixing
        monitor = ss.InstanceMonitor.of(sample, DELTA, seed)
        raised += monitor.shown(random.normal(size=(length, 5)) @ mixing).alarm
    print(f"false alarms of instances: {raised} of {runs}", flush=True)


def shifted_family(runs: int = 20, batch: int = 5, most: int = 3000) -> None:
    """A tiny run, and instances that change after 1000: who notices first."""
    config = ss.paper.preset("quadratics", "tiny")
    learned = ss.learn(config, ss.paper.build(config))
    solver, problem = learned.solver, learned.problem
    print(f"certified failure probability {solver.monitor().failure:.3g}")
    shifts = {
        "targets times 1.5": lambda t: t._replace(target=1.5 * t.target),
        "diagonals times 1.3": lambda t: t._replace(diagonal=1.3 * t.diagonal),
        "diagonals times 6": lambda t: t._replace(diagonal=6 * t.diagonal),
        "diagonals times 10": lambda t: t._replace(diagonal=10 * t.diagonal),
        "diagonals to the power of 2": lambda t: t._replace(diagonal=t.diagonal**2),
    }
    for name, shift in shifts.items():
        found: list[tuple[float, float, float]] = []
        for seed in range(runs):
            usual = ss.datasets.TestSet.draw(problem, 1000, 1000 + seed).thetas
            monitor = solver.solve(usual, monitor=solver.monitor(delta=DELTA)).monitor
            assert monitor is not None
            drawn = ss.datasets.TestSet.draw(problem, most, 5000 + seed).thetas
            strange = shift(drawn._make(map(np.asarray, drawn)))
            found.append(_race(solver, monitor, strange, batch, most))
        by_instances, by_outcomes, rate = np.median(np.array(found), axis=0)
        print(
            f"{name}: alarm by instances after {by_instances:g}, by outcomes after {by_outcomes:g} "
            f"(failures {rate:.3g})",
            flush=True,
        )


def _race(
    solver: ss.Solver, monitor: Monitor, strange: Any, batch: int, most: int
) -> tuple[float, float, float]:
    """After how many instances each part raises its alarm, and how often solves fail."""
    watching, failing = np.inf, np.inf
    failures, first = monitor.failures, 0
    for first in range(0, most, batch):
        some = strange._replace(
            target=strange.target[first : first + batch],
            diagonal=strange.diagonal[first : first + batch],
        )
        solution = solver.solve(some, monitor=monitor)
        fed = solution.monitor
        assert solution.covered and fed is not None and fed.instances is not None
        monitor = fed
        if np.isinf(watching) and fed.instances.alarm:
            watching = first + batch
        if np.isinf(failing) and dataclasses.replace(fed, instances=None).alarm:
            failing = first + batch
        if first >= 300 and np.isfinite(watching):
            break
    return watching, failing, (monitor.failures - failures) / (first + batch)


if __name__ == "__main__":
    for table in {
        "outcomes": outcome_rows,
        "family": shifted_family,
        "false": false_alarms,
    }.items():
        if len(sys.argv) < 2 or table[0] in sys.argv[1:]:
            table[1]()
