"""What each of several processes does in a run: the first leads, the others roll out for it."""

import base64
import contextlib
import functools
import itertools
import os
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from surestep.auto.choice_file import NAME as CHOICE
from surestep.base.errors import HostError, SurestepError
from surestep.cli.interruption import exit_code
from surestep.paper import registry
from surestep.problem import Commitment, SealedTrainSet, TrainSet, fresh_instances
from surestep.rollout.tiles import Alone, Work
from surestep.run.distributed import (
    Board,
    Joining,
    Leader,
    Share,
    join,
    pack_seen,
    unpack_end,
    unpack_job,
)
from surestep.storage.records import from_plain, to_plain
from surestep.storage.run_folder import RunFolder
from surestep.train import Experiment

Explain = Callable[[BaseException], int]
"""Tells the user of an error, and says which exit code it means."""


def subject_of(
    config: Any,
    instances: str | None = None,
    size: int = 0,
    own_file: str = "",
    folder: RunFolder | None = None,
) -> dict[str, Any]:
    """What workers must know of a run: its configuration, and what is certified on.

    Without `instances` that is the run's own train set, with them what `surestep certify` takes.
    `own_file` is what the user of process 0 has named; all processes are given the same command.
    The rule that was chosen for such a file goes along.
    """
    plain, choice = to_plain(config), ""
    if own_file and folder is not None:
        choice = base64.b64encode((folder.path / CHOICE).read_bytes()).decode()
    about = {"instances": instances, "size": size, "own_file": own_file, "choice": choice}
    return {"config": plain} | about


class Workbench:
    """The problem, the rules and the data of a run, made from what process 0 says of it."""

    def __init__(self, subject: dict[str, Any], given: Sequence[str] = ()) -> None:
        own_file = subject["own_file"]
        if own_file and not any(word in (own_file, f"--problem={own_file}") for word in given):
            # What runs here is named here, not by whoever can reach the port of process 0.
            raise HostError(
                f"process 0 has named the file {own_file}, which this process was not given: all "
                "processes of a run are given the same command"
            )
        config = registry.config_of(subject["config"], "the configuration of process 0")
        experiment = _experiment(config, own_file, subject["choice"])
        self.task = config.task(experiment)
        self.rule = experiment.rule(config.seed)
        self.experiment = experiment
        self._train: SealedTrainSet | TrainSet
        if subject["instances"] is None:
            self._train = SealedTrainSet(experiment.problem, config.sizes.train, config.seed)
        else:
            self._train = fresh_instances(experiment.problem, subject["instances"], subject["size"])
        self.opened = functools.lru_cache(maxsize=1)(self._open)

    def _open(self, commitment: Commitment | None) -> TrainSet:
        """The train set, once process 0 has fixed the plan that opens it."""
        if isinstance(self._train, TrainSet):
            return self._train
        if commitment is None:
            raise HostError("process 0 has not said which plan the train set is opened by")
        return self._train.open(commitment)

    def work(self, facts: dict[str, Any], arrays: dict[str, np.ndarray]) -> Work:
        """The work that process 0 describes, which must be the same here."""
        name, targets = facts["name"], arrays.get("targets")
        rule = self.experiment.chosen([name])[name] if name else self.rule
        watch = self.task.watch(tuple(facts["at"]), 0 if targets is None else targets.shape[1])
        commitment = from_plain(Commitment | None, facts["commitment"], "commitment")
        work = self.task.work(
            rule,
            self.opened(commitment),
            watch,
            arrays.get("hypers"),
            name,
            targets,
            facts["length"],
        )
        if work.data.sha256 != facts["sha256"] or work.number != facts["number"]:
            raise HostError(
                "the train instances here are others than those of process 0: all processes of a "
                "run need the same files, the same versions and the same kind of machine"
            )
        return work


def _experiment(config: Any, own_file: str, choice: str) -> Experiment:
    if not choice:
        return registry.build(config, own_file)
    with tempfile.TemporaryDirectory() as place:
        (Path(place) / CHOICE).write_bytes(base64.b64decode(choice))
        return registry.build(config, own_file, RunFolder(Path(place)))


def together(
    joining: Joining, lead: Callable[[Leader], int], explain: Explain, given: Sequence[str] = ()
) -> int:
    """Join the run's other processes; lead them, or work for process 0. Returns the exit code.

    `given` are the words of this process's own command: only a file among them is run.
    """
    board = join(joining)
    if board.process == 0:
        code, orderly = _lead(board, lead, explain)
    else:
        print(f"process {board.process} of {board.processes} is here", file=sys.stderr, flush=True)
        code, message = _follow(board, given)
        orderly = not message
        if message:
            print(f"surestep: {message}", file=sys.stderr)
        with contextlib.suppress(jax.errors.JaxRuntimeError):
            board.put(f"bye/{board.process}", b"bye")
    if board.close() and orderly:
        jax.distributed.shutdown()
        return code
    # JAX's way to end waits for all processes, of which some may be gone.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _lead(board: Board, lead: Callable[[Leader], int], explain: Explain) -> tuple[int, bool]:
    """The exit code, and whether all processes are there to end together."""
    leader = Leader(board)
    try:
        code, message = lead(leader), ""
    except BaseException as error:
        code, message = explain(error), f"process 0 has stopped: {str(error) or 'interrupted'}"
    return code, leader.dismiss(code, message) and not message


def _follow(board: Board, given: Sequence[str]) -> tuple[int, str]:
    """Compute tiles until process 0 says that it is over, and how it ended."""
    try:
        return _serve(board, given)
    except SurestepError as error:
        return _give_up(board, error.exit_code, str(error))
    except KeyboardInterrupt as error:
        return _give_up(board, exit_code(error), "it was interrupted")
    except Exception as error:
        traceback.print_exc()
        return _give_up(board, 1, repr(error))


def _give_up(board: Board, code: int, reason: str) -> tuple[int, str]:
    message = f"process {board.process} of {board.processes} has stopped: {reason}"
    with contextlib.suppress(jax.errors.JaxRuntimeError):
        board.put(f"failed/{board.process}", message.encode())
    return code, message


def _serve(board: Board, given: Sequence[str]) -> tuple[int, str]:
    bench: Workbench | None = None
    for job in itertools.count():
        name, content = board.wait("end", f"job/{job}")
        if name == "end":
            return unpack_end(content)
        facts, arrays = unpack_job(content)
        if "subject" in facts:
            bench = Workbench(facts["subject"], given)
            continue
        assert bench is not None
        work = bench.work(facts, arrays)
        share = Share(board, f"next/{job}", arrays["tiles"].tolist(), len(jax.local_devices()))
        while tiles := share.next():
            for tile, seen in Alone().observe(work, tiles):
                board.put(f"done/{job}/{tile}", pack_seen(tile, seen))
            board.require_alive(0)
    raise AssertionError
