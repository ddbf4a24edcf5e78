"""Batch sizes: measured once, remembered, and kept by a run."""

import json

import jax
import numpy as np
import pytest

from support.tiny import CONFIG, EXPERIMENT, PROBLEM, RULE, SPLIT, changed
from surestep import paper
from surestep.base.errors import ConfigurationError, RunFolderError
from surestep.run import batch_size as size
from surestep.run.batch_size import (
    BatchSizes,
    candidates,
    fastest,
    for_accelerator,
    seconds,
    settled,
)
from surestep.run.pipeline import learn
from surestep.storage.run_folder import RunFolder


@pytest.fixture
def measured(monkeypatch, tmp_path):
    """A machine that remembers, on which blocks of 16 are the fastest; lists what was timed."""
    timed: list[BatchSizes] = []

    def timing(problem, rule, thetas, size):
        timed.append(size)
        return 1e-6 * (abs(np.log(size.block / 16)) + 1)

    monkeypatch.setenv("SURESTEP_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(size, "seconds", timing)
    monkeypatch.setattr(size, "WORTH_IT", 0.0)
    return timed


def test_a_pace_is_measured_once_for_all_seeds(measured):
    first = settled(CONFIG, EXPERIMENT)
    assert (first.block, first.sample_block) == (16, 1)
    assert [one.block for one in measured] == [4, 16, 64]  # there are 64 instances
    assert changed(first, block=0, sample_block=0) == CONFIG
    again = settled(changed(CONFIG, seed=5), EXPERIMENT)
    assert (again.block, again.sample_block, again.seed) == (16, 1, 5) and len(measured) == 3


def test_another_form_is_measured_for_itself(measured):
    settled(CONFIG, EXPERIMENT)
    larger = changed(CONFIG, problem=changed(CONFIG.problem, dimension=9))
    settled(larger, paper.build(larger))
    assert len(measured) == 6


@pytest.mark.parametrize(
    "content", ["", "{}", '{"block": 0, "sample_block": 1}', '{"block": "4"}', "[]"]
)
def test_what_cannot_be_remembered_is_measured_again(measured, content):
    settled(CONFIG, EXPERIMENT)
    [path] = (path for path in _remembered() if path.suffix == ".json")
    assert json.loads(path.read_text()) == {"block": 16, "sample_block": 1}
    path.write_text(content)
    assert settled(CONFIG, EXPERIMENT).block == 16 and len(measured) == 6
    assert settled(CONFIG, EXPERIMENT).block == 16 and len(measured) == 6


def _remembered():
    folder = size.own_folder()
    assert folder is not None
    return list((folder / "batch_sizes").iterdir())


def test_without_a_place_to_remember_it_nothing_is_measured(measured, monkeypatch):
    """Else the same run could have other bits the next time."""
    monkeypatch.setenv("SURESTEP_CACHE", "off")
    found = settled(CONFIG, EXPERIMENT)
    assert (found.block, found.sample_block) == (256, 1) and not measured


def test_a_place_that_cannot_be_written_stops_nothing(measured, monkeypatch):
    def full(path, text):
        raise RunFolderError(f"cannot write {path}: No space left on device")

    monkeypatch.setattr(size, "write_text", full)
    assert settled(CONFIG, EXPERIMENT).block == 16


def test_a_small_run_measures_nothing(measured, monkeypatch):
    monkeypatch.setattr(size, "WORTH_IT", 2e7)
    assert settled(CONFIG, EXPERIMENT).block == 256 and not measured


def test_what_is_asked_for_is_not_measured(measured):
    assert settled(changed(CONFIG, block=7), EXPERIMENT).block == 7
    asked = changed(CONFIG, block=7, sample_block=3)
    assert settled(asked, EXPERIMENT) == asked
    assert not measured


def test_a_run_keeps_the_pace_it_began_with(measured, tmp_path):
    folder = RunFolder(tmp_path / "run")
    learned = learn(CONFIG, EXPERIMENT, folder)
    assert learned.task.block == 16 and paper.read_config(folder).block == 16
    for path in _remembered():
        path.write_text('{"block": 4, "sample_block": 1}')
    again = learn(CONFIG, EXPERIMENT, folder)
    assert again.task.block == 16 and again.certificate == learned.certificate
    with pytest.raises(RunFolderError, match="block: 16 there, 4 asked for"):
        learn(changed(CONFIG, block=4), EXPERIMENT, folder)


def test_a_folder_without_a_pace_is_refused(measured, tmp_path):
    folder = RunFolder(tmp_path)
    folder.kept(folder.config_path).write('{"block": 0, "sample_block": 1}')
    with pytest.raises(RunFolderError, match="does not say how large batches are"):
        settled(CONFIG, EXPERIMENT, folder)


@pytest.mark.parametrize(("block", "sample_block"), [(-1, 1), (1, -1)])
def test_less_than_nothing_is_refused(block, sample_block):
    with pytest.raises(ConfigurationError, match="block and sample_block must be at least 1"):
        changed(CONFIG, block=block, sample_block=sample_block).validate()


def test_candidates_go_from_little_to_much_but_not_beyond_what_there_is():
    assert candidates(200, 250) == [BatchSizes(b) for b in (4, 16, 64, 256)]
    assert candidates(10**5, 250) == [BatchSizes(b) for b in (1, 4, 16, 64, 256)]
    assert candidates(200, 20) == [BatchSizes(4), BatchSizes(16)]
    assert candidates(200, 1) == [BatchSizes(4)]


@pytest.mark.parametrize(
    ("given", "dimension", "found"),
    [
        (BatchSizes(0, 0), 200, BatchSizes(256, 64)),
        (BatchSizes(0, 0), 1000, BatchSizes(256, 16)),
        (BatchSizes(0, 0), 46_750, BatchSizes(64, 1)),
        (BatchSizes(0, 0), 10**9, BatchSizes(1, 1)),
        (BatchSizes(50, 0), 1000, BatchSizes(50, 64)),
        (BatchSizes(0, 3), 200, BatchSizes(256, 3)),
    ],
)
def test_an_accelerator_gets_as_much_as_there_is_room_for(given, dimension, found):
    assert for_accelerator(given, dimension) == found


def test_an_accelerator_is_not_measured(measured, monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    found = settled(CONFIG, EXPERIMENT)
    assert (found.block, found.sample_block) == (256, 5) and not measured  # it has five samples


def test_the_fastest_is_found_within_the_budget():
    taken = {1: 5.0, 4: 3.0, 16: 4.0, 64: 9.0, 256: 1.0}
    tried = []

    def timing(size):
        tried.append(size.block)
        return taken[size.block]

    assert fastest([BatchSizes(block) for block in taken], timing, 1e4) == BatchSizes(256)
    assert tried == list(taken)
    tried.clear()
    # Three rounds of 64 instances would take 576 seconds.
    assert fastest([BatchSizes(block) for block in taken], timing, 500.0) == BatchSizes(4)
    assert tried == [1, 4, 16]
    assert fastest([BatchSizes(1), BatchSizes(2)], lambda _: np.inf) == BatchSizes(1)


def test_times_are_measured_and_room_is_limited(monkeypatch):
    thetas = SPLIT.prior.thetas
    assert 0 < seconds(PROBLEM, RULE, thetas, BatchSizes(16)) < np.inf
    monkeypatch.setattr(size, "_ROOM", 0)
    assert seconds(PROBLEM, RULE, thetas, BatchSizes(16)) == np.inf
