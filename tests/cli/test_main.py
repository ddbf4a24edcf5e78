"""The command line, as a person types it, in order and out of order."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from surestep.cli.main import main

TINY = ["run", "quadratics", "--preset", "tiny"]
# Enough to learn nothing in no time.
SHORT = ["--locate.steps", "40", "--locate.check-every", "20", "--sample.samples", "2"]


def surestep(*arguments, cached=True):
    command = [sys.executable, "-m", "surestep.cli", *map(str, arguments)]
    environment = os.environ if cached else os.environ | {"JAX_COMPILATION_CACHE_DIR": ""}
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )


def certificate(folder: Path) -> bytes:
    return (folder / "certificate.json").read_bytes()


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """One tiny run, left alone."""
    folder = tmp_path_factory.mktemp("cli") / "run"
    process = surestep(*TINY, "--seed", 3, "--out", folder)
    output, log = process.communicate()
    assert process.returncode == 0, log
    return folder, output, log


def test_a_run_leaves_everything_the_plan_says(finished):
    folder, output, log = finished
    names = {path.name for path in folder.iterdir() if path.name[0] != "."}
    stages = ("chosen_by", "imitate", "locate", "sample", "pilot", "certify", "evaluate", "shifted")
    files = {
        "config.json",
        "status.json",
        "plan.json",
        "charges.json",
        "certificate.json",
        "solver.safetensors",
        "report.html",
        "figures",
    }
    assert names == {f"{stage}.safetensors" for stage in stages} | files
    assert {p.name for p in (folder / "figures").iterdir()} == {
        f"{name}.{kind}"
        for name in ("overview", "certified", "profile", "shifted")
        for kind in ("json", "png", "svg")
    }
    assert "With confidence 95% all of these hold" in output
    assert str(folder / "certificate.json") in output
    assert str(folder / "figures" / "overview.png") in output
    assert str(folder / "solver.safetensors") in output
    assert str(folder / "report.html") in output
    status = json.loads((folder / "status.json").read_text())
    assert status["certify"]["state"] == "done"
    assert set(status["inputs"]) == {"prior", "validation", "train", "test", "experiment"}
    assert status["made_with"]["environments"][0]["jax"]
    # A plain log where there is no terminal, with rate, remaining time, ratio and success.
    assert "locate: 2000 of 2000 steps" in log
    assert "left, ratio" in log and "success" in log


@pytest.mark.slow
def test_an_evaluation_that_fails_ends_with_a_sentence_and_what_stands(
    tmp_path, monkeypatch, capfd
):
    folder = tmp_path / "run"
    monkeypatch.setattr("surestep.run.afterwards.evaluate", lambda *_: 1 / 0)
    assert main([*TINY, *SHORT, "--out", str(folder)]) == 0
    output = capfd.readouterr().out
    assert "With confidence 95% all of these hold" in output
    assert "failed and is incomplete (ZeroDivisionError" in output
    for name in ("certificate.json", "solver.safetensors"):
        assert str(folder / name) in output and (folder / name).exists()
    assert main(["report", str(folder)]) == 0
    assert f"surestep resume {folder}" in capfd.readouterr().out
    assert not (folder / "report.html").exists()
    monkeypatch.undo()
    kept = certificate(folder)
    assert main(["resume", str(folder)]) == 0
    assert (folder / "report.html").exists() and certificate(folder) == kept


def test_the_solver_of_a_run_solves_a_file(finished, tmp_path, capfd):
    folder, _, _ = finished
    random = np.random.default_rng(0)
    instances: dict[str, Any] = {"diagonal": 1 + random.random((3, 8)), "target": np.ones((3, 8))}
    np.savez(tmp_path / "data.npz", **instances)
    files = ["--instances", str(tmp_path / "data.npz"), "--out", str(tmp_path / "solved.npz")]
    # The problem is the run's own, by its folder or by name and preset.
    for problem in ([str(folder)], ["quadratics", "--preset", "tiny"]):
        assert main(["solve", str(folder / "solver.safetensors"), *problem, *files]) == 0
        assert "3 of 3: all iterations were made\ncovered" in capfd.readouterr().out
    with np.load(tmp_path / "solved.npz") as found:
        residual = instances["diagonal"] * found["x"] - instances["target"]
        np.testing.assert_allclose(0.5 * np.sum(residual**2, axis=1), found["loss"], rtol=1e-12)


def test_run_again_finds_everything_there(finished, capfd):
    folder, output, _ = finished
    before = certificate(folder)
    assert main([*TINY, "--seed", "3", "--out", str(folder)]) == 0
    assert certificate(folder) == before
    captured = capfd.readouterr()
    assert "evaluate: found in" in captured.err
    assert captured.out == output
    assert main(["resume", str(folder)]) == 0


def test_a_report_is_written_again_and_nothing_else_is_touched(finished, capfd):
    folder, _, _ = finished
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    for gone in (folder / "report.html", folder / "figures" / "certified.svg"):
        gone.unlink()
    assert main(["report", str(folder)]) == 0
    after = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert after == before
    assert f"report:      {folder / 'report.html'}" in capfd.readouterr().out


def test_other_settings_in_the_same_folder_are_refused(finished, capfd):
    folder, _, _ = finished
    assert main([*TINY, "--seed", "4", "--out", str(folder)]) == 4
    assert "seed: 3 there, 4 asked for" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "quadratic"], "did you mean 'quadratics'?"),
        (["run", "quadratics", "--preset", "papr"], "did you mean 'paper'?"),
        (["rum", "quadratics"], "did you mean 'run'"),
        (["run"], "say which problem"),
        ([*TINY, "--sizes.train", "0"], "sizes.train must be at least 1, not 0"),
        ([*TINY, "--constraint.lower", "1.2"], "constraint.lower is a probability"),
        ([*TINY, "--constraint.lower", "0.9", "--constraint.upper", "0.8"], "must be below"),
        ([*TINY, "--certify.epsilon", "1"], "certify.epsilon must lie strictly between 0 and 1"),
        ([*TINY, "--certify.epsilon", "0"], "certify.epsilon"),
        ([*TINY, "--sizes.validation", "3"], "validation instances can never"),
        ([*TINY, "--locate.steps", "-1"], "locate.steps must not be negative"),
        ([*TINY, "--horizon", "0"], "horizon"),
        ([*TINY, "--problem.dimension", "0"], "problem.dimension"),
        ([*TINY, "--goal.scale", "0"], "goal.scale"),
        ([*TINY, "--seed", "-1"], "seed"),
        ([*TINY, "--evaluate.baselines", "Newton"], "no baseline called 'Newton'"),
        ([*TINY, "--certify.lambda-ratio", "inf"], "certify.lambda_ratio must be a finite"),
        ([*TINY, "--goal.scale", "inf"], "goal.scale must be a finite number"),
        ([*TINY, "--problem.spread", "-1"], "problem.spread"),
        (["run", "--seed", "3", "quadratics"], "the problem comes first"),
        (["resume", "nowhere"], "holds no run"),
        (["resume"], "required"),
        (["report", "nowhere"], "holds no run"),
        (["report"], "required"),
    ],
)
def test_bad_input_is_refused_before_anything_is_written(
    arguments, message, tmp_path, capfd, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    assert main(arguments) in (2, 4)
    assert message in capfd.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("arguments", [[*TINY, "--no-such-setting", "1"], [*TINY, "--seed", "one"]])
def test_settings_that_do_not_exist_or_fit_end_with_code_2(arguments, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert list(tmp_path.iterdir()) == []


def test_an_output_folder_that_cannot_be_is_refused(tmp_path, capfd):
    (tmp_path / "file").write_text("precious")
    for place in (tmp_path / "file", tmp_path / "file" / "run", tmp_path):
        assert main([*TINY, "--out", str(place)]) == 4
    assert "is a file" in capfd.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_an_infeasible_run_has_its_own_exit_code_and_no_certificate(tmp_path, capfd):
    folder = tmp_path / "run"
    assert main([*TINY, *SHORT, "--goal.scale", "1e-30", "--out", str(folder)]) == 3
    assert "without a rule that reaches the goal" in capfd.readouterr().err
    assert not (folder / "certificate.json").exists()
    assert json.loads((folder / "status.json").read_text())["locate"]["state"] == "infeasible"
    assert main(["report", str(folder)]) == 4
    assert "has not ended, so there is nothing to report" in capfd.readouterr().err


def test_help_and_list(capfd):
    assert main([]) == main(["--help"]) == main(["run", "--help"]) == 0
    assert "surestep run PROBLEM" in capfd.readouterr().out
    assert main(["list"]) == 0
    listed = capfd.readouterr().out
    assert "quadratics: strongly convex" in listed
    assert "--preset paper  200000 training steps, 100 samples" in listed
    assert main(["--version"]) == 0
    with pytest.raises(SystemExit) as ended:
        main([*TINY, "--help"])
    assert ended.value.code == 0
    shown = capfd.readouterr().out
    for field in ("--locate.learning-rate", "--sample.step-sizes.initial", "--goal.exponent"):
        assert field in shown


def test_help_loads_neither_jax_nor_tyro():
    code = """
import sys, surestep.cli.main as c
c.main(["--help"])
print([name for name in ("jax", "tyro", "numpy", "rich") if name in sys.modules])
"""
    output = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout
    assert output.splitlines()[-1] == "[]"


LONG = [*TINY, "--seed", "5", "--locate.steps", "6000", "--sample.samples", "12"]


def wait_for(folder: Path, path: str, process, extra: float) -> None:
    """Until a file is there, and then some."""
    limit = time.monotonic() + 120
    while not (folder / path).exists():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < limit
        time.sleep(0.01)
    time.sleep(extra)


@pytest.fixture(scope="module")
def left_alone(tmp_path_factory):
    folder = tmp_path_factory.mktemp("alone") / "run"
    process = surestep(*LONG, "--out", folder, cached=False)
    _, log = process.communicate()
    assert process.returncode == 0, log
    return folder


MOMENTS = {
    "early": {
        "as it starts": ("config.json", 0.0),
        "while locating": ("locate.partial.safetensors", 0.2),
        "at the end of locating": ("locate.safetensors", 0.0),
    },
    "late": {
        "while imitating": ("status.json", 0.5),
        "while sampling": ("locate.safetensors", 2.0),
        "while certifying": ("sample.safetensors", 0.2),
        "while evaluating": ("certificate.json", 0.5),
    },
}


@pytest.mark.parametrize("moments", [pytest.param("early", marks=pytest.mark.slow), "late"])
def test_a_run_that_is_killed_again_and_again_ends_with_the_same_certificate(
    moments, left_alone, tmp_path
):
    folder = tmp_path / "run"
    for name, after in MOMENTS[moments].values():
        process = surestep(*LONG, "--out", folder)
        wait_for(folder, name, process, after)
        process.kill()
        process.communicate()
    again = surestep(*LONG, "--out", folder)
    _, log = again.communicate()
    assert again.returncode == 0, log
    assert certificate(folder) == certificate(left_alone)
    for stage in ("imitate", "locate", "sample", "certify"):
        name = f"{stage}.safetensors"
        assert (folder / name).read_bytes() == (left_alone / name).read_bytes(), name


@pytest.mark.parametrize(
    "how", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)]
)
def test_ctrl_c_ends_cleanly_and_the_run_goes_on(how, left_alone, tmp_path):
    folder = tmp_path / "run"
    # Where tests run in the background the signal is ignored, and children inherit that.
    before = signal.signal(how, signal.default_int_handler)
    process = surestep(*LONG, "--out", folder)
    signal.signal(how, before)
    wait_for(folder, "locate.partial.safetensors", process, 0.0)
    process.send_signal(how)
    _, log = process.communicate()
    assert process.returncode == 128 + how
    assert f"interrupted; the same command goes on with what is finished in {folder}" in log
    assert "Traceback" not in log
    process = surestep("resume", folder)
    process.communicate()
    assert process.returncode == 0
    assert certificate(folder) == certificate(left_alone)


def test_a_terminal_gets_bars(tmp_path):
    """Under a pseudo-terminal the stages are drawn as bars with rate, time and ratio."""
    import pty  # noqa: PLC0415

    controller, terminal = pty.openpty()
    environment = os.environ | {"TERM": "xterm-256color", "COLUMNS": "140"}
    command = [sys.executable, "-m", "surestep.cli", *TINY, "--out", str(tmp_path / "run")]
    process = subprocess.Popen(
        command, stdout=terminal, stderr=terminal, stdin=terminal, env=environment
    )
    os.close(terminal)
    shown = b""
    while True:
        try:
            piece = os.read(controller, 65536)
        except OSError:
            break
        if not piece:
            break
        shown += piece
    assert process.wait() == 0
    text = shown.decode(errors="replace")
    assert "━" in text
    assert "steps/s" in text
    assert "ratio" in text
