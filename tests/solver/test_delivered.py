"""A solver on its way to others: as a command, as an exported program, as documented."""

import contextlib
import io
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from support.catalogue import Bowl
from support.production import THETAS, certified_solver
from support.tiny import CONFIG
from surestep import paper
from surestep.base.errors import ConfigurationError
from surestep.cli.main import main
from surestep.problem.goal import Goal
from surestep.rollout.loop import Status
from surestep.rules import Checked, GradientDescent
from surestep.solver.solver import Solver
from surestep.storage.records import to_json

SOLVER = certified_solver()
ARRAYS: dict[str, Any] = {
    "diagonal": np.asarray(THETAS.diagonal),
    "target": np.asarray(THETAS.target),
}


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    SOLVER.save("solver.safetensors")
    np.savez("data.npz", **ARRAYS)
    return tmp_path


COMMAND = ["solve", "solver.safetensors", "quadratics", "--preset", "tiny"]
FILES = ["--instances", "data.npz", "--out", "found/solutions.npz"]


def test_a_file_of_instances_is_solved(place, capfd):
    assert main([*COMMAND, *FILES]) == 0
    wanted = SOLVER.solve(THETAS)
    with np.load("found/solutions.npz", allow_pickle=False) as found:
        assert set(found.files) == {
            *("x", "loss", "start_loss", "iterations", "gradients", "status", "covered")
        }
        for name in ("x", "loss", "start_loss", "iterations", "gradients", "status"):
            np.testing.assert_array_equal(found[name], getattr(wanted, name))
        assert found["covered"]
    shown = capfd.readouterr().out
    assert "6 of 6: all iterations were made\ncovered" in shown
    assert "solutions: found/solutions.npz" in shown
    assert [path.name for path in (place / "found").iterdir()] == ["solutions.npz"]


def test_the_commands_settings_do_what_they_say(place, capfd):
    settings = ["--iterations", "20", "--tolerance", "5.0", "--policy", "posterior", "--seed", "1"]
    assert main([*COMMAND, *FILES, *settings]) == 0
    with np.load("found/solutions.npz") as found:
        assert set(found["status"]) <= {Status.REACHED, Status.LIMIT}
        assert np.all((found["loss"] < 5) == (found["status"] == Status.REACHED))
        assert found["sample"].shape == (6,) and not found["covered"]
    assert "not covered: 20 iterations are asked for" in capfd.readouterr().out


def test_numbers_of_another_type_are_noticed_in_files(place, capfd):
    rough: dict[str, Any] = {name: a.astype(np.float32) for name, a in ARRAYS.items()}
    np.savez("data.npz", **rough)
    assert main([*COMMAND, *FILES]) == 0
    assert "not covered: diagonal came as float32" in capfd.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ([*COMMAND, "--out", "a.npz"], 2, "--instances"),
        ([*COMMAND, *FILES, "--policy", "posterior"], 2, "--seed goes with --policy posterior"),
        ([*COMMAND, *FILES, "--seed", "1"], 2, "--seed goes with --policy posterior"),
        ([*COMMAND, *FILES, "--policy", "mean"], 2, "invalid choice: 'mean'"),
        ([*COMMAND, *FILES, "--iterations", "0"], 2, "iterations must be at least 1"),
        ([*COMMAND, *FILES[:3], "data.npz"], 2, "and not the instances"),
        ([*COMMAND, *FILES[:3], "found.csv"], 2, "--out must be an .npz file"),
        (["solve", "solver.safetensors", "quadratic", *FILES], 2, "did you mean 'quadratics'"),
        ([*COMMAND[:3], "--preset", "quick", *FILES], 4, "theta: wanted diagonal float64 (8,)"),
        (["solve", "data.npz", *COMMAND[2:], *FILES], 4, "no solver's file"),
        ([*COMMAND, "--instances", "none.npz", *FILES[2:]], 2, "none.npz cannot be read"),
        ([*COMMAND, "--instances", "solver.safetensors", *FILES[2:]], 2, "cannot be read"),
    ],
)
def test_commands_that_cannot_work_leave_nothing(place, capfd, arguments, code, message):
    assert main(arguments) == code
    assert message in capfd.readouterr().err
    assert not (place / "found").exists()


def test_a_problem_is_a_name_or_a_run(tmp_path):
    named: Any = paper.open_problem("quadratics", "tiny")
    assert named.mean.shape == (8,)
    (tmp_path / "config.json").write_text(to_json(CONFIG))
    found: Any = paper.open_problem(str(tmp_path))
    np.testing.assert_array_equal(found.mean, named.mean)
    with pytest.raises(ConfigurationError, match="no problem called"):
        paper.open_problem(str(tmp_path / "nowhere"))


ALONE = """
import sys
sys.modules["surestep"] = sys.modules["equinox"] = None
import jax, pathlib
import numpy as np
for path in sys.argv[1:]:
    solver = jax.export.deserialize(bytearray(pathlib.Path(path).read_bytes()))
    with np.load(path + ".npz") as file, jax.enable_x64(True):
        solved = solver.call(dict(file))
    np.savez(path + ".solved.npz", **solved)
try:
    import surestep
except ImportError:
    sys.exit(0)
sys.exit("surestep could be imported")
"""


def test_an_exported_solver_runs_without_surestep(tmp_path):
    """Any number of instances, and a fixed one; flat points, and points of two parts."""
    bowl = Solver(Bowl(), GradientDescent(0.3), 7, Goal(1.0, 1.0))
    theta = np.random.default_rng(0).normal(size=(3, 2, 2))
    theta[1] = np.nan
    exports = {
        "any": (SOLVER, None, THETAS, ARRAYS),
        "bowl": (bowl, 3, theta, {"theta": theta}),
    }
    for name, (solver, batch, _, arrays) in exports.items():
        solver.export(tmp_path / name, batch=batch)
        np.savez(tmp_path / f"{name}.npz", **arrays)
    paths = [str(tmp_path / name) for name in exports]
    subprocess.run([sys.executable, "-W", "error", "-c", ALONE, *paths], check=True)
    for name, (solver, _, thetas, _) in exports.items():
        wanted = solver.solve(thetas)
        with np.load(tmp_path / f"{name}.solved.npz") as found:
            np.testing.assert_array_equal(found["status"], wanted.status)
            np.testing.assert_allclose(found["loss"], wanted.loss, rtol=1e-12)
            points = wanted.x if name == "bowl" else {"": wanted.x}
            for part, x in points.items():
                np.testing.assert_allclose(found[f"x.{part}".rstrip(".")], x, rtol=1e-12)
    assert SOLVER.solve(THETAS).covered


def test_as_a_function_it_ends_where_solve_ends():
    """Compiled, in a batch and inside another program; helped and longer ones too."""
    bowl = Bowl()
    slow = Checked(GradientDescent(1e-3), GradientDescent(0.3), at=4, tolerance=1e-3)
    theta = np.random.default_rng(0).normal(size=(3, 2, 2))
    for rule in (GradientDescent(0.3), slow):
        solver = Solver(bowl, rule, 7, Goal(1.0, 1.0))
        for iterations in (None, 2, 4, 9):
            wanted = solver.solve(theta, iterations=iterations)
            function = solver.function(iterations)
            with jax.enable_x64(True):
                many = jax.jit(jax.vmap(function))(theta)
                one = jax.jit(function)(theta[1])
            for part, x in wanted.x.items():
                np.testing.assert_allclose(many[part], x, rtol=1e-10, atol=1e-13)
                np.testing.assert_allclose(one[part], x[1], rtol=1e-10, atol=1e-13)
    with pytest.raises(ConfigurationError, match="iterations must be at least 1"):
        SOLVER.function(0)
    # Where it diverges, the start is handed out.
    wild = Solver(bowl, GradientDescent(1e200), 9, Goal(1.0, 1.0))
    with jax.enable_x64(True):
        found, start = wild.function()(theta[0]), bowl.start(theta[0])
    jax.tree.map(np.testing.assert_array_equal, found, start)


def test_exports_that_cannot_be_are_refused(tmp_path, monkeypatch):
    with pytest.raises(ConfigurationError, match="batch must be at least 1"):
        SOLVER.export(tmp_path / "solver", batch=0)
    with pytest.raises(ConfigurationError, match="iterations must be at least 1"):
        SOLVER.export(tmp_path / "solver", iterations=0)
    monkeypatch.setitem(sys.modules, "flatbuffers", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'surestep\[export\]'"):
        SOLVER.export(tmp_path / "solver")
    assert list(tmp_path.iterdir()) == []


def test_the_page_about_solvers_is_true(place):
    """Its code runs as it stands, one block after the other."""
    page = (Path(__file__).parents[2] / "docs" / "solver.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    run = [block for block in blocks if not block.startswith("# not run")]
    assert len(run) >= 6 and len(blocks) == len(run) + 1
    names: dict[str, object] = {}
    shown = io.StringIO()
    # As users have it: JAX's 64-bit flag is off.
    with contextlib.redirect_stdout(shown), jax.enable_x64(False):
        for block in run:
            exec(compile(block, "docs/solver.md", "exec"), names)
    assert "not covered: 5 iterations are asked for" in shown.getvalue()
    assert "the monitor was fed 64 outcomes" in shown.getvalue()
