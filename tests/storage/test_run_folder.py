"""The run folder: nothing half-written, nothing mixed up, nothing damaged unnoticed."""

import dataclasses
import multiprocessing
import os
import stat
import tracemalloc

import jax.numpy as jnp
import numpy as np
import pytest
import safetensors
import safetensors.numpy

from support.tiny import CONFIG, changed
from support.types import unchecked
from surestep import paper
from surestep.base.errors import RunFolderError
from surestep.storage.arrays import read_arrays, write_arrays
from surestep.storage.checkpoint import FileCheckpoint
from surestep.storage.files import LARGEST_TEXT, read_json, write_bytes, write_text
from surestep.storage.mirrored import Kept
from surestep.storage.records import from_plain, to_json, to_plain
from surestep.storage.run_folder import RunFolder
from surestep.train.constraint import Constraint, SuccessEstimate
from surestep.train.locate import Located

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
    assert paper.read_config(folder) == CONFIG


def test_pairs_of_a_word_and_a_number_come_back_as_they_were():
    weighted = changed(CONFIG.certify, weights=(("goal 2 missed", 3.0), ("levels", 0.5)))
    assert from_plain(type(weighted), to_plain(weighted)) == weighted
    with pytest.raises(RunFolderError, match=r"weights\[0\]\[1\] should be a number"):
        from_plain(type(weighted), to_plain(weighted) | {"weights": [["levels", "many"]]})


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


def test_checkpoints_of_another_shape_or_type_are_refused(tmp_path):
    checkpoint = FileCheckpoint(tmp_path / "stage.partial.safetensors")
    checkpoint.save({"x": jnp.zeros(3)})
    for other in (jnp.zeros(2), jnp.zeros(3, jnp.float32)):
        with pytest.raises(RunFolderError, match="another run or version"):
            checkpoint.load({"x": other})


def flip(path, place=-5):
    content = bytearray(path.read_bytes())
    content[place] ^= 4
    path.write_bytes(content)


def test_a_damaged_checkpoint_falls_back_on_the_one_before(tmp_path, caplog):
    checkpoint = FileCheckpoint(tmp_path / "stage.partial.safetensors")
    for number in (1.0, 2.0, 3.0):
        checkpoint.save({"x": jnp.full(4, number)})

    def found():
        state = checkpoint.load({"x": jnp.zeros(4)})
        return None if state is None else float(state["x"][0])

    assert found() == 3.0
    assert not caplog.records
    flip(checkpoint.path)
    assert found() == 2.0
    assert "checksum does not fit; the stage goes on from an earlier point" in caplog.text
    # Saved between the two renamings: the last one is not there yet.
    checkpoint.path.unlink()
    assert found() == 2.0
    checkpoint.previous.write_bytes(checkpoint.previous.read_bytes()[:-9])
    assert found() is None
    checkpoint.remove()
    assert list(tmp_path.iterdir()) == []


OLD, NEW = '{"steps": 1}', '{"steps": 2}'


@pytest.fixture
def kept(tmp_path):
    found = Kept(tmp_path / "facts.json")
    found.write(OLD)
    found.write(NEW)
    return found


def test_facts_survive_one_damage_anywhere(kept, caplog):
    for path in (kept.path, kept.copy):
        content = path.read_bytes()
        for place in range(len(content)):
            flip(path, place)
            assert kept.read() == NEW, (path, place)
            path.write_bytes(content[:place])
            assert kept.read() == NEW, (path, place)
            path.write_bytes(content)
    assert "facts.json is not what was written" in caplog.text


def test_facts_that_are_damaged_twice_are_refused(kept):
    flip(kept.path)
    flip(kept.copy, -3)
    with pytest.raises(RunFolderError, match="damaged: its checksum does not fit, and its copy"):
        kept.read()


def test_damage_is_mended_and_kept_aside(kept, tmp_path):
    flip(kept.path)
    damaged = kept.path.read_bytes()
    kept.mend()
    assert kept.path.read_text() == NEW
    assert (tmp_path / "facts.json.damaged").read_bytes() == damaged
    kept.path.unlink()
    kept.mend()
    assert kept.path.read_text() == NEW


def test_power_that_goes_between_copy_and_file_damages_nothing(kept, caplog, monkeypatch):
    def stop(path, content):
        write_bytes(path, content)
        raise KeyboardInterrupt

    monkeypatch.setattr("surestep.storage.mirrored.write_bytes", stop)
    with pytest.raises(KeyboardInterrupt):
        kept.write("newest")
    monkeypatch.undo()
    assert kept.path.read_text() == NEW
    assert kept.read() == "newest"
    kept.mend()
    assert kept.path.read_text() == "newest"
    assert not kept.path.with_name("facts.json.damaged").exists()
    assert not caplog.records


def test_facts_without_a_copy_are_taken_as_they_are(kept):
    kept.copy.unlink()
    assert kept.read() == NEW
    kept.mend()
    kept.path.unlink()
    with pytest.raises(RunFolderError, match="there is no such file"):
        kept.read()


def test_a_damaged_configuration_is_mended_before_the_run_goes_on(tmp_path):
    folder = RunFolder(tmp_path)
    with folder.claimed(CONFIG):
        folder.mark("inputs", train="abc")
    text = folder.config_path.read_text()
    folder.config_path.write_text(text.replace('"steps": 2000', '"steps": 2001'))
    (tmp_path / "status.json").write_text("{")
    assert paper.read_config(folder) == CONFIG
    with folder.claimed(CONFIG):
        assert folder.status() == {"inputs": {"train": "abc"}}
    assert folder.config_path.read_text() == text
    assert (tmp_path / "config.json.damaged").exists()


@pytest.mark.parametrize("name", [".lock", "figures", "certificates/1/plan.json"])
def test_a_link_out_of_the_folder_is_refused(name, tmp_path):
    precious = tmp_path / "precious"
    precious.write_text("precious")
    folder = RunFolder(tmp_path / "run")
    link = folder.path / name
    link.parent.mkdir(parents=True)
    link.symlink_to(precious)
    with pytest.raises(RunFolderError, match=r"leads out of|cannot be written"), folder.locked():
        pass
    assert precious.read_text() == "precious"


def test_nothing_is_written_through_a_link_whose_name_was_guessed(tmp_path):
    precious = tmp_path / "precious"
    precious.write_text("precious")
    for name in ("facts.json", f".facts.json.{os.getpid()}.new"):
        (tmp_path / name).symlink_to(precious)
    write_text(tmp_path / "facts.json", "new")
    assert precious.read_text() == "precious"
    assert not (tmp_path / "facts.json").is_symlink()


def test_what_is_no_plain_file_or_too_large_is_not_read(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "endless").symlink_to("/dev/zero")
    with (tmp_path / "large").open("wb") as file:
        file.truncate(LARGEST_TEXT + 1)
    for name, message in [
        ("pipe", "not a plain file"),
        ("endless", "not a plain file"),
        ("large", "are more than the"),
        (".", "not a plain file"),
    ]:
        with pytest.raises(RunFolderError, match=message):
            read_json(tmp_path / name)
        if name != "large":
            with pytest.raises(RunFolderError, match=message):
                read_arrays(tmp_path / name)
    with pytest.raises(RunFolderError, match="header of"):
        (tmp_path / "x").write_bytes(b"\xff" * 7 + b"\0" * 9)
        read_arrays(tmp_path / "x")


@unchecked()  # half-made on purpose
def test_results_of_another_form_are_refused(tmp_path):
    folder = RunFolder(tmp_path)
    folder.save("locate", LOCATED)
    for form, message in [
        (changed(LOCATED, hyper=np.zeros((2, 2))), "hyper should have the axes weight"),
        (changed(LOCATED, skipped="two"), r"locate.skipped should be of type int"),
        (LOCATED.estimate, "another result than that"),
    ]:
        folder.save("locate", form)
        with pytest.raises(RunFolderError, match=message):
            folder.load("locate", Located)
    (tmp_path / "locate.safetensors").write_bytes(safetensors.numpy.save({"a": np.zeros(2)}))
    with pytest.raises(RunFolderError, match="checksum"):
        folder.load("locate", Located)


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


def test_arrays_are_a_safetensors_file_like_any_other(tmp_path):
    """The library reads what is written here, and the other way round."""
    kinds = ("float64", "float32", "int64", "int32", "uint8", "bool")
    arrays = {f"{kind} array": np.arange(12).reshape(3, 4).astype(kind) for kind in kinds}
    arrays |= {"none": np.zeros((0, 3)), "one": np.array(2.5), "turned": np.ones((2, 5))[:, ::2].T}
    write_arrays(tmp_path / "ours", arrays, {"wörter": "ünd mehr"})
    found = safetensors.numpy.load_file(tmp_path / "ours")
    assert found.keys() == arrays.keys()
    for name, array in arrays.items():
        assert found[name].dtype == array.dtype
        np.testing.assert_array_equal(found[name], array)
    with safetensors.safe_open(tmp_path / "ours", "numpy") as file:
        metadata = file.metadata()
    safetensors.numpy.save_file(
        {name: np.asarray(array, order="C") for name, array in arrays.items()},
        tmp_path / "theirs",
        metadata,
    )
    again, words = read_arrays(tmp_path / "theirs")
    assert words == {"wörter": "ünd mehr"} and again.keys() == arrays.keys()


def test_large_arrays_are_not_copied_to_be_written(tmp_path):
    arrays = {name: np.ones((1000, 2000)) for name in ("a", "b")}
    tracemalloc.start()
    write_arrays(tmp_path / "large", arrays, {})
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 4e6 < arrays["a"].nbytes
