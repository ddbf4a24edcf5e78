"""A run done again from its seed: everything that does not depend on a clock has the same bits."""

import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from surestep.base.errors import ConfigurationError
from surestep.base.progress import Reporter
from surestep.run.config import RunConfig
from surestep.run.pipeline import learn
from surestep.run.verify.finished import Check, check, made_elsewhere
from surestep.storage.arrays import read_arrays
from surestep.storage.files import parse_json, read_bytes
from surestep.storage.run_folder import RunFolder
from surestep.train import Experiment

_STAGES = (
    *("minima", "imitate", "population", "locate", "sample", "pilot", "certify"),
    *("evaluate", "shifted"),
)
_BY_THE_CLOCK = ("seconds", "seconds_batch", "external_seconds", "external_losses")
_OF_LEARNED = ("reach_iterations", "reach_gradients", "reach_status")
"""Opponents that take long are given up by the clock."""
_FACTS = ("plan.json", "certificate.json", "charges.json")


def verify_retrained(
    folder: RunFolder,
    config: RunConfig[Any],
    experiment: Experiment,
    report: Reporter | None = None,
) -> list[Check]:
    """Learn, certify and evaluate again in a folder that is removed afterwards, and compare.

    Every stage has the bits that are stored. What depends on a clock is not compared: times, and
    when opponents were given up.
    """
    if made_elsewhere(folder):
        raise ConfigurationError(
            "--retrain compares bits, and this run was made by other versions or on another kind "
            "of machine: go where it was made, or verify without it"
        )
    with tempfile.TemporaryDirectory(prefix="surestep-again-") as place:
        again = RunFolder(Path(place) / "run")
        learn(config, experiment, again, report)
        stages = [name for name in _STAGES if folder.has(name) or again.has(name)]
        found = [_same_stage(folder, again, name) for name in stages]
        return found + [_same_file(folder, again, name) for name in _FACTS]


def _same_file(folder: RunFolder, again: RunFolder, name: str) -> Check:
    there, here = (one.path / name for one in (folder, again))
    if name == "charges.json":
        # Later certificates are charged there, too.
        same = there.exists() and _first_charge(there) == _first_charge(here)
    else:
        same = there.exists() and read_bytes(there) == read_bytes(here)
    return check(f"made again: {name}", same, "other than what is stored")


def _first_charge(path: Path) -> Any:
    return parse_json(read_bytes(path).decode(), path)["charges"][0]


def _same_stage(folder: RunFolder, again: RunFolder, name: str) -> Check:
    if not (folder.has(name) and again.has(name)):
        where = "the run has" if again.has(name) else "a run like this has"
        return Check(f"made again: {name}", False, f"{where} no such result")
    (there, there_facts), (here, here_facts) = (
        read_arrays(one.path / f"{name}.safetensors") for one in (folder, again)
    )
    wrong = [
        key
        for key in sorted({*there, *here} - set(_BY_THE_CLOCK))
        if key not in there or key not in here or not _same_bits(key, there[key], here[key])
    ]
    if there_facts.get("facts") != here_facts.get("facts"):
        wrong.append("other facts")
    return check(f"made again: {name}", not wrong, f"{', '.join(wrong)}: other than stored")


def _same_bits(name: str, one: np.ndarray, other: np.ndarray) -> bool:
    if name in _OF_LEARNED:
        one, other = one[:1], other[:1]
    same = one.shape == other.shape and one.dtype == other.dtype
    return same and one.tobytes() == other.tobytes()
