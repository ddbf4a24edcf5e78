"""Several processes over JAX's coordination service: the same bits, and what a loss leaves."""

import os
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from surestep.cli import main
from surestep.errors import ConfigurationError
from surestep.hosts import Joining, pack_job, pack_seen, unpack_job, unpack_seen
from surestep.learning import learn
from surestep.pieces import Seen
from surestep.recertify import certify_again, read_charges
from surestep.split import TrainSet
from surestep.store import RunFolder
from tiny import CONFIG, EXPERIMENT, PROBLEM, RULE, SPLIT, TASK, changed

SMALL = changed(
    CONFIG,
    locate=changed(CONFIG.locate, steps=600, check_every=200),
    sample=changed(CONFIG.sample, samples=3, burn_in=0, thinning=1),
    evaluate=changed(CONFIG.evaluate, baselines=("heavy ball",), limit=20, shifted=0),
)
SIZE = 1500
"""More than one piece: two runs of instances, of three samples each."""


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    folder = RunFolder(tmp_path_factory.mktemp("hosts") / "run")
    learn(SMALL, EXPERIMENT, folder)
    return folder


@pytest.fixture(scope="module")
def alone(original, tmp_path_factory):
    """The same certificate by one process with one device."""
    copy = RunFolder(tmp_path_factory.mktemp("alone") / "run")
    shutil.copytree(original.path, copy.path)
    certify_again(copy, SMALL, EXPERIMENT, TrainSet.draw(PROBLEM, SIZE, 777), 0.05)
    return copy


@pytest.fixture
def run(original, tmp_path):
    shutil.copytree(original.path, tmp_path / "run")
    return RunFolder(tmp_path / "run")


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    return tmp_path_factory.mktemp("compiled")


class Pair:
    """Two processes of `surestep certify` on loopback; the first has so many devices."""

    def __init__(self, run, compiled, devices=1, patience=60.0):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        command = [sys.executable, "-m", "surestep.cli", "certify", str(run.path)]
        command += ["--instances", "777", "--size", str(SIZE), "--patience", str(patience)]
        command += ["--coordinator", f"127.0.0.1:{port}", "--processes", "2", "--process"]
        self.processes = [
            subprocess.Popen(
                [*command, str(number)],
                env=environment(compiled, devices if number == 0 else 1),
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for number in (0, 1)
        ]

    def __enter__(self):
        return self.processes

    def __exit__(self, *_):
        for process in self.processes:
            process.kill()
            process.communicate()


def environment(compiled, devices):
    here = Path(__file__).parents[1] / "src"
    return os.environ | {
        "PYTHONPATH": str(here),
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}",
        "JAX_COMPILATION_CACHE_DIR": str(compiled),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }


def same_certificate(run, alone):
    for name in ("certificate.json", "certify.safetensors", "plan.json"):
        place = Path("certificates") / "1" / name
        assert (run.path / place).read_bytes() == (alone.path / place).read_bytes(), name


def test_two_processes_with_five_devices_give_the_certificate_of_one(run, alone, compiled):
    """Four simulated devices in one process and one in the other: not a bit changes."""
    with Pair(run, compiled, devices=4) as (leader, worker):
        shown, said = leader.communicate(timeout=120)
        assert leader.returncode == 0, said
        assert f"from {SIZE} train instances" in shown
        assert worker.wait(timeout=60) == 0
    same_certificate(run, alone)


def test_a_lost_process_ends_the_run_which_goes_on_with_fewer(run, alone, compiled, capfd):
    with Pair(run, compiled, patience=0.5) as (leader, worker):
        assert "process 1 of 2 is here" in next(iter(worker.stderr))
        worker.kill()
        _, said = leader.communicate(timeout=120)
        assert leader.returncode == 6
    assert "process 1 of 2 has given no sign of life for 0.5 s" in said
    assert "the same command goes on" in said and "Traceback" not in said
    assert not (run.path / "certificates" / "1" / "certificate.json").exists()
    # The piece that process 0 had done is kept, and nothing else is missing.
    assert main(["certify", str(run.path), "--instances", "777", "--size", str(SIZE)]) == 0
    capfd.readouterr()
    same_certificate(run, alone)
    assert len(read_charges(run)) == 2


def test_what_was_done_when_a_process_was_lost_is_not_done_again(run, alone, compiled, monkeypatch):
    with Pair(run, compiled, patience=0.5) as (leader, worker):
        next(iter(worker.stderr))
        worker.kill()
        leader.communicate(timeout=120)
    from surestep.pieces import Work  # noqa: PLC0415

    checked, seen = Work.checked, []

    def counted(work, piece, found):
        seen.append((work.name, piece))
        return checked(work, piece, found)

    monkeypatch.setattr(Work, "checked", counted)
    certify_again(run, SMALL, EXPERIMENT, TrainSet.draw(PROBLEM, SIZE, 777), 0.05)
    left = [piece for name, piece in seen if not name]
    assert 0 < len(left) < 6
    same_certificate(run, alone)


def test_works_and_results_survive_the_way_between_processes():
    hypers = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
    work = TASK.work(RULE, SPLIT.train, (0, 7), (0.1, 1e-17 / 3), hypers, "heavy ball")
    facts, arrays = unpack_job(pack_job(work, [2, 0]))
    assert facts["tolerances"] == [0.1, 1e-17 / 3] and facts["at"] == [0, 7]
    assert facts["name"] == "heavy ball" and facts["sha256"] == SPLIT.train.sha256
    assert arrays["hypers"].dtype == np.float32
    np.testing.assert_array_equal(arrays["hypers"], hypers)
    assert arrays["pieces"].tolist() == [2, 0]
    seen = Seen(np.array([[1.0, np.inf]]), np.zeros((1, 0)), np.array([[0.5]]))
    piece, back = unpack_seen(pack_seen(5, seen))
    assert piece == 5
    for found, sent in zip(back, seen, strict=True):
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
