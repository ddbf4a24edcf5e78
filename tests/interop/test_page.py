"""The examples of docs/ecosystem.md run as they are printed, one after the other."""

import re
from pathlib import Path
from typing import Any

import jax

from report.test_tables import FOUND
from support import tiny
from surestep.storage.files import write_text
from surestep.storage.records import to_json
from surestep.storage.run_folder import RunFolder

PAGE = Path(__file__).parents[2] / "docs" / "ecosystem.md"


def test_every_example_runs(tmp_path, monkeypatch):
    """In the precision that JAX has by default, without a warning."""
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(blocks) == 4
    folder = RunFolder(tmp_path / "runs" / "demo")
    write_text(folder.config_path, to_json(tiny.CONFIG))
    folder.save("evaluate", FOUND)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    with jax.enable_x64(False):
        for block in blocks:
            exec(block, names)
    assert [len(names[name]) for name in ("medians", "worst", "seconds")] == [5, 15, 8]
