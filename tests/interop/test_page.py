"""The examples of docs/ecosystem.md run as they are printed, one after the other."""

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax

from report.test_tables import FOUND

PAGE = Path(__file__).parents[2] / "docs" / "ecosystem.md"


def test_every_example_runs():
    """In the precision that JAX has by default, without a warning."""
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(blocks) == 4
    # The page takes something learned for granted; of it, only the evaluation is looked at.
    names: dict[str, Any] = {"learned": SimpleNamespace(evaluation=FOUND)}
    with jax.enable_x64(False):
        for block in blocks:
            exec(block, names)
    assert [len(names[name]) for name in ("medians", "worst", "seconds")] == [5, 15, 8]
