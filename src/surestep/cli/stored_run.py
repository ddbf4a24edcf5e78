"""The arguments of commands about a run that is stored, and how such a run is read."""

import dataclasses
from pathlib import Path
from typing import Annotated, Any

import tyro

from surestep.cli.interruption import working_in
from surestep.paper import registry
from surestep.run.config import RunConfig
from surestep.storage.run_folder import RunFolder
from surestep.train import Experiment


@dataclasses.dataclass(frozen=True, kw_only=True)
class OwnFile:
    """The file of a user's own problem."""

    problem: Annotated[str, tyro.conf.arg(metavar="FILE.py[:NAME]", help_behavior_hint="")] = ""
    """Your file that defines the run's problem: folders run no code, what you name does."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class StoredRun(OwnFile):
    """A run's folder, with the file of its problem if that is the user's own."""

    folder: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="DIR")]
    """The run's folder."""


def open_run(folder: Path, own_file: str) -> tuple[RunFolder, RunConfig[Any], Experiment]:
    """A run's folder, its configuration, and the experiment that this describes."""
    run = RunFolder(folder)
    working_in(folder)
    config = registry.read_config(run)
    return run, config, registry.build(config, own_file, run)
