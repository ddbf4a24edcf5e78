"""Using the wrong data set is a type error: the type checker must say so."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PYRIGHT = Path(sys.executable).with_name("pyright")

SNIPPET = """
from typing import Any
from surestep.certify.gather import certify
from surestep.evaluate.test_set import evaluate
from surestep.problem.datasets import (
    Commitment, PriorSet, SealedSplit, TestSet, TrainSet, ValidationSet,
)
from surestep.train.locate import locate

def right(anything: Any, p: PriorSet, v: ValidationSet, t: TrainSet, s: TestSet) -> None:
    locate(anything, anything, anything, p, v, 0)
    certify(anything, anything, anything, anything, anything, anything, t)
    evaluate(anything, anything, anything, anything, anything, s)

def wrong(anything: Any, p: PriorSet, v: ValidationSet, t: TrainSet, s: TestSet) -> None:
    locate(anything, anything, anything, t, v, 0)
    locate(anything, anything, anything, p, t, 0)
    certify(anything, anything, anything, anything, anything, anything, v)
    evaluate(anything, anything, anything, anything, anything, t)

def opened(anything: Any, sealed: SealedSplit, commitment: Commitment) -> None:
    train = sealed.open(commitment).train
    certify(anything, anything, anything, anything, anything, anything, train)
    certify(anything, anything, anything, anything, anything, anything, sealed.train)
    TrainSet.draw(anything, 8, 0)
    sealed.test
"""


@pytest.mark.skipif(not PYRIGHT.exists(), reason="pyright is not installed")
def test_a_leak_is_a_type_error(tmp_path):
    (tmp_path / "leak.py").write_text(SNIPPET)
    source = Path(__file__).parents[2] / "src"
    (tmp_path / "pyrightconfig.json").write_text(
        json.dumps({"include": ["leak.py"], "extraPaths": [str(source)]})
    )
    command = [str(PYRIGHT), "--outputjson", "--pythonpath", sys.executable, "-p", str(tmp_path)]
    output = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    found = [d for d in json.loads(output)["generalDiagnostics"] if d["severity"] == "error"]
    lines = [d["range"]["start"]["line"] for d in found]
    assert lines == [15, 16, 17, 18, 23, 24, 25], found
    shutil.rmtree(tmp_path)
