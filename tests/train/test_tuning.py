"""Choosing a classical rule's one number on the prior set."""

import numpy as np
import pytest

from support.catalogue import MATRIX, PROBLEMS
from support.tiny import SPLIT, TASK, changed
from surestep.base.errors import ConfigurationError
from surestep.problem.datasets import PriorSet
from surestep.rules import GradientDescent, HeavyBall
from surestep.rules.safeguarded import SafeguardSettings
from surestep.train import tuning
from surestep.train.tuning import GUARDS, Family, TuningSettings, mean_losses, tuned, tuned_guard

REGRESSION = PROBLEMS["regression"]
DATA = PriorSet.draw(REGRESSION.problem, 6, 0)
RANGE = TuningSettings(lowest=1e-3 / REGRESSION.smoothness, highest=10 / REGRESSION.smoothness)


def run(settings, family: Family = GradientDescent):
    return tuned("problem.step", settings, family, REGRESSION.problem, DATA, 20, 8)


def test_finds_the_value_that_a_plain_search_finds():
    settings = TuningSettings(RANGE.lowest, RANGE.highest, values=13, instances=4)
    means = []
    for step in settings.grid:
        x = np.zeros((4, MATRIX.shape[1]))
        targets = np.asarray(DATA.thetas)[:4]
        for _ in range(20):
            x = x - step * (x @ MATRIX.T - targets) @ MATRIX
        means.append(0.5 * np.mean(np.sum((x @ MATRIX.T - targets) ** 2, axis=1)))
    found = mean_losses(GradientDescent, settings.grid, REGRESSION.problem, DATA, 4, 20, 8)
    np.testing.assert_allclose(found, means, rtol=1e-9)
    best = run(settings)
    assert best == settings.grid[np.argmin(means)]
    assert best == run(settings)


def test_the_grid_is_geometric_and_includes_both_ends():
    grid = TuningSettings().grid
    assert len(grid) == 100 and grid[0] == 1e-4 and grid[-1] == pytest.approx(1)
    np.testing.assert_allclose(np.diff(np.log(grid)), np.log(1e4) / 99)


def test_any_family_of_rules_will_do():
    step = 1 / REGRESSION.smoothness
    momentum = run(TuningSettings(0.01, 0.999, values=9), lambda value: HeavyBall(step, value))
    assert 0.01 < momentum < 0.999


def test_values_that_diverge_count_as_infinite():
    losses = mean_losses(
        GradientDescent, np.array([0.1, 1e9, 1e200]), REGRESSION.problem, DATA, 6, 40, 8
    )
    assert np.isfinite(losses[0]) and np.all(np.isinf(losses[1:]))


@pytest.mark.parametrize(
    ("lowest", "highest"),
    [
        (RANGE.lowest / 1e4, RANGE.lowest),
        (1.99 / REGRESSION.smoothness, 199 / REGRESSION.smoothness),
        (1e4 * RANGE.highest, 1e6 * RANGE.highest),  # where all diverge
    ],
)
def test_a_range_is_continued_beyond_its_best_end(lowest, highest, caplog):
    found = run(TuningSettings(lowest, highest, values=9))
    assert "is continued from" in caplog.text
    # It does as well as the best of a range around it.
    wide = TuningSettings(RANGE.lowest, RANGE.highest, values=9)
    values = np.array([found, *wide.grid])
    losses = mean_losses(GradientDescent, values, REGRESSION.problem, DATA, 64, 20, 8)
    assert losses[0] <= 1.2 * losses.min()
    assert RANGE.lowest < found < 2 / REGRESSION.smoothness


def test_where_everything_diverges_nothing_is_chosen():
    with pytest.raises(ConfigurationError, match="diverges: try smaller ones"):
        run(TuningSettings(1e200, 1e210, values=5))


def test_where_no_value_is_the_best_nothing_is_chosen(monkeypatch):
    monkeypatch.setattr(tuning, "mean_losses", lambda family, values, *_: 1 + values)
    with pytest.raises(ConfigurationError, match="which was continued 3 times: is there"):
        run(TuningSettings(1e-4, 1.0, values=5))


def test_a_range_with_its_best_value_inside_is_left_as_it_is(caplog):
    run(TuningSettings(RANGE.lowest, RANGE.highest, values=9))
    assert not caplog.text


def test_only_as_many_instances_as_asked_for_decide():
    small = PriorSet.draw(REGRESSION.problem, 3, 0)
    arguments = (GradientDescent, np.array([0.01, 0.02]), REGRESSION.problem)
    np.testing.assert_allclose(
        mean_losses(*arguments, DATA, 3, 20, 8), mean_losses(*arguments, small, 99, 20, 8)
    )


@pytest.mark.parametrize(
    "settings",
    [
        TuningSettings(lowest=0.0),
        TuningSettings(lowest=2.0, highest=1.0),
        TuningSettings(values=2),
        TuningSettings(instances=0),
    ],
)
def test_ranges_without_an_inside_are_refused(settings):
    with pytest.raises(ConfigurationError, match=r"problem\.step\.(lowest|values)"):
        run(settings)


# 1 / L for the worst instance: diagonals squared are at most this.
TASK_SMOOTHNESS = float(np.max(np.asarray(SPLIT.prior.thetas.diagonal) ** 2))


def guard_of(rule, *choices):
    task = changed(TASK, horizon=12)
    careful = GradientDescent(0.5 / TASK_SMOOTHNESS)
    return tuned_guard(rule, careful, task, SPLIT.prior, choices or GUARDS[:2])


def test_a_rule_that_blows_up_wants_a_narrow_safeguard_and_a_good_one_none():
    patient, narrow = SafeguardSettings(1e12, 100), SafeguardSettings(2.0, 100)
    wild = GradientDescent(2.5 / TASK_SMOOTHNESS)
    assert guard_of(wild, patient, narrow) == narrow
    # Where none of them ever acts, the first one counts.
    good = GradientDescent(1 / TASK_SMOOTHNESS)
    assert guard_of(good, patient, narrow) == patient
    assert guard_of(good) == GUARDS[0]


def test_safeguards_that_cannot_work_are_refused():
    with pytest.raises(ConfigurationError, match="factor"):
        guard_of(GradientDescent(0.1), SafeguardSettings(0.5, 10))
    with pytest.raises(ConfigurationError, match="no safeguard to choose from"):
        tuned_guard(GradientDescent(0.1), GradientDescent(0.1), TASK, SPLIT.prior, ())
