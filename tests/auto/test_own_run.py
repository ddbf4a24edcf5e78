"""A run of a user's own file: killed between stages, gone on with, verified and reported again."""

import dataclasses
import json
import shutil

import pytest

from house.crash_child import empty
from support.tiny import COMMITMENT
from surestep.auto import race as racing
from surestep.auto.candidates import candidates
from surestep.auto.choice_file import read_choice, write_choice
from surestep.auto.from_file import runnable_problem
from surestep.cli.main import main
from surestep.cli.workers import Workbench, subject_of
from surestep.paper import registry
from surestep.report import draw
from surestep.rules.base import solver_fingerprint
from surestep.run import pipeline
from surestep.storage.run_folder import CHOICE, RunFolder

CODE = """\
import jax, jax.numpy as jnp, numpy as np
import surestep as ss
SCALES = np.array([1.0, 2.0, 5.0])
problem = ss.make_problem(
    lambda x, theta: 0.5 * jnp.sum(SCALES * (x - theta) ** 2), x0=np.ones(3),
    sample=lambda key: jax.random.normal(key, (3,)),
)
"""
SMALL = [
    "--budget", "10s", "--sizes.prior", "40", "--sizes.validation", "60", "--sizes.train", "40",
    "--sizes.test", "4", "--evaluate.timed", "2", "--evaluate.limit", "40",
]  # fmt: skip
SAME = ("config.json", "plan.json", "certificate.json", "choice.safetensors", "sample.safetensors",
        "certify.safetensors", "solver.safetensors")  # fmt: skip


class PowerCutError(BaseException):
    """Nothing handles it, and nothing is tidied up."""


def killed(patch, stage):
    def cut(*_, **__):
        raise PowerCutError

    patch.setattr(pipeline, stage, cut)


def first_only(*given):
    """One candidate: little to compile."""
    return candidates(*given)[:1]


@pytest.fixture(scope="module", autouse=True)
def empty_figures():
    """Drawing takes half of the time and is not what is at stake."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(draw, "draw", empty)
        yield


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A file of one's own and a run of it, killed twice and gone on with; what was there then."""
    place = tmp_path_factory.mktemp("own")
    (place / "mine.py").write_text(CODE)
    run = ["run", str(place / "mine.py"), "--out", str(place / "run"), *SMALL]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(racing, "candidates", first_only)
        with pytest.MonkeyPatch.context() as inner:
            killed(inner, "settled")  # chosen, but not begun
            with pytest.raises(PowerCutError):
                main(run)
        assert [path.name for path in (place / "run").iterdir()] == [CHOICE]
        for stage in ("locate", "certify"):
            with pytest.MonkeyPatch.context() as inner:
                killed(inner, stage)
                with pytest.raises(PowerCutError):
                    main(run)
            shutil.copytree(place / "run", place / f"before_{stage}")
        # From here on nothing is chosen again.
        patch.setattr(racing, "candidates", None)
        assert main(run) == 0
    return place


@pytest.mark.parametrize("stage", ["locate", "certify"])
def test_a_run_that_was_killed_goes_on_to_the_same_certificate(stage, place, capfd):
    folder = place / f"before_{stage}"
    assert not (folder / "certificate.json").exists()
    assert main(["resume", str(folder), "--problem", str(place / "mine.py")]) == 0
    for name in SAME:
        assert (folder / name).read_bytes() == (place / "run" / name).read_bytes(), name
    assert "Certificate for the rule learned on mine.py" in capfd.readouterr().out


def test_what_is_there_after_a_run(place):
    run = RunFolder(place / "run")
    found = {path.name for path in run.path.iterdir() if path.name[0] != "."}
    assert {CHOICE, "report.html", *SAME} <= found
    assert "minima.safetensors" not in found and "population.safetensors" not in found
    config = registry.read_config(run)
    assert config.locate.steps == 0 and not config.sample.gradients
    assert (config.problem.budget, config.problem.use) == (10.0, "both")
    experiment = registry.build(config, str(place / "mine.py"), run)
    again = registry.build(config, str(place / "mine.py:problem"), run)
    assert solver_fingerprint(experiment.rule(0)) == solver_fingerprint(again.rule(5))


def test_it_is_verified_from_the_command_line(place, capfd):
    verify = ["verify", str(place / "run"), "--rerun", "3", "--problem", str(place / "mine.py")]
    assert main(verify) == 0
    assert "checks stand" in capfd.readouterr().out
    assert main(verify[:2]) == 2
    assert "runs no code" in capfd.readouterr().err


def test_it_is_reported_from_the_command_line(place, capfd):
    page = place / "run" / "report.html"
    page.unlink()
    assert main(["report", str(place / "run"), "--problem", str(place / "mine.py")]) == 0
    assert page.exists() and str(page) in capfd.readouterr().out


def test_it_is_certified_again_from_the_command_line(place, tmp_path, capfd):
    shutil.copytree(place / "run", tmp_path / "run")
    certify = ["certify", str(tmp_path / "run"), "--instances", "77", "--size", "50", "--problem"]
    assert main([*certify, str(place / "mine.py")]) == 0
    assert "from 50 train instances" in capfd.readouterr().out


@pytest.mark.parametrize("instances", [None, "77"])
def test_other_processes_are_told_what_was_chosen(instances, place):
    run, file = RunFolder(place / "run"), str(place / "mine.py")
    config = registry.read_config(run)
    said = json.loads(json.dumps(subject_of(config, instances, 10, file, run)))
    bench = Workbench(said, ["--problem", file])
    rule = registry.build(config, file, run).rule(config.seed)
    assert solver_fingerprint(bench.rule) == solver_fingerprint(rule)
    assert bench.opened(COMMITMENT).size == (40 if instances is None else 10)


@pytest.mark.parametrize("command", ["verify", "report", "resume"])
def test_without_its_choice_a_run_is_refused(command, place, tmp_path, capfd):
    shutil.copytree(place / "run", tmp_path / "run")
    (tmp_path / "run" / CHOICE).unlink()
    assert main([command, str(tmp_path / "run"), "--problem", str(place / "mine.py")]) == 4
    said = capfd.readouterr().err
    assert CHOICE in said and "Traceback" not in said


def test_the_choice_of_another_run_is_noticed(place, tmp_path, capfd):
    """Its numbers are others, and the run says that it was begun with other ones."""
    folder = tmp_path / "run"
    shutil.copytree(place / "before_certify", folder)
    problem = runnable_problem(f"{place / 'mine.py'}:problem")
    choice = read_choice(folder / CHOICE, problem)
    other = dataclasses.replace(choice.rule, tolerance=9.75)
    write_choice(folder / CHOICE, dataclasses.replace(choice, rule=other))
    assert main(["resume", str(folder), "--problem", str(place / "mine.py")]) == 4
    assert "was begun with another experiment" in capfd.readouterr().err


def test_a_run_of_the_same_file_with_another_seed_is_another_run(place, capfd):
    again = ["run", str(place / "mine.py"), "--out", str(place / "run"), "--seed", "1"]
    assert main(again) == 2
    assert "holds a run of another problem or seed" in capfd.readouterr().err


def test_a_run_that_is_asked_for_something_else_is_refused(place, capfd):
    again = ["run", str(place / "mine.py"), "--out", str(place / "run"), "--accuracy", "1e-3"]
    assert main(again) == 2
    assert "was begun with accuracy 1e-06, not 0.001" in capfd.readouterr().err


def test_a_folder_of_something_else_is_left_as_it_was(place, tmp_path, monkeypatch, capfd):
    """And is refused before anything is computed for it."""
    monkeypatch.setattr("surestep.cli.run.configure_file", None)
    (tmp_path / "thesis.txt").write_text("mine")
    assert main(["run", str(place / "mine.py"), "--out", str(tmp_path)]) == 4
    assert "is not empty and holds no run" in capfd.readouterr().err
    assert main(["run", str(place / "mine.py"), "--out", str(tmp_path / "thesis.txt")]) == 4
    assert "is a file, not a folder" in capfd.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--accuracy 2", "accuracy is the share of what there is to gain that may be left"),
        ("--accuracy 0", "a number between 0 and 1, not 0.0"),
        ("--accuracy nan", "a number between 0 and 1, not nan"),
        ("--use often", "use"),
        ("--budget 5s", "a budget must be at least 10 seconds"),
    ],
)
def test_words_that_make_no_sense_are_refused(words, message, place, tmp_path, capfd, monkeypatch):
    monkeypatch.setattr("surestep.auto.fit.survey_checked", None)
    run = ["run", str(place / "mine.py"), "--out", str(tmp_path / "run"), *words.split()]
    assert main(run) == 2
    said = capfd.readouterr().err
    assert message in said and "Traceback" not in said
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        ("--nonsense 1", 2, "--nonsense"),
        ("--sizes.train many", 2, "--sizes.train"),
        ("--help", 0, "--sizes.train"),
    ],
)
def test_settings_are_looked_at_before_anything_is_computed(
    words, code, message, place, tmp_path, capfd, monkeypatch
):
    monkeypatch.setattr("surestep.cli.run.configure_file", None)
    with pytest.raises(SystemExit) as ended:
        main(["run", str(place / "mine.py"), "--out", str(tmp_path / "run"), *words.split()])
    assert ended.value.code == code
    said = capfd.readouterr()
    assert message in said.out + said.err
    assert not (tmp_path / "run").exists()


def test_numbers_that_cannot_work_leave_nothing_behind(place, tmp_path, capfd, monkeypatch):
    run = RunFolder(place / "run")
    config = registry.read_config(run)
    choice = read_choice(run.path / CHOICE, runnable_problem(f"{place / 'mine.py'}:problem"))
    monkeypatch.setattr("surestep.cli.run.configure_file", lambda *_: (config, choice))
    words = ["run", str(place / "mine.py"), "--out", str(tmp_path / "run"), "--sizes.train", "0"]
    assert main(words) == 2
    assert "sizes.train must be at least 1, not 0" in capfd.readouterr().err
    assert not (tmp_path / "run").exists()


def test_the_settings_are_those_of_the_folder(place):
    plain = json.loads((place / "run" / "config.json").read_text())
    assert plain["problem"]["accuracy"] == 1e-6
    assert plain["problem"]["file"] == f"{place / 'mine.py'}:problem"
    assert plain["horizon"] >= 1
