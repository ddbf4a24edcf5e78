"""The power goes before every single change of a file; `make crash` does it to whole runs."""

import os
import sys

import jax.numpy as jnp
import numpy as np
import pytest

from support.tiny import CONFIG
from surestep.storage.checkpoint import FileCheckpoint
from surestep.storage.run_folder import RunFolder
from surestep.train.constraint import Constraint
from surestep.train.locate import Located

CHANGES = {"os.mkdir", "os.rename", "os.remove", "open"}
LOCATED = Located(np.arange(3.0), np.ones(2), 0, Constraint().assess(60, 60), [])
STATES = [{"x": jnp.full(5, number)} for number in (1.0, 2.0, 3.0)]


class PowerCut(BaseException):
    """No handler of errors sees it, and nothing is tidied up."""


class Switch:
    left = -1
    folder = ""

    def hear(self, event, arguments):
        if self.left < 0 or event not in CHANGES:
            return
        place = arguments[0]
        if isinstance(place, str | os.PathLike) and os.fspath(place).startswith(self.folder):
            self.left -= 1
            if self.left < 0:
                raise PowerCut


SWITCH = Switch()
sys.addaudithook(SWITCH.hear)


def work(folder: RunFolder, said: list[str]) -> None:
    """What a stage does to its folder; what is known to be done is said."""
    with folder.claimed(CONFIG):
        said.append("claimed")
        folder.mark("locate", state="running")
        said.append("running")
        for number, state in enumerate(STATES):
            folder.checkpoint("locate").save(state)
            said.append(f"saved {number}")
        folder.save("locate", LOCATED)
        said.append("result")
        folder.mark("locate", state="done")
        said.append("done")


def changes(tmp_path) -> int:
    SWITCH.folder, SWITCH.left = str(tmp_path), 10**6
    work(RunFolder(tmp_path / "counted"), [])
    count, SWITCH.left = 10**6 - SWITCH.left, -1
    return count


def require_whole(folder: RunFolder, said: list[str]) -> None:
    """Nothing that was said to be done is lost, and nothing is half done."""
    state = folder.status().get("locate", {}).get("state")
    if "done" in said:
        assert state == "done"
    elif "running" in said:
        assert state in ("running", "done")
    saved = [int(text[-1]) for text in said if text.startswith("saved")]
    if "result" in said or folder.has("locate"):
        found = folder.load("locate", Located)
        np.testing.assert_array_equal(found.hyper, LOCATED.hyper)
    elif saved:
        found = FileCheckpoint(folder.checkpoint("locate").path).load(STATES[0])
        assert found is not None
        assert float(found["x"][0]) in (saved[-1] + 1.0, saved[-1] + 2.0)


def test_the_power_goes_before_every_change_of_a_file(tmp_path, caplog):
    number = changes(tmp_path)
    assert number > 40
    for before in range(number):
        folder = RunFolder(tmp_path / f"run{before}")
        said: list[str] = []
        SWITCH.left = before
        with pytest.raises(PowerCut):
            work(folder, said)
        SWITCH.left = -1
        require_whole(folder, said)
        # The same command goes on, and leaves what one that was left alone leaves.
        work(folder, [])
        assert folder.status() == {"locate": {"state": "done"}}
        left = sorted(path.name for path in folder.path.iterdir())
        alone = sorted(path.name for path in (tmp_path / "counted").iterdir())
        assert left == alone, before
        for name in ("config.json", "status.json", "locate.safetensors"):
            there = (folder.path / name).read_bytes()
            assert there == (tmp_path / "counted" / name).read_bytes(), (before, name)
    # Nothing of it looks like damage.
    assert "damaged" not in caplog.text
