"""From a problem to a run: surveys, candidates, goals, and what is kept of them."""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from house.crash_child import empty
from support.quadratic import (
    BOXED,
    CURVATURE,
    MATRIX,
    QUADRATIC,
    RANDOM,
    quadratic,
    surveyed,
)
from support.types import unchecked
from surestep.auto import fit as fitting
from surestep.auto import race as racing
from surestep.auto.arena import Entry
from surestep.auto.candidates import Candidate, candidates, started
from surestep.auto.choice import Choice, experiment_for
from surestep.auto.choice_file import NAME as CHOICE
from surestep.auto.choice_file import read_choice
from surestep.auto.configure import OwnSettings, configure, seconds
from surestep.auto.fit import fit, plan_fit
from surestep.auto.goals import goal_for, goal_scale
from surestep.auto.survey import survey
from surestep.base.errors import ConfigurationError, RunFolderError
from surestep.evaluate.test_set import EvaluateSettings
from surestep.problem.base import Problem, instance
from surestep.problem.datasets import PriorSet
from surestep.problem.oracle import Oracle
from surestep.problem.structure import find_structure
from surestep.report import draw
from surestep.rollout.loop import rollout
from surestep.rules import (
    LBFGS,
    Checked,
    FistaWithRestart,
    GradientDescent,
    LearnedFista,
    MetricQuasiNewton,
    Newton,
    Predicted,
)
from surestep.rules.base import Rule, solver_fingerprint
from surestep.solver.load import load


@pytest.fixture(scope="module", name="surveyed")
def found_on_the_quadratic():
    return surveyed()


def choice_of(rule: Rule, at: int = 7) -> Choice:
    """What a race might have chosen."""
    checked = Checked(rule, LBFGS(), at=at, tolerance=0.1)
    entries = (Entry("this one", False, at, 1e-4, 1e-5),)
    opponents: dict[str, Rule] = {"L-BFGS": LBFGS(), "gradient descent": GradientDescent(0.01)}
    return Choice(checked, opponents, "this one", entries, at, 30.0, 900, 2.5)


def test_a_survey_finds_solutions_curvature_and_what_predicts_them(surveyed):
    thetas = PriorSet.draw(QUADRATIC, 48, 0).thetas
    solutions = np.linalg.solve(MATRIX, np.asarray(thetas).T).T
    assert surveyed.minima.max() < 1e-12
    starts = 0.5 * np.sum((MATRIX @ np.ones(5) - np.asarray(thetas)) ** 2, axis=1)
    np.testing.assert_allclose(surveyed.starts, starts, rtol=1e-12)
    largest = np.linalg.eigvalsh(CURVATURE)[-1]
    assert largest <= surveyed.smoothness <= 1.2 * largest
    np.testing.assert_allclose(
        surveyed.root @ surveyed.root.T, np.linalg.inv(CURVATURE), rtol=1e-6, atol=1e-8
    )
    rule = started(Candidate("L-BFGS", LBFGS()), QUADRATIC, surveyed).rule
    assert isinstance(rule, Predicted)
    with jax.enable_x64(True):
        found = [
            rule.start(Oracle(QUADRATIC, instance(thetas, i)), jnp.ones(5)) for i in range(40, 48)
        ]
    np.testing.assert_allclose(found, solutions[40:], atol=1e-4)


def test_the_metric_makes_the_first_step_newtons(surveyed):
    """On a quadratic with the right metric, one step from anywhere ends at the minimum."""
    with jax.enable_x64(True):
        rule = MetricQuasiNewton.of(jnp.asarray(surveyed.root))
        theta = QUADRATIC.sample(jax.random.key(1))
        losses = rollout(rule, QUADRATIC, theta, 2).losses
        assert float(losses[1]) < 1e-10 * float(losses[0])
        diagonal = MetricQuasiNewton.of(jnp.asarray([0.5, 1.0, 2.0]))
        moved = diagonal.metric(jnp.ones(3))
        np.testing.assert_allclose(moved, [0.25, 1.0, 4.0])
        # A metric that is wrong is mended by what the iterations show.
        wrong = MetricQuasiNewton.of(0.1 * jnp.eye(5))
        assert float(rollout(wrong, QUADRATIC, theta, 40).losses[-1]) < 1e-12


def test_untrained_rules_are_the_classical_ones():
    with jax.enable_x64(True):
        theta = BOXED.sample(jax.random.key(2))
        base = FistaWithRestart(1 / 30)
        expected = rollout(base, BOXED, theta, 30).losses
        found = rollout(LearnedFista.around(base, 8), BOXED, theta, 30).losses
        np.testing.assert_array_equal(found, expected)
        around = Predicted.around(base, 5, 5)
        np.testing.assert_array_equal(rollout(around, BOXED, theta, 30).losses, expected)


def test_a_predicted_start_meets_the_constraint():
    rule = Predicted(FistaWithRestart(1 / 30), jnp.full(5, 9.0), jnp.zeros((5, 0)),
                     jnp.zeros(0, jnp.int32))  # fmt: skip
    with jax.enable_x64(True):
        theta = BOXED.sample(jax.random.key(2))
        assert np.isfinite(float(rollout(rule, BOXED, theta, 1).losses[0]))


def names_of(problem, found, thetas):
    return [one.name for one in candidates(problem, found, find_structure(problem, thetas))]


def test_candidates_fit_the_structure(surveyed):
    thetas = PriorSet.draw(QUADRATIC, 48, 0).thetas
    smooth = names_of(QUADRATIC, surveyed, thetas)
    simplest = ["accelerated gradients", "heavy ball", "Barzilai-Borwein", "L-BFGS"]
    assert smooth[:4] == simplest
    assert {"Newton", "chord, a Hessian an instance"} <= set(smooth)
    assert "quasi-Newton in a shared metric, 3 pairs" in smooth
    large = dataclasses.replace(surveyed, dimension=401)
    assert not any(
        name == "Newton" or "Hessian" in name for name in names_of(QUADRATIC, large, thetas)
    )
    assert any("by conjugate gradients" in name for name in names_of(QUADRATIC, large, thetas))
    thetas = PriorSet.draw(BOXED, 24, 0).thetas
    found = survey(BOXED, PriorSet.draw(BOXED, 24, 0))
    assert names_of(BOXED, found, thetas) == [
        "FISTA with restart", "ADMM, factored once", "FISTA, learned schedule",
    ]  # fmt: skip
    experiment = experiment_for(BOXED, choice_of(FistaWithRestart(1 / 30)), (0.1,))
    assert list(experiment.external) == ["L-BFGS-B (SciPy)"]
    # SciPy's solver finds the minimum that the survey's has found.
    theta = jax.tree.map(np.asarray, instance(thetas, 0))
    point = experiment.external["L-BFGS-B (SciPy)"](theta, -1.0, 0.0)
    with jax.enable_x64(True):
        assert float(BOXED.loss(point, theta)) == pytest.approx(found.minima[0], rel=1e-9)
    # Nobody can be handed out by a name that an opponent has.
    assert set(experiment.baselines) == {"L-BFGS", "gradient descent"}
    assert experiment_for(QUADRATIC, choice_of(LBFGS()), (0.1,)).external == {}


def test_a_goal_that_all_minima_meet(surveyed):
    assert goal_scale(surveyed) == pytest.approx(1.02 * 0.01, rel=1e-6)
    goal = goal_for(QUADRATIC, surveyed)
    assert (goal.scale, goal.exponent) == (pytest.approx(0.0102), 1.0)
    assert np.all(surveyed.minima <= goal.scale * surveyed.starts)
    stuck = dataclasses.replace(surveyed, starts=surveyed.minima + 1, minima=surveyed.minima + 1)
    with pytest.raises(ConfigurationError, match="the start is a solution already"):
        goal_scale(stuck)


def test_where_there_is_no_goal_there_is_no_race(surveyed, monkeypatch):
    stuck = dataclasses.replace(surveyed, minima=surveyed.starts)
    monkeypatch.setattr(fitting, "survey_checked", lambda *_: stuck)
    monkeypatch.setattr(fitting, "choose", None)
    with pytest.raises(ConfigurationError, match="the start is a solution already"):
        plan_fit(QUADRATIC, 10)


def test_budgets():
    assert [seconds(text) for text in ("90s", "10m", "0.5h", 30)] == [90, 600, 1800, 30]
    for wrong in ("ten", "5", "3d", "1s", float("nan"), -3):
        with pytest.raises(ConfigurationError, match="budget"):
            seconds(wrong)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"accuracy": 0.0}, "a number between 0 and 1, not 0.0"),
        ({"accuracy": 1.0}, "the share of what there is to gain that may be left"),
        ({"accuracy": -1e-6}, "accuracy"),
        ({"accuracy": math.nan}, "accuracy"),
        ({"use": "twice"}, "use must be 'single', 'batch' or 'both', not 'twice'"),
        ({"budget": "soon"}, "a budget is a time like"),
        ({"budget": 3}, "at least 10 seconds"),
    ],
)
@unchecked()
def test_what_makes_no_sense_is_refused_before_anything_is_done(
    words, message, monkeypatch, tmp_path
):
    monkeypatch.setattr(fitting, "survey_checked", None)
    for call in (plan_fit, lambda *given, **more: fit(*given, **more, out=tmp_path / "run")):
        with pytest.raises(ConfigurationError, match=message):
            call(QUADRATIC, **words)
    assert not (tmp_path / "run").exists()


def test_more_time_is_more_samples_and_longer_evaluations(surveyed):
    learns, knows = choice_of(GradientDescent(jnp.asarray(0.01))), choice_of(Newton())
    wanted = OwnSettings(accuracy=1e-4, use="single")

    def configured(choice, budget):
        settings = dataclasses.replace(wanted, budget=budget)
        config, _ = configure(QUADRATIC, surveyed, choice, "quadratic", budget, 3, settings)
        config.validate()
        return config

    short, long = configured(learns, 10.0), configured(learns, 600.0)
    assert (short.sample.samples, long.sample.samples) == (1, 10)
    assert configured(knows, 600.0).sample.samples == 1  # there is nothing to draw
    assert short.evaluate.limit < long.evaluate.limit
    for config in (short, long):
        assert (config.horizon, config.seed) == (7, 3)
        assert config.goal.scale == pytest.approx(0.0102)
        # The race has trained: nothing is trained, and no minima are looked for.
        assert config.locate.steps == 0 and not config.sample.gradients
        assert not config.training.distances
        assert (config.problem.accuracy, config.problem.use) == (1e-4, "single")
        assert config.problem.accuracies[0] == pytest.approx(0.01 * surveyed.gap, rel=0.5)


def test_a_change_that_nobody_knows_is_refused_first(monkeypatch):
    monkeypatch.setattr(fitting, "survey_checked", None)
    with pytest.raises(ConfigurationError, match="did you mean 'horizon'"):
        fit(QUADRATIC, 10, horizn=3)


@unchecked()
def test_a_run_that_has_begun_keeps_what_was_chosen(surveyed, tmp_path, monkeypatch):
    """Another time on the clock must not make another run of the same call."""
    choices = iter(
        choice_of(GradientDescent(jnp.asarray(step)), at) for step, at in [(0.1, 5), (0.2, 9)]
    )
    monkeypatch.setattr(fitting, "survey_checked", lambda *_: surveyed)
    monkeypatch.setattr(fitting, "choose", lambda *_: next(choices))

    def keep(config, experiment, folder, report):
        with folder.claimed(config):
            return config, solver_fingerprint((experiment.rule(0), dict(experiment.baselines)))

    monkeypatch.setattr(fitting, "learn", keep)
    monkeypatch.setattr(fitting, "write_report", lambda *_: None)
    first: Any = fit(QUADRATIC, 60, out=tmp_path)
    assert first[0].horizon == 5
    assert fit(QUADRATIC, 60, out=tmp_path) == first
    # The power went between the configuration's copy and the configuration.
    (tmp_path / "config.json").unlink()
    assert fit(QUADRATIC, 60, out=tmp_path) == first
    with pytest.raises(ConfigurationError, match="a run of another problem or seed"):
        fit(QUADRATIC, 60, seed=1, out=tmp_path)
    with pytest.raises(ConfigurationError, match="was begun with accuracy 1e-06, not"):
        fit(QUADRATIC, 60, accuracy=1e-4, out=tmp_path)
    with pytest.raises(ConfigurationError, match="was begun with use both, not batch"):
        fit(QUADRATIC, 60, use="batch", out=tmp_path)
    with pytest.raises(ConfigurationError, match="was begun with budget 60"):
        fit(QUADRATIC, 90, out=tmp_path)
    (tmp_path / CHOICE).unlink()
    with pytest.raises(RunFolderError, match=CHOICE):
        fit(QUADRATIC, 60, out=tmp_path)


@unchecked()
def test_a_rule_that_was_chosen_for_nothing_is_chosen_again(surveyed, tmp_path, monkeypatch):
    """Killed before the run began; and a folder of something else is none for a run."""
    choices = iter(choice_of(GradientDescent(0.1), at) for at in (5, 9))
    monkeypatch.setattr(fitting, "survey_checked", lambda *_: surveyed)
    monkeypatch.setattr(fitting, "choose", lambda *_: next(choices))
    monkeypatch.setattr(fitting, "learn", lambda *_: 1 / 0)
    for horizon in (5, 9):
        with pytest.raises(ZeroDivisionError):
            fit(QUADRATIC, 60, out=tmp_path / "run")
        assert read_choice(tmp_path / "run" / CHOICE, QUADRATIC).horizon == horizon
    (tmp_path / "run" / "notes.txt").write_text("mine")
    with pytest.raises(RunFolderError, match="is not empty and holds no run"):
        fit(QUADRATIC, 60, out=tmp_path / "run")


def first_and_newton(*given):
    """Few candidates, for there is little time."""
    every = candidates(*given)
    return [every[0], *(one for one in every if one.name == "Newton")]


def test_from_data_to_a_certified_solver_and_its_folder(monkeypatch, tmp_path):
    monkeypatch.setattr(racing, "candidates", first_and_newton)
    for share in ("_LONGEST_RACE", "_SHORTEST_RACE"):  # both have their turn
        monkeypatch.setattr(fitting, share, 1.0)
    monkeypatch.setattr(draw, "draw", empty)  # which takes half of the time
    numbers = {"theta": RANDOM.normal(size=(300, 5))}
    problem = Problem.of(lambda x, t: quadratic(x, t["theta"]), np.ones(5), thetas=numbers)
    shown = EvaluateSettings(timed=5, limit=200, shifted=0)
    learned = fit(problem, 10.0, out=tmp_path, evaluate=shown)
    assert learned.certificate.sizes["train"] == 105
    assert learned.certificate.statements[0].value < 0.06
    evaluation = learned.evaluation
    # One iteration or none, where gradients alone take many.
    steps = dict(zip(evaluation.solvers, evaluation.reach_iterations, strict=True))
    assert np.all(steps["learned"] <= 2)
    # Of two opponents a short budget keeps the better one.
    others = [name for name in steps if name != "learned"]
    assert others and set(others) <= {"Newton", "accelerated gradients"}
    assert all(np.all(steps["learned"] <= steps[name]) for name in others)
    assert learned.training_seconds >= read_choice(tmp_path / CHOICE, problem).seconds > 0
    # All that `surestep run` leaves, the report included.
    facts = ("config", "status", "plan", "charges", "certificate")
    stages = ("chosen_by", "choice", "locate", "sample", "pilot", "certify", "evaluate", "solver")
    names = {f"{fact}.json" for fact in facts} | {f"{stage}.safetensors" for stage in stages}
    found = {path.name for path in tmp_path.iterdir() if path.name[0] != "."}
    assert found == names | {"report.html", "figures"}
    assert load(tmp_path / "solver.safetensors", problem).certificate == learned.certificate
    chosen = read_choice(tmp_path / CHOICE, problem)
    assert solver_fingerprint(chosen.rule) == solver_fingerprint(learned.deployed)
    theta = {"theta": RANDOM.normal(size=(3, 5))}
    np.testing.assert_allclose(
        learned.solve(theta).x, np.linalg.solve(MATRIX, theta["theta"].T).T, atol=1e-6
    )


def test_a_run_is_made_small_enough_for_what_is_left(surveyed):
    rules = {"L-BFGS": LBFGS(), "gradient descent": GradientDescent(0.1)}
    choice = dataclasses.replace(choice_of(Newton()), solve=0.5, compiling=1.0, baselines=rules)
    wanted = OwnSettings(budget=60.0)
    config, chosen = configure(QUADRATIC, surveyed, choice, "mine", 20.0, 0, wanted)
    config.validate()
    assert dataclasses.astuple(config.sizes) == (10, 10, 30, 10)
    assert config.evaluate.timed == 10
    assert not chosen.baselines and not config.certify.compared
    # Minima of ten instances are given 0.15 of 9 s, and took `each` in the survey.
    assert chosen.reference == int(900 * min(1.0, 0.15 * 9 / (10 * surveyed.each)))
    # There is nothing to sample, so no samples were left out.
    assert config.problem.left_out == (
        "2 of 2 opponents",
        "the comparison with an opponent in the certificate",
        "190 of 200 prior instances",
        "190 of 200 validation instances",
        "220 of 250 train instances",
        "90 of 100 test instances",
    )
