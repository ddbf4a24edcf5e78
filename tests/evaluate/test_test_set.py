"""Evaluation: everyone on the same instances, every failure counted."""

import json
import time

import numpy as np
import pytest

from support.reach import reach
from support.tiny import (
    CONFIG,
    EXPERIMENT,
    OPPONENTS,
    PROBLEM,
    RULE,
    SPLIT,
    TASK,
    changed,
    located,
    planned,
    references,
)
from surestep.base.errors import ConfigurationError, ProblemError
from surestep.certify.gather import certify
from surestep.certify.statements import make_certificate
from surestep.evaluate.test_set import evaluate
from surestep.evaluate.timing import ALONE
from surestep.problem.base import instance
from surestep.problem.datasets import TestSet
from surestep.report import summary
from surestep.report.draw import save_figure
from surestep.report.figures import overview
from surestep.report.profile import profile
from surestep.rollout.loop import Status, rollout
from surestep.rules.base import Rule, hyper_of, with_hyper
from surestep.run.learned import Learned
from surestep.train.experiment import Accuracies
from surestep.train.sample import sample

SETTINGS = changed(CONFIG.evaluate, limit=60)
LEARNED_RULE = located()
BASELINES = EXPERIMENT.chosen(SETTINGS.baselines)
FOUND = evaluate(SETTINGS, TASK, LEARNED_RULE, BASELINES, Accuracies((1e2, 1e-3)), SPLIT.test)


def test_axes():
    assert FOUND.solvers == ["learned", "heavy ball", "conjugate gradients"]
    assert FOUND.losses.shape == (3, 64, 2 * CONFIG.horizon + 1)
    assert FOUND.seconds.shape == FOUND.reach_iterations.shape == (3, 2, 64)
    assert FOUND.seconds_batch.shape == (3, 2)
    # A few are timed one by one, the same for all; the rest as a batch.
    assert FOUND.alone == ALONE == 20
    assert np.all(FOUND.seconds[:, :, :20] > 0) and np.all(np.isnan(FOUND.seconds[:, :, 20:]))
    assert np.all(FOUND.seconds_batch > 0)


def test_all_start_at_the_same_point_of_the_same_instances():
    for losses in FOUND.losses:
        # Rounding differs from program to program, nothing else.
        np.testing.assert_allclose(losses[:, 0], FOUND.losses[0, :, 0], rtol=1e-14)


def test_losses_and_costs_are_those_of_single_rollouts():
    for s, rule in enumerate([LEARNED_RULE, EXPERIMENT.baselines["heavy ball"]]):
        theta = instance(SPLIT.test.thetas, 5)
        single = rollout(rule, PROBLEM, theta, 2 * CONFIG.horizon)
        np.testing.assert_allclose(FOUND.losses[s, 5], single.losses, rtol=1e-8)
        for a, accuracy in enumerate((1e2, 1e-3)):
            end = reach(rule, PROBLEM, theta, accuracy, 60)
            assert FOUND.reach_iterations[s, a, 5] == end.iterations
            assert FOUND.reach_gradients[s, a, 5] == end.gradients
            assert FOUND.reach_status[s, a, 5] == end.status


def test_conjugate_gradients_solve_every_instance():
    assert np.all(FOUND.reach_status[2] == Status.REACHED)
    assert FOUND.reach_iterations[2].max() <= CONFIG.problem.dimension


def test_a_rule_that_fails_fails_in_the_numbers():
    wild = with_hyper(RULE, hyper_of(RULE) * 1e80)
    found = evaluate(
        changed(SETTINGS, baselines=()), TASK, wild, {}, Accuracies((1e-3,)), SPLIT.test
    )
    assert np.all(np.isinf(found.losses[0, :, -1]))
    assert found.success.successes == 0
    assert np.all(found.reach_status[0] == Status.DIVERGED)


def test_success_counts_losses_at_the_horizon():
    final = FOUND.losses[0, :, CONFIG.horizon]
    assert FOUND.success.successes == np.sum(final <= TASK.thresholds(SPLIT.test))
    assert FOUND.success.trials == 64


def test_an_unknown_baseline_is_named():
    with pytest.raises(ConfigurationError, match=r"no baseline called 'Newton'.*heavy ball"):
        EXPERIMENT.chosen(["Newton"])


def test_accuracies_are_counted_from_every_instance_s_own_reference():
    half = TASK.start_losses(SPLIT.test) / 2
    accuracies = Accuracies((1e-3,), lambda thetas: half, "half the start's loss")
    found = evaluate(SETTINGS, TASK, LEARNED_RULE, BASELINES, accuracies, SPLIT.test)
    np.testing.assert_array_equal(found.references, half)
    losses = found.losses[2]  # conjugate gradients solve every instance
    first = np.argmax(losses < half[:, None] + 1e-3, axis=1)
    assert np.all(losses.min(axis=1) < half)
    np.testing.assert_array_equal(found.reach_iterations[2, 0], first)
    assert len(set(first.tolist())) > 1


def test_few_instances_can_be_timed():
    settings = changed(SETTINGS, timed=3)
    found = evaluate(settings, TASK, LEARNED_RULE, BASELINES, Accuracies((1e2,)), SPLIT.test)
    assert found.losses.shape == FOUND.losses.shape
    assert found.seconds.shape == (3, 1, 3)
    np.testing.assert_array_equal(found.reach_gradients[:, 0], FOUND.reach_gradients[:, 0, :3])
    with pytest.raises(ConfigurationError, match="timed"):
        changed(SETTINGS, timed=-1).validate()


def test_measures_are_watched_along_every_rollout():
    def first_unknown(x, theta):
        return x[0] * theta.diagonal[0]

    found = evaluate(
        *(SETTINGS, TASK, LEARNED_RULE, {}, Accuracies((1e2,)), SPLIT.test),
        {"first": first_unknown},
    )
    assert found.measured == ["first"]
    assert found.measures.shape == (1, 1, 64, 2 * CONFIG.horizon + 1)
    assert np.all(found.measures[0, 0, :, 0] == 0)
    theta = instance(SPLIT.test.thetas, 3)
    end = rollout(LEARNED_RULE, PROBLEM, theta, 2 * CONFIG.horizon).x
    assert found.measures[0, 0, 3, -1] == pytest.approx(float(first_unknown(end, theta)))
    assert FOUND.measures.shape == (3, 0, 64, 2 * CONFIG.horizon + 1)


def test_external_solvers_are_timed_and_their_losses_are_measured():
    asked = []

    def exact(theta, target, accuracy):
        assert isinstance(theta.diagonal, np.ndarray)
        asked.append((target, accuracy))
        time.sleep(0.002)
        return theta.target / theta.diagonal

    def idle(theta, target, accuracy):
        return np.zeros_like(theta.target)

    def worse(theta, target, accuracy):
        return -9 * theta.target / theta.diagonal

    start = TASK.start_losses(SPLIT.test)
    accuracies = Accuracies((1e2, 1e-3), lambda _: start)
    found = evaluate(
        *(SETTINGS, TASK, LEARNED_RULE, {}, accuracies, SPLIT.test),
        external={"exact": exact, "idle": idle, "worse": worse},
    )
    assert found.external == ["exact", "idle", "worse"]
    assert found.external_losses.shape == found.external_seconds.shape == (3, 2, 64)
    few = start[:20]
    assert np.all(np.isnan(found.external_losses[:, :, 20:]))
    assert np.all(found.external_losses[0, :, :20] < 1e-12)
    np.testing.assert_allclose(found.external_losses[1, :, :20], np.stack([few, few]))
    np.testing.assert_array_equal(found.external_missed(), [(0, 0), (0, 0), (20, 20)])
    np.testing.assert_array_equal(found.missed_share()[1:], [(0, 0), (0, 0), (1, 1)])
    assert np.all(found.external_seconds[0, :, :20] > 0.002)
    # For each accuracy each of the first instances once, after one call to warm up.
    wanted = [(s + accuracy, accuracy) for accuracy in (1e2, 1e-3) for s in (few[0], *few)]
    np.testing.assert_allclose(asked, wanted)
    assert FOUND.external == [] and FOUND.external_losses.shape == (0, 2, 64)


class Failing(Rule):
    """A rule that somebody has got wrong."""

    def init(self, oracle, x):
        raise ValueError("matrices that do not fit")

    def step(self, oracle, state):
        raise NotImplementedError


def test_an_opponent_that_raises_is_left_out_and_a_note_says_so():
    baselines = {"wrong": Failing(), **BASELINES}
    found = evaluate(SETTINGS, TASK, LEARNED_RULE, baselines, Accuracies((1e2,)), SPLIT.test)
    assert found.solvers == ["learned", "heavy ball", "conjugate gradients"]
    (note,) = found.notes
    assert "wrong" in note and "left out" in note and "matrices that do not fit" in note
    np.testing.assert_array_equal(found.losses, FOUND.losses)
    assert FOUND.notes == []
    with pytest.raises(ValueError, match="do not fit"):
        evaluate(SETTINGS, TASK, Failing(), BASELINES, Accuracies((1e2,)), SPLIT.test)


def test_an_external_solver_that_raises_has_failed_there():
    def moody(theta, target, accuracy):
        if theta.target[0] > 0:
            raise RuntimeError("singular")
        return theta.target / theta.diagonal

    def hopeless(theta, target, accuracy):
        raise OSError("no licence")

    def shapeless(theta, target, accuracy):
        return np.zeros(3)

    found = evaluate(
        *(SETTINGS, TASK, LEARNED_RULE, {}, Accuracies((1e-3,)), SPLIT.test),
        external={"moody": moody, "hopeless": hopeless, "shapeless": shapeless},
    )
    fails = np.asarray(SPLIT.test.thetas.target)[:20, 0] > 0
    assert 0 < fails.sum() < 20
    np.testing.assert_array_equal(np.isinf(found.external_losses[0, 0, :20]), fails)
    np.testing.assert_array_equal(found.external_missed()[:, 0], [fails.sum(), 20, 20])
    assert found.alone == 20 and np.all(np.isfinite(found.mean_seconds()))
    first, second, third = found.notes
    assert first == f"moody failed in {fails.sum()} of 20 solves: RuntimeError: singular"
    assert second == "hopeless failed in 20 of 20 solves: OSError: no licence"
    assert third.startswith("shapeless failed in 20 of 20 solves")


def halves(thetas, unknown):
    """Half the start's loss; no number where theta is unknown to it, and an error for a set."""
    losses = 0.25 * np.sum(np.asarray(thetas.target) ** 2, axis=1)
    if np.any(unknown(thetas)) and len(losses) > 1:
        raise ValueError("some do not converge")
    return np.where(unknown(thetas), np.nan, losses)


def test_instances_whose_reference_is_unknown_are_left_out_of_what_is_counted_from_it():
    def unknown(thetas):
        return np.asarray(thetas.target)[:, 0] > 1.0

    lost = unknown(SPLIT.test.thetas)
    assert 0 < lost.sum() < 20
    accuracies = Accuracies((1e2, 1e-3), lambda t: halves(t, unknown), "half the start's loss")
    found = evaluate(SETTINGS, TASK, LEARNED_RULE, BASELINES, accuracies, SPLIT.test)
    np.testing.assert_array_equal(np.isneginf(found.references), lost)
    np.testing.assert_array_equal(found.known, ~lost)
    kept = TestSet(instance(SPLIT.test.thetas, np.flatnonzero(~lost)))
    rest = evaluate(SETTINGS, TASK, LEARNED_RULE, BASELINES, accuracies, kept)
    np.testing.assert_array_equal(found.missed(), rest.missed())
    np.testing.assert_array_equal(found.gradients_needed(), rest.gradients_needed())
    np.testing.assert_allclose(
        found.distances(found.losses[:, :, -1]), rest.distances(rest.losses[:, :, -1]), rtol=1e-9
    )
    (note,) = found.notes
    assert f"unknown on {lost.sum()} of 64 test instances" in note

    with pytest.raises(ProblemError, match="none of 64"):
        none = Accuracies((1e2,), lambda thetas: np.full(len(thetas.target), np.nan))
        evaluate(SETTINGS, TASK, LEARNED_RULE, BASELINES, none, SPLIT.test)


@pytest.fixture(scope="module")
def learned():
    prior = sample(
        changed(CONFIG.sample, samples=3), TASK, LEARNED_RULE, SPLIT.prior, SPLIT.validation, 0
    )
    plan = planned(prior)
    posterior = certify(plan, TASK, LEARNED_RULE, prior, OPPONENTS, references(), SPLIT.train)
    document = make_certificate("tiny", plan, "", posterior, {"train": 64}, {})
    return Learned(TASK, LEARNED_RULE, document, prior, posterior, FOUND)


def test_the_figure_shows_all_instances_and_the_bound(learned):
    figure = overview(learned)
    losses, times, histogram, success = figure.panels
    median = next(line for line in losses.lines if line.label == "learned, median")
    assert median.y[CONFIG.horizon] in FOUND.losses[0, :, CONFIG.horizon]
    mean = next(line for line in losses.lines if line.label == "heavy ball, mean")
    assert mean.y == pytest.approx(FOUND.losses[1].mean(axis=0).tolist())
    total = next(line for line in times.lines if line.label.startswith("learned, 100"))
    assert total.y[-1] == pytest.approx(FOUND.seconds[0, 0, : FOUND.alone].sum())
    assert [sum(bars.heights) for bars in histogram.bars] == [64, 64]
    assert any(mark.x == learned.certified.bound for mark in histogram.marks)
    density = success.lines[0]
    assert np.trapezoid(density.y, density.x) == pytest.approx(1, abs=0.02)


def test_figures_are_written_as_data_png_and_svg(learned, tmp_path):
    paths = save_figure(overview(learned), tmp_path)
    assert sorted(path.suffix for path in paths) == [".json", ".png", ".svg"]
    data = json.loads((tmp_path / "overview.json").read_text())
    assert len(data["panels"]) == 4
    assert (tmp_path / "overview.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    again = save_figure(overview(learned), tmp_path / "again")
    svg = next(path for path in again if path.suffix == ".svg")
    assert svg.read_bytes() == (tmp_path / "overview.svg").read_bytes()


def test_the_summary_names_every_solver_and_what_was_missed(learned):
    text = summary(learned)
    for name in FOUND.solvers:
        assert name in text
    assert "missed" in text
    middle, high = (FOUND.gradient_quantile(share)[2, 1] for share in (0.5, 0.9))
    row = next(r for r in text.splitlines() if f" {middle:.0f}/{high:.0f}, " in r)
    assert row.startswith("conjugate gradients")


def test_the_summary_says_what_training_is_worth(learned):
    timed = changed(FOUND, seconds=np.ones_like(FOUND.seconds) * np.array([1, 5, 2])[:, None, None])
    timed = changed(timed, reach_status=np.full_like(FOUND.reach_status, Status.REACHED))
    worth = changed(learned, evaluated=timed, training_seconds=12.0)
    text = summary(worth)
    assert "Training took 12 s" in text
    assert "12 solves" in text and "(1 s a solve, conjugate gradients 2 s)" in text
    assert "never" not in text
    text = summary(changed(worth, evaluated=FOUND))
    assert "never" in text and "instances more)" in text


def test_the_profile_is_drawn_for_every_accuracy(learned, tmp_path):
    figure = profile(learned)
    assert [panel.title for panel in figure.panels] == ["To 100", "To 0.001"]
    assert [line.group for line in figure.panels[0].lines] == FOUND.solvers
    assert (tmp_path / "profile.png") in save_figure(figure, tmp_path)


def test_a_learned_rule_solves(learned):
    thetas = SPLIT.test.thetas
    seen = []
    result = learned.solver.solve(thetas, callback=lambda _, loss, __: seen.append(loss), every=1)
    assert result.loss.dtype == np.float64
    np.testing.assert_array_equal(np.stack(seen, 1), FOUND.losses[0, :, : CONFIG.horizon + 1])
    np.testing.assert_array_equal(learned.solve(thetas).loss, seen[-1])
    reached = learned.solve_to(thetas, 1e2, limit=60)
    np.testing.assert_array_equal(reached.iterations, FOUND.reach_iterations[0, 0])
