"""Locating: the training loss, restarts, the constraint and the way back inside."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from support.tiny import CONFIG, PROBLEM, RULE, SPLIT, TASK, TEACHER, changed
from surestep.base.errors import ConfigurationError, InfeasibleError
from surestep.problem.base import instance
from surestep.rollout.loop import rollout
from surestep.rules.base import hyper_of, with_hyper
from surestep.storage.checkpoint import FileCheckpoint
from surestep.train import locate as locate_module
from surestep.train.constraint import Constraint
from surestep.train.imitate import imitate
from surestep.train.locate import LocateSettings, locate
from surestep.train.steps import merit
from surestep.train.task import Task
from surestep.train.trajectory import (
    TrainingSettings,
    follow,
    piece_objective,
    start_trajectory,
    training_gradient,
)

SHORT = changed(CONFIG.locate, steps=60, check_every=20, chunk=10)
THETAS = SPLIT.prior.thetas
with jax.enable_x64(True):
    MATERIAL = TASK.material(SPLIT.prior)


class Verdicts:
    """A task whose checks follow a script; it keeps the hypers that were checked."""

    def __init__(self, script):
        self.script, self.checked = script, []

    def install(self, monkeypatch):
        def success(task, rule, data, *name):
            self.checked.append(np.asarray(hyper_of(rule)))
            good = self.script[len(self.checked) - 1]
            return CONFIG.constraint.assess(64 if good else 0, 64)

        monkeypatch.setattr(Task, "success", success)
        return self


def test_ratio_is_the_papers_training_loss():
    losses = jnp.array([4.0, 2.0, 3.0])
    assert piece_objective(losses, "ratio") == 2 / 4 + 3 / 2
    assert piece_objective(losses, "sum") == 5.0
    # A loss of 0 ends the sum: its indicator is 0, and so is its derivative.
    assert piece_objective(jnp.array([2.0, 0.0, 7.0]), "ratio") == 0.0
    gradient = jax.grad(lambda v: piece_objective(v, "ratio"))(jnp.array([2.0, 0.0, 7.0]))
    assert np.all(np.isfinite(gradient))


@pytest.mark.parametrize("length", [1, 3, 7])
def test_a_piece_is_the_rollout_it_belongs_to(length):
    trajectory = start_trajectory(RULE, PROBLEM, THETAS, jnp.asarray(4))
    expected = rollout(RULE, PROBLEM, instance(THETAS, 4), 2 * length).losses
    first, trajectory = follow(RULE, PROBLEM, THETAS, trajectory, length)
    second, trajectory = follow(RULE, PROBLEM, THETAS, trajectory, length)
    np.testing.assert_allclose(first, expected[: length + 1], rtol=1e-11)
    np.testing.assert_allclose(second, expected[length:], rtol=1e-11)
    assert trajectory.age == 2 * length


def test_the_gradient_of_one_step_agrees_with_finite_differences():
    trajectory = start_trajectory(RULE, PROBLEM, THETAS, jnp.asarray(2))
    _, trajectory = follow(RULE, PROBLEM, THETAS, trajectory, 3)
    hyper = hyper_of(RULE)

    @jax.jit
    def objective(h):
        losses, _ = follow(with_hyper(RULE, h), PROBLEM, THETAS, trajectory, 1)
        return piece_objective(losses, "ratio")

    value, _, gradient = training_gradient(RULE, PROBLEM, MATERIAL, hyper, trajectory, 1)
    assert value == pytest.approx(float(objective(hyper)))
    for i in np.random.default_rng(0).choice(hyper.size, 12, replace=False):
        step = 1e-6
        up, down = hyper.at[i].add(step), hyper.at[i].add(-step)
        slope = float(objective(up) - objective(down)) / (2 * step)
        assert gradient[i] == pytest.approx(slope, rel=1e-4, abs=1e-8)


@pytest.mark.parametrize("restarts", ["random", "fixed"])
@pytest.mark.parametrize("objective", ["ratio", "sum"])
def test_training_lowers_its_objective(objective, restarts):
    imitated = imitate(CONFIG.imitate, TASK, RULE, TEACHER, SPLIT.prior, 0)
    start = with_hyper(RULE, jnp.asarray(imitated.hyper))
    task = changed(TASK, training=TrainingSettings(objective=objective))
    settings = changed(CONFIG.locate, restarts=restarts, steps=4000)
    found = locate(settings, task, start, SPLIT.prior, SPLIT.validation, 0)
    assert np.mean(found.objectives[-4:]) < 0.95 * found.objectives[0]
    before = np.median(TASK.losses(start, SPLIT.test))
    after = np.median(TASK.losses(with_hyper(RULE, jnp.asarray(found.hyper)), SPLIT.test))
    assert after < before


def test_longer_pieces_train_too():
    settings = changed(CONFIG.locate, length=(4,), steps=500)
    imitated = imitate(CONFIG.imitate, TASK, RULE, TEACHER, SPLIT.prior, 0)
    start = with_hyper(RULE, jnp.asarray(imitated.hyper))
    found = locate(settings, TASK, start, SPLIT.prior, SPLIT.validation, 0)
    assert found.estimate.inside


def test_a_point_outside_is_given_up_for_the_last_one_inside(monkeypatch):
    verdicts = Verdicts([True, False, True]).install(monkeypatch)
    found = locate(SHORT, TASK, RULE, SPLIT.prior, SPLIT.validation, 0)
    assert [check.inside for check in found.checks] == [True, False, True]
    np.testing.assert_array_equal(found.hyper, verdicts.checked[2])
    # Adam moves by about the learning rate: 20 steps lead from where it returned to, 40 from
    # where it would be without the return.
    returned = np.abs(verdicts.checked[2] - verdicts.checked[0]).max()
    stayed = Verdicts([True, True, True]).install(monkeypatch)
    locate(SHORT, TASK, RULE, SPLIT.prior, SPLIT.validation, 0)
    np.testing.assert_array_equal(stayed.checked[1], verdicts.checked[1])
    went_on = np.abs(stayed.checked[2] - stayed.checked[0]).max()
    assert returned < 30 * SHORT.learning_rate < went_on


def test_the_end_may_be_outside_then_the_last_inside_counts(monkeypatch):
    verdicts = Verdicts([True, True, False]).install(monkeypatch)
    found = locate(SHORT, TASK, RULE, SPLIT.prior, SPLIT.validation, 0)
    np.testing.assert_array_equal(found.hyper, verdicts.checked[1])


def test_before_the_constraint_is_met_nothing_is_given_up(monkeypatch):
    verdicts = Verdicts([False, False, True]).install(monkeypatch)
    found = locate(SHORT, TASK, RULE, SPLIT.prior, SPLIT.validation, 0)
    moved = np.abs(verdicts.checked[2] - np.asarray(hyper_of(RULE))).max()
    assert moved > 30 * SHORT.learning_rate
    np.testing.assert_array_equal(found.hyper, verdicts.checked[2])


def test_a_run_that_never_gets_there_says_how_far_it_came(monkeypatch):
    Verdicts([False] * 3).install(monkeypatch)
    with pytest.raises(InfeasibleError, match=r"60 steps .* 3 checks was 0\.015 \(0 of 64"):
        locate(SHORT, TASK, RULE, SPLIT.prior, SPLIT.validation, 0)
    assert InfeasibleError.exit_code == 3


def test_an_impossible_constraint_is_infeasible_without_a_script():
    task = changed(TASK, goal=changed(TASK.goal, scale=1e-30))
    with pytest.raises(InfeasibleError):
        locate(SHORT, task, RULE, SPLIT.prior, SPLIT.validation, 0)


def test_steps_that_blow_up_are_skipped_and_counted():
    wild = with_hyper(RULE, hyper_of(RULE) * 1e60)
    task = changed(TASK, constraint=Constraint(lower=0.0, width=0.15))
    found = locate(SHORT, task, wild, SPLIT.prior, SPLIT.validation, 0)
    assert found.skipped > 0
    assert np.all(np.isfinite(found.hyper))


def test_same_seed_same_bits_other_seed_other_bits():
    task = changed(TASK, constraint=Constraint(lower=0.0, width=0.15))
    hypers = [
        locate(SHORT, task, RULE, SPLIT.prior, SPLIT.validation, seed).hyper for seed in (0, 0, 1)
    ]
    np.testing.assert_array_equal(hypers[0], hypers[1])
    assert np.any(hypers[0] != hypers[2])


class Spy:
    """Notes how many steps were made with pieces of which length."""

    def __init__(self, train):
        self.train, self.pieces = train, []

    def __call__(self, *arguments):
        self.pieces += [arguments[6]] * arguments[5].size
        return self.train(*arguments)


EASY = changed(TASK, constraint=Constraint(lower=0.0, width=0.15))


@pytest.mark.parametrize(("steps", "counts"), [(60, [20, 20, 20]), (50, [17, 17, 16])])
def test_several_lengths_serve_for_equal_parts_of_the_steps(steps, counts, monkeypatch):
    spy = Spy(lambda pupil, *_: (pupil, jnp.zeros(()), jnp.zeros((), jnp.int32)))
    monkeypatch.setattr(locate_module, "train_compiled", spy)
    settings = changed(SHORT, steps=steps, length=(1, 3, 2))
    locate(settings, EASY, RULE, SPLIT.prior, SPLIT.validation, 0)
    assert spy.pieces == [1] * counts[0] + [3] * counts[1] + [2] * counts[2]
    assert [settings.length_at(step) for step in range(steps)] == spy.pieces


def test_of_the_checked_rules_the_best_is_kept(monkeypatch):
    verdicts = Verdicts([True] * 4).install(monkeypatch)
    merits = iter([3.0, 1.0, 1.4, 1.0])
    monkeypatch.setattr(locate_module, "merit", lambda *_: next(merits))
    settings = changed(SHORT, keep="best")
    found = locate(settings, EASY, RULE, SPLIT.prior, SPLIT.validation, 0)
    # The start is checked, too; of equals the first counts.
    assert len(found.checks) == 4
    np.testing.assert_array_equal(verdicts.checked[0], hyper_of(RULE))
    np.testing.assert_array_equal(found.hyper, verdicts.checked[1])
    # Training went on from where it was, not from the best.
    assert np.abs(verdicts.checked[3] - verdicts.checked[1]).max() > 30 * SHORT.learning_rate


def test_a_rule_that_training_has_spoiled_goes_back_and_on_more_slowly(monkeypatch):
    verdicts = Verdicts([True] * 4).install(monkeypatch)
    merits = iter([3.0, 1.0, 1.6, 0.0])
    monkeypatch.setattr(locate_module, "merit", lambda *_: next(merits))
    rates, train = [], locate_module.train_compiled

    def spy(*arguments):
        rates.append(np.asarray(arguments[5]))
        return train(*arguments)

    monkeypatch.setattr(locate_module, "train_compiled", spy)
    locate(changed(SHORT, keep="best"), EASY, RULE, SPLIT.prior, SPLIT.validation, 0)
    # Twenty small steps from the best, not forty.
    first = np.abs(verdicts.checked[1] - verdicts.checked[0]).max()
    assert np.abs(verdicts.checked[3] - verdicts.checked[1]).max() <= 0.75 * first
    np.testing.assert_allclose(rates[4], rates[0] / 2)
    np.testing.assert_array_equal(rates[3], rates[0])


def test_the_best_outside_of_the_constraint_does_not_count(monkeypatch):
    verdicts = Verdicts([False, True, False, True]).install(monkeypatch)
    merits = iter([2.0, 1.0])
    monkeypatch.setattr(locate_module, "merit", lambda *_: next(merits))
    settings = changed(SHORT, keep="best")
    found = locate(settings, TASK, RULE, SPLIT.prior, SPLIT.validation, 0)
    np.testing.assert_array_equal(found.hyper, verdicts.checked[3])
    assert [check.inside for check in found.checks] == [False, True, False, True]


@pytest.mark.parametrize("rate", [1e-4, 10.0])
def test_training_that_spoils_a_rule_gives_back_what_it_began_with(rate):
    """Whatever training does, the result is no worse on the prior set than the start."""
    settings = changed(SHORT, keep="best", learning_rate=rate)
    found = locate(settings, EASY, RULE, SPLIT.prior, SPLIT.validation, 0)
    before = merit(EASY, RULE, SPLIT.prior)
    after = merit(EASY, with_hyper(RULE, jnp.asarray(found.hyper)), SPLIT.prior)
    assert after <= before
    if rate > 1:
        np.testing.assert_array_equal(found.hyper, hyper_of(RULE))


class Failing(FileCheckpoint):
    """The power goes right after a save."""

    def save(self, tree):
        super().save(tree)
        raise KeyboardInterrupt


def test_locating_goes_on_from_every_save(tmp_path):
    settings = changed(SHORT, keep="best", length=(1, 2))
    arguments = (settings, EASY, RULE, SPLIT.prior, SPLIT.validation, 0)
    alone = locate(*arguments)
    place = tmp_path / "locate.partial.safetensors"
    for _ in range(3):
        with pytest.raises(KeyboardInterrupt):
            locate(*arguments, Failing(place))
    again = locate(*arguments, FileCheckpoint(place))
    for name, value in vars(alone).items():
        np.testing.assert_array_equal(getattr(again, name), value, err_msg=name)


@pytest.mark.parametrize(
    "changes",
    [
        {"steps": -1},
        {"length": (0,)},
        {"length": ()},
        {"length": (1, 11)},
        {"learning_rate": 0.0},
        {"chunk": 0},
    ],
)
def test_bad_settings_are_refused(changes):
    with pytest.raises(ConfigurationError, match=r"locate\."):
        changed(LocateSettings(), **changes).validate(horizon=10)
