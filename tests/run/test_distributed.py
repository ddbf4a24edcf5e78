"""Several processes over JAX's coordination service: the same bits, and what a loss leaves."""

import contextlib
import dataclasses
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from support.finished import finished
from support.tiny import CONFIG, EXPERIMENT, RULE, SPLIT, TASK, sealed
from support.types import unchecked
from surestep.base.errors import ConfigurationError, HostError
from surestep.cli.main import main
from surestep.cli.workers import Workbench, subject_of
from surestep.rollout.observe import Observed
from surestep.rollout.tiles import Work
from surestep.rules.base import hyper_of, with_hyper
from surestep.run.charges import read_charges
from surestep.run.distributed import (
    Board,
    Joining,
    _expected,
    pack_seen,
    pack_work,
    unpack_job,
    unpack_seen,
)
from surestep.run.fresh import certify_again
from surestep.storage.run_folder import RunFolder
from surestep.train.sample import Sampled

SIZE = 1500
"""More than one tile: two runs of instances, of three samples each."""

PATIENCE = 4
"""Seconds; a machine with much else to do may keep a process waiting for some."""

TWICE = """
import sys
from surestep.cli import certify
from surestep.cli.joining import alone_or_together

def twice(arguments, leader):
    certify.carry_out([*arguments, "--instances", "777"], leader)
    print("the first is done", flush=True)
    sys.stdin.readline()
    return certify.carry_out([*arguments, "--instances", "778"], leader)

sys.exit(alone_or_together(sys.argv[1:], twice))
"""
"""The command, twice in one process, because starting processes takes long."""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A folder as a run leaves it, with three samples of a rule that nobody has trained."""
    with jax.enable_x64(True):
        hyper = np.asarray(hyper_of(RULE))
        hypers = np.stack([0.001 * hyper, hyper, 0.01 * hyper])
        rules = [with_hyper(RULE, jax.numpy.asarray(one)) for one in hypers]
        losses = np.stack([TASK.losses(rule, SPLIT.prior)[:, 0] for rule in rules])
        thresholds = TASK.thresholds(SPLIT.prior)
        known = (np.full(3, 0.9), losses, thresholds, np.log(np.full(3, 1 / 3)))
        prior = Sampled.given(hypers, *known)
        return finished(prior, tmp_path_factory.mktemp("hosts") / "run")[0]


@pytest.fixture(scope="module")
def alone(run, tmp_path_factory):
    """The same certificates by one process with one device."""
    copy = RunFolder(tmp_path_factory.mktemp("alone") / "run")
    shutil.copytree(run.path, copy.path)
    for seed in (777, 778):
        certify_again(copy, CONFIG, EXPERIMENT, sealed(SIZE, seed), 0.05)
    return copy


@contextlib.contextmanager
def pair(run, compiled, patience) -> Iterator[Any]:
    """Two processes on loopback, the first with four simulated devices, the second with one."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-c", TWICE, str(run.path), "--size", str(SIZE)]
    command += ["--coordinator", f"127.0.0.1:{port}", "--processes", "2"]
    command += ["--patience", str(patience), "--process"]
    processes = [
        subprocess.Popen(
            [*command, str(number)],
            env=environment(compiled, devices),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number, devices in enumerate((4, 1))
    ]
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def environment(compiled, devices):
    """Processes share what they compile, with other runs of the tests too where they do."""
    return {
        "JAX_COMPILATION_CACHE_DIR": str(compiled),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        **os.environ,
        "PYTHONPATH": str(Path(__file__).parents[2] / "src"),
        # Added to those of the tests: other flags would give other bits.
        "XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} "
        f"--xla_force_host_platform_device_count={devices}",
    }


def same_certificate(run, alone, number):
    for name in ("certificate.json", "certify.safetensors", "plan.json"):
        place = Path("certificates") / str(number) / name
        assert (run.path / place).read_bytes() == (alone.path / place).read_bytes(), name


def test_processes_give_the_certificate_of_one_and_a_lost_one_is_done_without(
    run, alone, tmp_path, monkeypatch
):
    with pair(run, tmp_path, PATIENCE) as (leader, worker):
        assert "process 1 of 2 is here" in next(iter(worker.stderr))
        for line in leader.stdout:
            if "the first is done" in line:
                break
        # Not a bit differs, whoever computed a tile, and on how many devices.
        same_certificate(run, alone, 1)
        worker.kill()
        time.sleep(1.5 * PATIENCE)
        leader.stdin.write("go on\n")
        leader.stdin.flush()
        _, said = leader.communicate(timeout=120)
        assert leader.returncode == 6
    assert "process 1 of 2 has given no sign of life for 4 s" in said
    assert "the same command goes on" in said and "Traceback" not in said
    assert not (run.path / "certificates" / "2" / "certificate.json").exists()
    # One process alone goes on: what process 0 had done is not done again.
    checked, seen = Work.checked, []

    def counted(work, tile, found):
        seen.append((work.name, tile))
        return checked(work, tile, found)

    monkeypatch.setattr(Work, "checked", counted)
    certify_again(run, CONFIG, EXPERIMENT, sealed(SIZE, 778), 0.05)
    assert len([tile for name, tile in seen if not name]) < 6
    same_certificate(run, alone, 2)
    assert len(read_charges(run)) == 3


def test_works_and_results_survive_the_way_between_processes():
    hypers = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
    targets = np.tile([0.1, 1e-17 / 3], (SPLIT.train.size, 1))
    watch = TASK.watch((0, 7), 2)
    work = TASK.work(RULE, SPLIT.train, watch, hypers, "heavy ball", targets, 32)
    facts, arrays = unpack_job(pack_work(work, [2, 0]))
    assert facts["length"] == 32 and facts["at"] == [0, 7]
    np.testing.assert_array_equal(arrays["targets"], targets)
    assert facts["name"] == "heavy ball" and facts["sha256"] == SPLIT.train.sha256
    assert arrays["hypers"].dtype == np.float32
    np.testing.assert_array_equal(arrays["hypers"], hypers)
    assert arrays["tiles"].tolist() == [2, 0]
    seen = Observed(np.array([[[1.0, np.inf]]]), np.zeros((1, 1, 0)), np.array([[[0.5]]]))
    tile, back = unpack_seen(pack_seen(5, seen))
    assert tile == 5
    for found, sent in zip(vars(back).values(), vars(seen).values(), strict=True):
        assert found.shape == sent.shape
        np.testing.assert_array_equal(found, sent)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--processes", "2"], "go together"),
        (["--coordinator", "h:1", "--processes", "2"], "go together"),
        (["--coordinator", "h", "--processes", "2", "--process", "0"], "an address and a port"),
        (["--coordinator", "h:99999", "--processes", "2", "--process", "0"], "an address and"),
        (["--coordinator", "h:1", "--processes", "2", "--process", "2"], "one of 0 to 1"),
        (["--coordinator", "h:1", "--processes", "0", "--process", "0"], "one of 0 to -1"),
        (["--coordinator", "h:1", "--processes", "x"], "invalid int value"),
        (["--distributed", "auto", "--process", "0"], "say either --distributed auto"),
        (["--distributed", "always"], "invalid choice"),
        (["--patience", "3"], "say either --distributed auto"),
        (["--distributed", "auto", "--patience", "0"], "--patience must be positive"),
    ],
)
@pytest.mark.parametrize("command", ["run", "resume", "certify"])
def test_hosts_that_cannot_be_meant_are_refused_at_once(command, arguments, message, capfd):
    assert main([command, "quadratics", *arguments]) == 2
    assert re.search(re.escape(message), capfd.readouterr().err)


def test_what_is_not_said_is_left_to_detection():
    Joining().validate()
    with pytest.raises(ConfigurationError, match="go together"):
        Joining(process=1).validate()


def test_a_worker_runs_no_file_that_its_own_command_does_not_name():
    subject = subject_of(CONFIG, own_file="theirs.py:problem")
    for given in ([], ["run", "mine.py"], ["--problem=mine.py"]):
        with pytest.raises(HostError, match=r"named the file theirs\.py:problem, which"):
            Workbench(subject, given)


class Silent:
    """A client that is slow to answer and remembers when it was asked."""

    def __init__(self):
        self.asked = 0

    def key_value_set_bytes(self, *_, **__):
        time.sleep(0.05)
        self.asked += 1

    def key_value_dir_get_bytes(self, _):
        return []


def test_nobody_is_inside_the_client_once_the_board_is_closed(monkeypatch):
    """A thread that was there when Python ended took finished processes down (SIGABRT)."""
    client = Silent()
    monkeypatch.setattr("jax._src.distributed.global_state.client", client)
    board = Board(patience=0.1)
    time.sleep(0.2)
    assert board.close() and board.close()
    asked = client.asked
    time.sleep(0.2)
    assert client.asked == asked > 0


@unchecked()
def test_what_is_no_tile_of_the_work_is_refused():
    work = TASK.work(RULE, SPLIT.train, TASK.watch((0, 7), 1), targets=np.ones((64, 1)))
    fits = Observed(np.zeros((1, 64, 2)), np.zeros((1, 64, 3)), np.zeros((1, 64, 0)))
    assert _expected(work, 0, fits) == (0, fits)
    short = dataclasses.replace(fits, losses=np.zeros((1, 63, 2)))
    for tile, seen in ((0, short), (1, fits), (-1, fits)):
        with pytest.raises(HostError, match="no tile of this work"):
            _expected(work, tile, seen)
