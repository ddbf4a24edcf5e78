"""The run folder: nothing half-written, nothing mixed up, nothing damaged unnoticed."""

import dataclasses
import multiprocessing
import os
import stat

import jax.numpy as jnp
import numpy as np
import pytest

from surestep import problems
from surestep.constraint import Constraint, SuccessEstimate
from surestep.errors import RunFolderError
from surestep.records import from_plain, to_json, to_plain
from surestep.stages.locate import Located
from surestep.store import FileCheckpoint, RunFolder, read_arrays, write_arrays, write_text
from tiny import CONFIG, changed

LOCATED = Located(
    hyper=np.arange(3.0),
    objectives=np.array([0.5, np.nan]),
    skipped=2,
    estimate=Constraint().assess(60, 60),
    checks=[Constraint().assess(1, 2)],
)


def test_results_come_back_as_they_were(tmp_path):
    folder = RunFolder(tmp_path)
    folder.save("locate", LOCATED)
    found = folder.load("locate", Located)
    np.testing.assert_array_equal(found.hyper, LOCATED.hyper)
    np.testing.assert_array_equal(found.objectives, LOCATED.objectives)
    assert (found.skipped, found.estimate, found.checks) == (2, LOCATED.estimate, LOCATED.checks)
    assert isinstance(found.estimate, SuccessEstimate)
    assert folder.dataset("locate")["hyper"].dims == ("weight",)


def test_configurations_come_back_as_they_were(tmp_path):
    folder = RunFolder(tmp_path)
    with folder.claimed(CONFIG):
        pass
    assert problems.read_config(folder) == CONFIG


def test_a_folder_belongs_to_one_configuration(tmp_path):
    folder = RunFolder(tmp_path / "run")
    for _ in range(2):
        with folder.claimed(CONFIG):
            pass
    other = changed(CONFIG, seed=3, locate=changed(CONFIG.locate, steps=7))
    message = r"(?s)locate.steps: 2000 there, 7 asked.*seed: 0"
    with pytest.raises(RunFolderError, match=message), folder.claimed(other):
        pass


def test_a_folder_with_other_things_is_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("precious")
    for path, message in [
        (tmp_path, "not empty"),
        (tmp_path / "thesis.tex", "is a file"),
        (tmp_path / "thesis.tex" / "run", "is a file"),
    ]:
        with pytest.raises(RunFolderError, match=message), RunFolder(path).claimed(CONFIG):
            pass
    assert (tmp_path / "thesis.tex").read_text() == "precious"
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_configuration_that_is_no_json_is_refused(tmp_path):
    (tmp_path / "config.json").write_text("{")
    folder = RunFolder(tmp_path)
    with pytest.raises(RunFolderError, match=r"config.json cannot be read"), folder.claimed(CONFIG):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"]


def test_a_write_that_fails_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "facts.json"
    write_text(path, "old")

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RunFolderError, match="No space left on device"):
        write_text(path, "new")
    assert path.read_text() == "old"
    assert [file.name for file in tmp_path.iterdir()] == ["facts.json"]


def test_a_changed_bit_is_found(tmp_path):
    path = tmp_path / "numbers.safetensors"
    write_arrays(path, {"a": np.arange(10.0), "scalar": np.array(3)}, {})
    arrays, _ = read_arrays(path)
    assert arrays["scalar"].shape == ()
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes(content)
    with pytest.raises(RunFolderError, match="damaged"):
        read_arrays(path)
    path.write_bytes(content[:-20])
    with pytest.raises(RunFolderError, match="cannot be read"):
        read_arrays(path)


def test_checkpoints_keep_structure_types_and_bits(tmp_path):
    tree = {"x": jnp.array([1.0, np.nextafter(1, 2)]), "n": (jnp.asarray(3, jnp.int32), None)}
    checkpoint = FileCheckpoint(tmp_path / "stage.partial.safetensors")
    assert checkpoint.load(tree) is None
    checkpoint.save(tree)
    found = checkpoint.load({"x": jnp.zeros(2), "n": (jnp.asarray(0, jnp.int32), None)})
    assert found is not None
    np.testing.assert_array_equal(found["x"], tree["x"])
    assert found["n"][0] == 3
    assert found["n"][0].dtype == jnp.int32
    with pytest.raises(RunFolderError, match="another run or version"):
        checkpoint.load({"y": jnp.zeros(2)})


def _hold(path, ready, done):
    with RunFolder(path).locked():
        ready.set()
        done.wait(30)


def test_two_processes_cannot_work_in_one_folder(tmp_path):
    context = multiprocessing.get_context("spawn")
    ready, done = context.Event(), context.Event()
    other = context.Process(target=_hold, args=(tmp_path, ready, done))
    other.start()
    try:
        assert ready.wait(60)
        with pytest.raises(RunFolderError, match="another process"), RunFolder(tmp_path).locked():
            pass
    finally:
        done.set()
        other.join()
    with RunFolder(tmp_path).locked():
        pass


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written_says_so(tmp_path):
    tmp_path.chmod(stat.S_IRUSR | stat.S_IXUSR)
    with pytest.raises(RunFolderError, match="cannot write"):
        write_text(tmp_path / "x", "y")


def test_records_are_checked_against_their_types():
    plain = to_plain(Constraint())
    assert from_plain(Constraint, plain) == Constraint()
    for name, value, message in [
        ("lower", "high", "should be a number"),
        ("point", "median", "should be one of 'mean', 'mode'"),
        ("extra", 1, "is not known"),
    ]:
        with pytest.raises(RunFolderError, match=message):
            from_plain(Constraint, plain | {name: value})
    del plain["width"]
    with pytest.raises(RunFolderError, match="width is missing"):
        from_plain(Constraint, plain)


@dataclasses.dataclass(frozen=True)
class Odd:
    value: float
    several: tuple[int, ...]
    maybe: int | None


@pytest.mark.parametrize("value", [0.1, float("inf"), -float("inf"), 1e-300])
def test_numbers_survive_json(value):
    odd = Odd(value, (1, 2), None)
    assert from_plain(Odd, to_plain(odd)) == odd
    assert "Infinity" not in to_json(odd)
