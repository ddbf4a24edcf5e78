"""The whole procedure from Python: what is refused, what is resumed, what is handed back."""

import shutil
import subprocess
import sys
from typing import Any

import jax
import numpy as np
import pytest

import surestep
from support.catalogue import Bowl
from support.equal import assert_same
from support.tiny import (
    CONFIG,
    EXPERIMENT,
    OPPONENTS,
    PROBLEM,
    SPLIT,
    TASK,
    changed,
    located,
    planned,
    references,
)
from surestep.base.errors import ConfigurationError, EvaluationError, RunFolderError
from surestep.certify.gather import certify
from surestep.report import summary, write_report
from surestep.rules import ConjugateGradients, Coordinatewise, GradientDescent
from surestep.rules.base import Rule
from surestep.run.pipeline import learn
from surestep.run.stored import read_learned
from surestep.storage.checkpoint import FileCheckpoint, Saving
from surestep.storage.run_folder import RunFolder
from surestep.train.sample import sample

SMALL = changed(
    CONFIG,
    name="bowl",
    problem=None,
    goal=surestep.Goal(1.0, 1.0),
    imitate=changed(CONFIG.imitate, steps=400),
    locate=changed(CONFIG.locate, steps=400, check_every=200),
    sample=changed(CONFIG.sample, samples=2, burn_in=0, thinning=1),
    evaluate=changed(CONFIG.evaluate, baselines=(), limit=20),
)


def bowl(problem=None, **changes):
    return surestep.Experiment(
        **{
            "problem": problem or Bowl(),
            "create_rule": Coordinatewise.create,
            "teacher": GradientDescent(0.3),
            "baselines": {"gradient descent": GradientDescent(0.3)},
            "accuracies": surestep.Accuracies((1.0,)),
        }
        | changes
    )


class Louder(Bowl):
    """The same instances and the same start, another loss."""

    def loss(self, x, theta):
        return 1000 * super().loss(x, theta)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    run = RunFolder(tmp_path_factory.mktemp("learning") / "run")
    learn(SMALL, bowl(), run)
    return run


def test_public_names_stay_what_they_are():
    code = (
        "import surestep; first = surestep.learn; from surestep.report import summary;"
        "assert callable(first) and surestep.learn is first;"
        "assert all(getattr(surestep, name) is not None for name in surestep.__all__)"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)


def test_solutions_have_the_form_the_loss_takes(folder):
    learned = learn(SMALL, bowl(), folder)
    thetas = surestep.datasets.TestSet.draw(learned.problem, 3, 1).thetas
    solved, reached = learned.solve(thetas), learned.solve_to(thetas, 0.5)
    assert solved.covered and not reached.covered
    for x, last in ((solved.x, solved.loss), (reached.x, reached.loss)):
        form: Any = x
        assert form["a"].shape == (3, 2, 2)
        assert form["b"].shape == (3,)
        np.testing.assert_allclose(jax.vmap(learned.problem.loss)(form, thetas), last)
    # Plain NumPy in single precision will do.
    rough = learned.solve(np.asarray(thetas, np.float32))
    assert rough.loss.dtype == np.float64
    # What the folder holds is the same solver.
    found = surestep.load(folder.solver_path, Bowl())
    assert found.certificate == learned.certificate
    np.testing.assert_array_equal(found.solve(thetas).loss, solved.loss)


@pytest.mark.parametrize(
    "changed_experiment",
    [
        bowl(Louder()),
        bowl(teacher=GradientDescent(0.2)),
        bowl(create_rule=lambda key: Coordinatewise.create(key, channels=8)),
        bowl(accuracies=surestep.Accuracies((0.5,))),
    ],
)
def test_a_folder_belongs_to_one_experiment(folder, changed_experiment):
    before = folder.certificate_path.read_bytes()
    with pytest.raises(RunFolderError, match="another experiment"):
        learn(SMALL, changed_experiment, folder)
    assert folder.certificate_path.read_bytes() == before


@pytest.mark.parametrize(
    ("experiment", "message"),
    [
        (bowl(baselines={"cg": ConjugateGradients()}), "ConjugateGradients cannot run on"),
        (bowl(teacher=ConjugateGradients()), "ConjugateGradients cannot run on"),
        (bowl(accuracies=surestep.Accuracies(())), "at least one accuracy"),
        (bowl(accuracies=surestep.Accuracies((0.0,))), "positive ones"),
        (bowl(external={"gradient descent": lambda *_: None}), "both called 'gradient descent'"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_is_written(experiment, message, tmp_path):
    with pytest.raises(ConfigurationError, match=message):
        learn(SMALL, experiment, RunFolder(tmp_path / "run"))
    assert list(tmp_path.iterdir()) == []


def test_an_interruption_between_result_and_note_is_mended(folder):
    folder.mark("certify", state="running")
    learn(SMALL, bowl(), folder)
    assert folder.status()["certify"]["state"] == "done"


def test_a_damaged_result_is_refused_and_computed_again(folder, tmp_path):
    shutil.copytree(folder.path, tmp_path / "run")
    run = RunFolder(tmp_path / "run")
    path = run.path / "certify.safetensors"
    wanted = path.read_bytes()
    path.write_bytes(wanted[:-1] + bytes([wanted[-1] ^ 1]))
    with pytest.raises(RunFolderError, match=r"certify\.safetensors is damaged.*Remove the file"):
        learn(SMALL, bowl(), run)
    path.unlink()
    learn(SMALL, bowl(), run)
    assert path.read_bytes() == wanted
    assert run.certificate_path.read_bytes() == folder.certificate_path.read_bytes()


class Clock:
    """Time flies, so that every chance to save is taken, however long the last one took."""

    def __init__(self):
        self.now = 1.0

    def monotonic(self):
        self.now *= 100
        return self.now


class Failing(FileCheckpoint):
    """A checkpoint after whose n-th save the power goes."""

    def save(self, tree):
        super().save(tree)
        left = int((self.path.parent / "left").read_text()) - 1
        (self.path.parent / "left").write_text(str(left))
        if left == 0:
            raise KeyboardInterrupt


RULE = located()
CHAIN = changed(CONFIG.sample, samples=4, burn_in=1, thinning=2)


def same(found, wanted):
    assert_same(found, wanted)


@pytest.mark.parametrize("saves", [1, 3, 6, 8, 10])
def test_sampling_goes_on_from_any_save(saves, tmp_path, monkeypatch):
    arguments = (CHAIN, TASK, RULE, SPLIT.prior, SPLIT.validation, 0)
    alone = sample(*arguments)
    monkeypatch.setattr(Saving, "is_due", lambda self: True)
    (tmp_path / "left").write_text(str(saves))
    checkpoint = Failing(tmp_path / "sample.partial.safetensors")
    with pytest.raises(KeyboardInterrupt):
        sample(*arguments, checkpoint)
    same(sample(*arguments, FileCheckpoint(checkpoint.path)), alone)


@pytest.mark.parametrize("saves", [1, 3])
def test_certifying_goes_on_from_any_save(saves, tmp_path, monkeypatch):
    prior = sample(CHAIN, TASK, RULE, SPLIT.prior, SPLIT.validation, 0)
    arguments = (planned(prior), TASK, RULE, prior, OPPONENTS, references(), SPLIT.train)
    alone = certify(*arguments)
    monkeypatch.setattr(Saving, "is_due", lambda self: True)
    (tmp_path / "left").write_text(str(saves))
    checkpoint = Failing(tmp_path / "certify.partial.safetensors")
    with pytest.raises(KeyboardInterrupt):
        certify(*arguments, checkpoint)
    same(certify(*arguments, FileCheckpoint(checkpoint.path)), alone)


def test_the_experiment_of_a_preset_is_the_one_that_was_built():
    assert EXPERIMENT.problem is PROBLEM


def test_nothing_that_is_certified_is_lost_to_an_evaluation_that_fails(tmp_path, monkeypatch):
    run = RunFolder(tmp_path / "run")
    monkeypatch.setattr("surestep.run.afterwards.evaluate", lambda *_: 1 / 0)
    learned = learn(SMALL, bowl(), run)
    monkeypatch.undo()
    kept = run.solver_path.read_bytes()
    assert surestep.load(run.solver_path, Bowl()).certificate == learned.solver.certificate
    (sentence,) = learned.incomplete
    assert "ZeroDivisionError: division by zero" in sentence and "resume" in sentence
    with pytest.raises(EvaluationError, match="ZeroDivisionError"):
        print(learned.evaluation)
    assert run.status()["evaluate"]["state"] == "incomplete"
    stored = read_learned(SMALL, bowl(), run)
    assert stored.evaluated is None and "ZeroDivisionError" in summary(stored)
    assert write_report(stored, run) == {"certificate": run.certificate_path}

    again = learn(SMALL, bowl(), run)
    assert again.incomplete == () and again.evaluation.solvers == ["learned", "gradient descent"]
    assert run.status()["evaluate"]["state"] == "done"
    assert run.solver_path.read_bytes() == kept


def test_an_interruption_is_no_failed_evaluation(tmp_path, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    run = RunFolder(tmp_path / "run")
    monkeypatch.setattr("surestep.run.afterwards.evaluate", interrupted)
    with pytest.raises(KeyboardInterrupt):
        learn(SMALL, bowl(), run)
    assert run.certificate_path.exists() and run.solver_path.exists()
    assert run.status()["evaluate"]["state"] == "running"


def test_shifts_that_fail_leave_the_evaluation(monkeypatch):
    monkeypatch.setattr("surestep.run.afterwards.evaluate_shifted", lambda *_: 1 / 0)
    settings = changed(SMALL, evaluate=changed(SMALL.evaluate, shifted=4))
    learned = learn(settings, bowl(shifts={"elsewhere": Bowl()}))
    assert learned.evaluation.solvers == ["learned", "gradient descent"]
    assert learned.shifted is None and "shifted failed" in learned.incomplete[0]


def test_references_that_fail_stop_no_run_and_promise_no_closeness():
    """What cannot be proved about an instance counts against the rule."""

    def minima(thetas, wrong):
        if np.any(wrong(thetas)):
            raise ArithmeticError("the gap does not close")
        return np.zeros(len(thetas))

    def certified(share):
        def wrong(thetas):
            return np.asarray(thetas)[:, 0] > share

        accuracies = surestep.Accuracies((1.0,), lambda t: minima(t, wrong), "the minimum")
        return learn(SMALL, bowl(accuracies=accuracies, minima=accuracies.reference))

    every, most = certified(np.inf), certified(1.5)
    unknown = np.isneginf(most.certified.evidence.references)
    assert 0 < unknown.sum() < unknown.size / 2
    np.testing.assert_array_equal(most.certified.evidence.losses, every.certified.evidence.losses)
    assert np.all(np.isinf(most.certified.evidence.reach[:, unknown, 0]))
    assert "unknown on" in most.evaluation.notes[0] and "unknown on" in summary(most)
    with pytest.raises(ArithmeticError, match="does not close"):
        certified(-np.inf)


class Broken(Rule):
    """A rule that somebody has got wrong."""

    def init(self, oracle, x):
        raise ValueError("matrices that do not fit")

    def step(self, oracle, state):
        raise NotImplementedError


def test_an_opponent_that_raises_stops_no_run_unless_it_was_asked_for():
    baselines = {"wrong": Broken(), "gradient descent": GradientDescent(0.3)}
    learned = learn(SMALL, bowl(baselines=baselines))
    assert learned.evaluation.solvers == ["learned", "gradient descent"]
    assert "wrong could not be evaluated" in learned.evaluation.notes[0]
    names = [statement.name for statement in learned.certificate.statements]
    assert "sooner than gradient descent" in names and "sooner than wrong" not in names
    asked = changed(SMALL, certify=changed(SMALL.certify, opponents=("wrong",)))
    with pytest.raises(ValueError, match="do not fit"):
        learn(asked, bowl(baselines=baselines))
