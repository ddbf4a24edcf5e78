"""The monitor of instances: exact while they are exchangeable, quick once they are not."""

import dataclasses
import io
from typing import Any

import numpy as np
import pytest
from scipy import stats

from support.production import certified_solver
from support.tiny import PROBLEM, SPLIT, TASK
from surestep.base.errors import ConfigurationError, SolverFileError
from surestep.cli.main import main
from surestep.problem.base import instance
from surestep.problem.draw import working_precision
from surestep.solver import instance_monitor
from surestep.solver.familiar import FEATURES, Familiar
from surestep.solver.instance_monitor import InstanceMonitor
from surestep.solver.load import load
from surestep.solver.monitor import Monitor

MIXING = np.array([[1.0, 0.8, -0.9], [0.0, 0.6, 0.1], [0.0, 0.0, 0.4]])


def correlated(random, number):
    return random.normal(size=(number, 3)) @ MIXING


def few_values(random, number):
    return random.integers(0, 3, size=(number, 2)).astype(float)


@pytest.mark.parametrize("draw", [correlated, few_values])
@pytest.mark.parametrize("size", [20, 250])
def test_false_alarms_are_rare_for_small_samples_ties_and_dependent_features(draw, size):
    """Ranks in a fixed sample, taken for independent ones, raise an alarm in every long run."""
    random, raised = np.random.default_rng(size), 0
    for seed in range(200):
        monitor = InstanceMonitor.of(draw(random, size), 0.1, seed)
        raised += monitor.shown(draw(random, 1000)).alarm
    assert stats.binomtest(raised, 200, 0.1, "greater").pvalue > 1e-3


def test_every_bet_has_mean_one_under_the_urn():
    random = np.random.default_rng(0)
    for _ in range(50):
        before = random.integers(1, 30, size=12)
        every = np.tile(before, (12, 1))
        gains = np.exp(instance_monitor._gains(every, np.arange(12)))  # of each cell
        np.testing.assert_allclose(gains @ before / before.sum(), 1.0, rtol=1e-12)


def test_the_urn_says_where_the_next_instances_fall():
    """Two after each other, which depend on each other through the sample."""
    random, runs, gaps, cut = np.random.default_rng(1), 3000, (), 0
    pairs = np.zeros((2, 2))
    for seed in range(runs):
        monitor = InstanceMonitor.of(random.normal(size=(20, 1)), seed=seed)
        gaps, cut = monitor.gaps, len(monitor.gaps) - 4
        one = monitor.shown(random.normal(size=(1, 1)))
        two = one.shown(random.normal(size=(1, 1)))
        first = sum(one.counts[0][cut:])
        pairs[first, sum(two.counts[0][cut:]) - first] += 1
    high, total = sum(gaps[cut:]), sum(gaps)
    low = total - high
    wanted = np.array([[low * (low + 1), low * high], [high * low, high * (high + 1)]])
    expected = runs * wanted / (total * (total + 1))
    assert stats.chisquare(pairs.ravel(), expected.ravel()).pvalue > 1e-3


def test_one_by_one_or_all_at_once_is_the_same(tmp_path):
    random = np.random.default_rng(2)
    first = InstanceMonitor.of(few_values(random, 40), seed=3)
    table = few_values(random, 130)
    whole, step = first.shown(table), Monitor(0.1, instances=first)
    for number, row in enumerate(table):
        step = step.shown(row[None])
        if number == 60:
            step.save(tmp_path / "state.json")
            step = Monitor.load(tmp_path / "state.json")
    assert step.instances is not None
    assert step.instances.counts == whole.counts and step.instances.seen == 130
    np.testing.assert_allclose(step.instances.highest, whole.highest, rtol=1e-9)
    np.testing.assert_allclose(step.instances.log_bets, whole.log_bets, rtol=1e-9)


@pytest.mark.parametrize("quiet", [0, 1000, 10_000])
def test_a_shift_is_noticed_late_as_well_as_at_once(quiet):
    random, needed, text = np.random.default_rng(4), [], ""
    for seed in range(10):
        monitor = InstanceMonitor.of(correlated(random, 250), 0.005, seed)
        monitor = monitor.shown(correlated(random, quiet))
        assert not monitor.alarm
        number = 0
        while not monitor.alarm and number < 200:
            monitor = monitor.shown(correlated(random, 1) + np.array([0.0, 3.0, 0.0]))
            number += 1
        needed.append(number)
        text = str(monitor)
    assert np.median(needed) <= 12
    assert "ALARM" in text and "number 2 of 3" in text


def test_what_is_no_number_is_beyond_all_numbers():
    random = np.random.default_rng(5)
    monitor = InstanceMonitor.of(random.normal(size=(100, 1)))
    assert monitor.shown(np.full((30, 1), np.nan)) == monitor.shown(np.full((30, 1), np.inf))
    assert monitor.shown(np.full((30, 1), np.nan)).alarm


def test_either_part_of_a_monitor_raises_its_alarm():
    random = np.random.default_rng(6)
    quiet = InstanceMonitor.of(random.normal(size=(100, 1)), 0.005)
    monitor = Monitor(0.05, 0.005, instances=quiet)
    assert not monitor.alarm
    assert monitor.shown(np.full((40, 1), 9.0)).alarm
    assert monitor.fed(np.ones(40)).alarm
    assert "no reason to doubt where" in str(monitor.fed(np.ones(40)))
    with pytest.raises(ConfigurationError, match="watches no instances"):
        Monitor(0.05).shown([[1.0]])


def test_nonsense_is_refused():
    table = np.random.default_rng(7).normal(size=(30, 2))
    with pytest.raises(ConfigurationError, match="at least 20"):
        InstanceMonitor.of(table[:19])
    with pytest.raises(ConfigurationError, match="a row for every instance"):
        InstanceMonitor.of(table[:, 0])
    monitor = InstanceMonitor.of(table)
    with pytest.raises(ConfigurationError, match="2 numbers of an instance"):
        monitor.shown(table[:, :1])
    for wrong in ({"counts": monitor.counts[:1]}, {"seen": 5}, {"gaps": monitor.gaps[1:]}):
        with pytest.raises(ConfigurationError, match="not those of a monitor"):
            dataclasses.replace(monitor, **wrong)
    with pytest.raises(ConfigurationError, match="seed"):
        InstanceMonitor.of(table, seed=-1)
    with pytest.raises(ConfigurationError, match="nobody has seen"):
        Monitor(0.1, seen=2**70)
    assert monitor.shown(np.empty((0, 2))) == monitor


def familiar():
    with working_precision(PROBLEM):
        return Familiar.of(PROBLEM, SPLIT.prior, SPLIT.train, TASK.block)


def test_the_numbers_of_a_familys_instances_are_what_they_are_called():
    found = familiar().sample
    assert found.shape == (SPLIT.train.size, FEATURES)
    np.testing.assert_allclose(found[:, 0], TASK.start_losses(SPLIT.train))
    flat, prior = (
        np.concatenate([np.asarray(data.thetas.diagonal), np.asarray(data.thetas.target)], axis=1)
        for data in (SPLIT.train, SPLIT.prior)
    )
    standard = (flat - prior.mean(axis=0)) / prior.std(axis=0)
    np.testing.assert_allclose(found[:, 1], np.sqrt(np.mean(standard**2, axis=1)))
    # Directions have length 1, so what is seen from them spreads about as entries do.
    assert np.all(np.abs(found[:, 2:].std(axis=0) - 1) < 0.5)


def test_a_solver_shows_its_monitor_every_instance_and_a_file_keeps_what_that_takes(tmp_path):
    solver = dataclasses.replace(certified_solver(), familiar=familiar())
    solver.save(tmp_path / "solver.safetensors")
    again = load(tmp_path / "solver.safetensors", PROBLEM)
    monitor = again.monitor(delta=0.02)
    assert monitor == solver.monitor(delta=0.02)
    assert monitor.instances is not None
    assert monitor.delta + monitor.instances.delta == pytest.approx(0.02)
    few = instance(SPLIT.test.thetas, slice(0, 40))
    found: Any = again.solve(few, monitor=monitor)
    assert "it was shown 40 instances" in found.monitor_note
    assert found.monitor.instances.seen == found.monitor.seen == 40
    assert not found.monitor.alarm
    elsewhere = few._replace(target=20 * few.target)
    strange: Any = again.solve(elsewhere, monitor=found.monitor).monitor
    assert strange.instances.alarm and strange.alarm
    # A call that is not covered may see an instance again; it is not shown.
    assert again.solve(few, iterations=3, monitor=monitor).monitor is monitor
    small = dataclasses.replace(familiar(), sample=familiar().sample[:19])
    assert dataclasses.replace(again, familiar=small).monitor(0.02).delta == 0.02
    bare = dataclasses.replace(again, familiar=None)
    assert bare.monitor().instances is None
    assert "does not know" in bare.solve(few, monitor=monitor).monitor_note


def test_a_file_that_scales_by_nothing_is_refused(tmp_path):
    wrong = dataclasses.replace(familiar(), scale=0 * familiar().scale)
    solver = dataclasses.replace(certified_solver(), familiar=wrong)
    solver.save(tmp_path / "solver.safetensors")
    with pytest.raises(SolverFileError, match="centred and scaled"):
        load(tmp_path / "solver.safetensors", PROBLEM)


def test_the_command_compares_further_columns_with_a_table(tmp_path, monkeypatch, capsys):
    random, state = np.random.default_rng(8), str(tmp_path / "state.json")
    np.savetxt(tmp_path / "usual.csv", random.normal(size=(200, 2)), delimiter=",")

    def fed(rows, *words):
        lines = "\n".join(" ".join(map(str, row)) for row in rows)
        monkeypatch.setattr("sys.stdin", io.StringIO(lines))
        return main(["monitor", state, *words])

    usual = np.column_stack([np.zeros(50), random.normal(size=(50, 2))])
    begin = ("--failure", "0.05", "--reference", str(tmp_path / "usual.csv"))
    assert fed(usual, *begin) == 0
    assert "50 outcomes" in (text := capsys.readouterr().out) and "50 instances" in text
    assert fed(usual[:, :2]) == 2
    assert "an outcome and 2 numbers" in capsys.readouterr().err
    assert fed(usual, *begin) == 2
    assert "has begun" in capsys.readouterr().err
    assert fed([]) == 0
    assert fed(usual + np.array([0.0, 0.0, 4.0])) == 5
    assert "ALARM: the instances" in capsys.readouterr().out
