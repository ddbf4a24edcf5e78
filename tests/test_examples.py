"""The examples run as they are, in a process of their own, without a warning."""

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("[0-9]*.py"))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs(example, tmp_path):
    command = [sys.executable, "-W", "error", str(example)]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert "With confidence 95%" in result.stdout
    assert "UserWarning" not in result.stderr


def test_there_are_examples():
    assert len(EXAMPLES) >= 2
