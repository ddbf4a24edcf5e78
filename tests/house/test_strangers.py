"""What comes from a stranger runs no code and writes nowhere else."""

import ast
import io
import json
import os
import pickle
import zipfile
from pathlib import Path

import numpy as np
import pytest

import surestep
from support.tiny import PROBLEM
from surestep import paper
from surestep.auto.configure import Config, OwnSettings
from surestep.base.errors import ConfigurationError, SurestepError
from surestep.certify.certificate import Certificate
from surestep.cli.main import main
from surestep.problem.goal import Goal
from surestep.problem.instance_files import read_arrays_of
from surestep.solver.monitor import Monitor
from surestep.storage.arrays import read_arrays
from surestep.storage.records import to_json
from surestep.storage.run_folder import RunFolder

SOURCE = Path(surestep.__file__).parent

EVIL = """
from pathlib import Path
Path(__file__).with_name("ran").touch()
import jax, jax.numpy as jnp, surestep
mine = surestep.Problem.of(
    lambda x, t: jnp.sum((x - t) ** 2), x0=jnp.zeros(2), sample=lambda k: jax.random.normal(k, (2,))
)
"""


@pytest.fixture
def gift(tmp_path):
    """A run's folder from a stranger, with a file of code that the configuration names."""
    folder = tmp_path / "gift"
    folder.mkdir()
    (folder / "evil.py").write_text(EVIL)
    settings = OwnSettings((1.0,), f"{folder / 'evil.py'}:mine")
    config = Config("evil.py", "auto", settings, Goal(1.0, 1.0), horizon=5)
    (folder / "config.json").write_text(to_json(config))
    for name in ("certificate.json", "evaluate.safetensors", "sample.safetensors"):
        (folder / name).write_text("{}")
    return folder


@pytest.mark.parametrize(
    "command",
    [
        "resume {gift}",
        "report {gift}",
        "verify {gift}",
        "verify {gift} --rerun 3",
        "certify {gift} --instances 7",
        "solve solver.safetensors {gift} --instances x.npz --out y.npz",
        "figure experiments --runs {gift}",
        "table {gift}",
    ],
)
def test_no_command_runs_the_code_that_a_folder_names(command, gift, capsys, monkeypatch):
    monkeypatch.chdir(gift)  # where `evil` could be imported
    before = sorted(gift.iterdir())
    code = main(command.format(gift=gift).split())
    assert code in (2, 4)
    assert not (gift / "ran").exists()
    assert sorted(gift.iterdir()) == before
    said = capsys.readouterr().err
    assert "Traceback" not in said
    if "figure" not in command and "table" not in command:
        named = f"{gift / 'evil.py'}:mine"
        assert "runs no code" in said
        assert (f"--problem {named}" in said) or (f"{named} in place of the folder" in said)


def test_what_the_user_names_is_run(gift):
    config = paper.read_config(RunFolder(gift))
    with pytest.raises(ConfigurationError, match="runs no code"):
        paper.build(config)
    # The name inside the file is taken from the run.
    problem = paper.open_problem(f"{gift / 'evil.py'}:mine")
    assert (gift / "ran").exists()
    assert problem.loss(1.0, 3.0) == 4.0
    with pytest.raises(SurestepError, match="defines no `problem`"):
        paper.open_problem(str(gift / "evil.py"))


def test_a_file_named_without_a_name_means_the_runs(gift, monkeypatch):
    asked = []
    monkeypatch.setattr(
        "surestep.auto.from_file.runnable_problem", lambda file: asked.append(file) or 1 / 0
    )
    config = paper.read_config(RunFolder(gift))
    for named in ("evil.py", "evil.py:other"):
        with pytest.raises(ZeroDivisionError):
            paper.build(config, str(gift / named))
    assert asked == [f"{gift}/evil.py:mine", f"{gift}/evil.py:other"]


class Bomb:
    """What a pickle can be: a call of anything."""

    def __reduce__(self):
        return os.mkdir, ("exploded",)


def _npz(**members: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        for name, content in members.items():
            file.writestr(f"{name}.npy", content)
    return buffer.getvalue()


def _objects() -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, np.array([Bomb()]), allow_pickle=True)
    return buffer.getvalue()


def test_no_loader_unpickles(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "gift"
    loaders = {
        "certificate": Certificate.load,
        "monitor": Monitor.load,
        "arrays": read_arrays,
        "instances": lambda path: read_arrays_of(PROBLEM, path),
        "solver": lambda path: surestep.load(path, PROBLEM),
    }
    bombs = [pickle.dumps(Bomb()), _objects(), _npz(diagonal=_objects(), target=_objects())]
    for content in bombs:
        path.write_bytes(content)
        for name, load in loaders.items():
            with pytest.raises(SurestepError):
                load(path)
            assert sorted(p.name for p in tmp_path.iterdir()) == ["gift"], name
    # The bomb does explode where it is let in.
    pickle.loads(bombs[0])
    assert (tmp_path / "exploded").exists()


FORBIDDEN = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "marshal", "shelve"}


def test_the_source_imports_nothing_that_unpickles_and_evaluates_no_text():
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                names = {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                names = {(node.module or "").partition(".")[0]}
            else:
                names = set()
            assert not names & FORBIDDEN, path
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in ("eval", "exec", "__import__"), path
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                if node.func.attr == "load" and ast.unparse(node.func.value) == "np":
                    assert "allow_pickle=False" in ast.unparse(node), path
                assert node.func.attr not in ("read_pickle", "to_pickle", "system", "popen"), path


def test_only_one_file_runs_a_users_code():
    runs = [p for p in SOURCE.rglob("*.py") if "spec_from_file_location" in p.read_text()]
    assert [path.relative_to(SOURCE).as_posix() for path in runs] == ["auto/files.py"]


def test_a_configuration_is_not_asked_for_a_module(tmp_path):
    for name in ("os", "../evil", "surestep.cli.main", "__init__", "quadratics.x", ""):
        (tmp_path / "config.json").write_text(json.dumps({"name": name, "problem": {}}))
        with pytest.raises(SurestepError):
            paper.read_config(RunFolder(tmp_path))
