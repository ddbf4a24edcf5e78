"""The examples run as they are, in a process of their own, without a warning.

Those that learn for a minute are examined here, and run if SURESTEP_SLOW_DOCS is set.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from surestep.cli.main import main

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("[0-9]*.py"))


OWN = [path for path in EXAMPLES if path.name > "03"]
SLOW = bool(os.environ.get("SURESTEP_SLOW_DOCS"))


@pytest.mark.parametrize("example", OWN, ids=lambda path: path.stem)
def test_nothing_is_wrong_with_an_example_that_is_run_by_its_file(example, capsys):
    assert main(["check", str(example)]) == 0
    assert "nothing is wrong with it" in capsys.readouterr().out
    assert len(example.read_text().splitlines()) < 60


SHORT = EXAMPLES if SLOW else [path for path in EXAMPLES if path not in OWN]


@pytest.mark.parametrize("example", SHORT, ids=lambda path: path.stem)
def test_an_example_runs(example, tmp_path):
    command = [sys.executable, "-W", "error", str(example)]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert "With confidence 95%" in result.stdout
    assert "UserWarning" not in result.stderr


def test_there_are_examples():
    assert len(EXAMPLES) >= 5 and len(OWN) >= 3
