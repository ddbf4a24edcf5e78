"""A run folder that version 0.1 has left is refused, with what to do."""

import shutil
from pathlib import Path

import pytest

from support.tiny import CONFIG, EXPERIMENT
from surestep.base.errors import RunFolderError
from surestep.cli.main import main
from surestep.paper import read_config
from surestep.run.pipeline import learn
from surestep.storage.run_folder import RunFolder

LEFT = Path(__file__).with_name("version_0_1")
"""Configuration and status of `surestep run quadratics --preset tiny --seed 0`, version 0.1.0."""


@pytest.fixture
def folder(tmp_path):
    return RunFolder(Path(shutil.copytree(LEFT, tmp_path / "run")))


def test_whoever_reads_it_is_told_what_to_do(folder):
    for read in (lambda: read_config(folder), lambda: learn(CONFIG, EXPERIMENT, folder)):
        with pytest.raises(RunFolderError, match=r"made by surestep 0\.1.*use version 0\.1"):
            read()


@pytest.mark.parametrize("command", ["resume", "verify", "report"])
def test_commands_end_with_that_sentence(folder, command, capsys):
    before = sorted(path.name for path in folder.path.iterdir())
    assert main([command, str(folder.path)]) == 4
    assert "was made by surestep 0.1" in capsys.readouterr().err
    assert sorted(path.name for path in folder.path.iterdir()) == before
