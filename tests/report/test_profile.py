"""Performance profiles against small tables whose answers are known."""

import dataclasses
from typing import Any

import numpy as np
import pytest

from support.types import unchecked
from surestep.evaluate.evaluated import Evaluated
from surestep.report.profile import performance_ratios, profile_panel, solved_within
from surestep.rollout.loop import Status

INF = np.inf


def evaluated(needed, solvers=("learned", "a", "b")):
    """An evaluation of one accuracy with these gradient evaluations; infinite is not reached."""
    needed = np.asarray(needed, float)
    status = np.where(np.isfinite(needed), Status.REACHED, Status.LIMIT)
    values: dict[str, Any] = {f.name: None for f in dataclasses.fields(Evaluated)} | {
        "reach_gradients": np.where(np.isfinite(needed), needed, 999).astype(int)[:, None],
        "reach_status": status[:, None],
        "solvers": list(solvers),
        "accuracies": [0.1],
        "references": np.zeros(needed.shape[1]),
        "above": "",
    }
    with unchecked():  # what is not looked at is not there
        return Evaluated(**values)


COSTS = [[10, 20, INF, INF], [20, 10, 30, INF], [40, 30, 15, INF]]


def test_ratios_by_hand():
    found = performance_ratios(np.array(COSTS))
    np.testing.assert_array_equal(found, [[1, 2, INF, INF], [2, 1, 2, INF], [4, 3, 1, INF]])


def test_shares_by_hand():
    ratios = performance_ratios(np.array(COSTS))
    shares = [solved_within(one, np.array([1.0, 2.0, 4.0])).tolist() for one in ratios]
    assert shares == [[0.25, 0.5, 0.5], [0.25, 0.75, 0.75], [0.25, 0.25, 0.75]]


def test_the_panel_rises_in_steps_to_the_share_that_is_solved():
    panel = profile_panel(evaluated(COSTS), 0)
    assert [line.label for line in panel.lines] == ["learned", "a", "b"]
    learned = panel.lines[0]
    assert learned.x[:4] == [1, 1, 2, 2] and learned.y[:4] == [0, 0.25, 0.25, 0.5]
    for line, solved in zip(panel.lines, (0.5, 0.75, 0.75), strict=True):
        assert line.y[-1] == solved
        assert np.all(np.diff(line.y) >= 0) and np.all(np.diff(line.x) >= 0)
        assert line.x[-1] == pytest.approx(4.4)
    assert panel.notes == ["1 instances were solved by nobody"]


def test_instances_that_start_solved_cost_everyone_the_same():
    panel = profile_panel(evaluated([[1, 1], [0, 0], [0, 5]]), 0)
    assert [line.y[1] for line in panel.lines] == [1, 1, 0.5]


def test_nothing_solved_is_a_flat_line():
    panel = profile_panel(evaluated([[INF, INF], [INF, INF], [INF, INF]]), 0)
    assert all(max(line.y) == 0 for line in panel.lines)


def test_quantiles_of_gradients_are_actual_numbers_and_infinite_where_too_few_are_solved():
    needed = [[*range(1, 11)], [5] * 9 + [INF], [INF] * 6 + [2] * 4]
    found = evaluated(needed)
    assert found.gradient_quantile(0.5).tolist() == [[5], [5], [INF]]
    assert found.gradient_quantile(0.9).tolist() == [[9], [5], [INF]]
    assert found.missed().tolist() == [[0], [1], [6]]
