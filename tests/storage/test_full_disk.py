"""A disk that is full, a place that cannot be written, a clock that jumps."""

import ast
import contextlib
import resource
import signal
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

import surestep
from support.equal import assert_same
from support.tiny import CONFIG
from surestep.base.errors import RunFolderError
from surestep.certify import gather as certify_module
from surestep.cli.main import main
from surestep.storage import checkpoint as checkpoint_module
from surestep.storage.checkpoint import FileCheckpoint
from surestep.storage.files import exclusive, write_text
from surestep.storage.mirrored import Kept
from surestep.storage.run_folder import RunFolder


@contextlib.contextmanager
def full(left):
    """The system refuses to make files larger than so many bytes, as a full disk would."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (left, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("left", [0, 100, 5000])
def test_a_full_disk_leaves_the_last_checkpoint(left, tmp_path):
    checkpoint = FileCheckpoint(tmp_path / "locate.partial.safetensors")
    first, second, third = ({"x": jnp.full(1000, number)} for number in (1.0, 2.0, 3.0))
    checkpoint.save(first)
    checkpoint.save(second)
    before = names(tmp_path)
    with full(left), pytest.raises(RunFolderError, match=r"cannot write .*: File too large"):
        checkpoint.save(third)
    assert names(tmp_path) == before
    found = checkpoint.load(first)
    assert found is not None and float(found["x"][0]) == 2.0


@pytest.mark.parametrize("left", [0, 100, 160])
def test_a_full_disk_leaves_the_last_facts(left, tmp_path):
    """Also where there was room for the file and not for its copy."""
    kept = Kept(tmp_path / "facts.json")
    kept.write("1" * 150)
    with full(left), pytest.raises(RunFolderError, match="File too large"):
        kept.write("2" * 150)
    assert kept.read() == "1" * 150
    kept.write("3" * 150)
    assert kept.path.read_text() == kept.read() == "3" * 150


def test_a_full_disk_is_an_exit_code_and_a_reason(tmp_path, monkeypatch, capsys):
    import io  # noqa: PLC0415

    state = tmp_path / "state.json"
    monkeypatch.setattr("sys.stdin", io.StringIO("0 0 1"))
    assert main(["monitor", str(state), "--failure", "0.1"]) == 0
    before = state.read_bytes()
    monkeypatch.setattr("sys.stdin", io.StringIO("0 0 1"))
    with full(10):
        assert main(["monitor", str(state)]) == 4
    assert "surestep: cannot write" in capsys.readouterr().err
    assert state.read_bytes() == before
    # One at a time, or each would forget what the other has seen.
    with exclusive(tmp_path / ".state.json.lock", state):
        assert main(["monitor", str(state)]) == 4
    assert "another process is working" in capsys.readouterr().err


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="there is no place that cannot be written")
def test_a_place_that_cannot_be_written_says_so_even_to_root():
    place = Path("/proc/surestep/run")
    with pytest.raises(RunFolderError, match="cannot be written"), RunFolder(place).claimed(CONFIG):
        pass
    with pytest.raises(RunFolderError, match="cannot write"):
        write_text(place / "x", "y")


def test_nothing_asks_what_time_it_is():
    """Durations come from a clock that cannot be set; what is computed depends on no clock."""
    asked = []
    for path in Path(surestep.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and ast.unparse(node) in (
                "time.time", "time.localtime", "datetime.now", "datetime.datetime.now",
            ):  # fmt: skip
                asked.append(path.name)
    assert asked == []


class Mad:
    """A clock that jumps, forwards and back."""

    def __init__(self):
        self.random = np.random.default_rng(0)

    def monotonic(self):
        return self.random.uniform(-1e9, 1e9)


def test_a_clock_that_jumps_changes_when_states_are_saved_and_nothing_else(tmp_path, monkeypatch):
    from support.tiny import (  # noqa: PLC0415
        OPPONENTS,
        RULE,
        SPLIT,
        TASK,
        planned,
        references,
    )
    from surestep.rules.base import hyper_of  # noqa: PLC0415
    from surestep.train.sample import Sampled  # noqa: PLC0415

    hypers = np.asarray(hyper_of(RULE))[None] * [[1.0], [0.5]]
    losses = np.ones((2, SPLIT.prior.size))
    prior = Sampled.given(hypers, np.ones(2), losses, losses[0], np.log([0.5, 0.5]))
    arguments = (planned(prior), TASK, RULE, prior, OPPONENTS, references(), SPLIT.train)
    wanted = certify_module.certify(*arguments)
    monkeypatch.setattr(checkpoint_module, "time", Mad())
    checkpoint = FileCheckpoint(tmp_path / "certify.partial.safetensors")
    found = certify_module.certify(*arguments, checkpoint)
    assert_same(found, wanted)
