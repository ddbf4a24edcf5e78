"""A finished run, read from its folder: nothing is computed and nothing is changed.

A run is finished once its evaluation has ended, well or not.
"""

from pathlib import Path
from typing import Any

from surestep.base.errors import RunFolderError
from surestep.certify import Certificate, Certified, Plan
from surestep.evaluate.break_even import training_seconds
from surestep.evaluate.evaluated import Evaluated
from surestep.evaluate.off_family import Shifted
from surestep.run.config import RunConfig
from surestep.run.learned import Learned
from surestep.storage.files import read_json
from surestep.storage.records import from_plain
from surestep.storage.run_folder import RunFolder
from surestep.train import Experiment, Sampled

INCOMPLETE = "incomplete"
"""The state of a stage that failed after the certificate was written."""


def read_learned(config: RunConfig[Any], experiment: Experiment, folder: RunFolder) -> Learned:
    """What `learn` returned when the run ended; a run that has not ended is refused."""
    require_finished(folder)
    prior, found = folder.load("sample", Sampled), folder.load("certify", Certified)
    deployed = experiment.rule_at(config.seed, prior.hypers[found.deployed_sample])
    return Learned(
        task=config.task(experiment),
        deployed=deployed,
        certificate=Certificate.from_plain(
            folder.read_kept(folder.certificate_path), folder.certificate_path.name
        ),
        prior=prior,
        certified=found,
        evaluated=folder.load("evaluate", Evaluated) if folder.has("evaluate") else None,
        training_seconds=training_seconds(folder.status()),
        shifted=folder.load("shifted", Shifted) if folder.has("shifted") else None,
        incomplete=_incomplete(folder),
    )


def _incomplete(folder: RunFolder) -> tuple[str, ...]:
    """What went wrong after the certificate was written."""
    status = folder.status()
    return tuple(
        f"The stage {name} failed and is incomplete ({status[name].get('reason', '')}); surestep "
        f"resume {folder.path} tries it again."
        for name in ("evaluate", "shifted")
        if status.get(name, {}).get("state") == INCOMPLETE
    )


def read_plan(path: Path) -> Plan:
    """A plan as it lies there, not its copy: verification is about the file that people see."""
    return from_plain(Plan, read_json(path), "plan")


def require_finished(folder: RunFolder) -> None:
    """Refuse a folder without a run, and a run that has not come to its evaluation."""
    if not folder.config_path.exists():
        raise RunFolderError(f"{folder.path} holds no run (there is no config.json)")
    failed = folder.status().get("evaluate", {}).get("state") == INCOMPLETE
    if not folder.certificate_path.exists() or not (folder.has("evaluate") or failed):
        raise RunFolderError(
            f"the run in {folder.path} has not ended, so there is nothing to report: "
            f"go on with it first (surestep resume {folder.path})"
        )
