"""A run that has begun: what all its stages share, and where their results are kept."""

import dataclasses
import time
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from surestep.base.errors import InfeasibleError, RunFolderError
from surestep.base.machine import provenance
from surestep.base.progress import Reporter
from surestep.problem import Problem, SealedSplit, Split, Theta, instance, working_precision
from surestep.rollout.batched import rollouts
from surestep.rollout.tiles import Crew
from surestep.rules import GradientDescent
from surestep.rules.base import Rule, solver_fingerprint
from surestep.run.charges import record_hashes
from surestep.run.config import RunConfig
from surestep.solver.signature import PROBES
from surestep.storage.checkpoint import NoCheckpoint
from surestep.storage.run_folder import RunFolder
from surestep.train import Experiment, Task

Result = TypeVar("Result")


@dataclasses.dataclass(frozen=True)
class Begun:
    """What all stages of a run share."""

    config: RunConfig[Any]
    experiment: Experiment
    rule: Rule
    """The rule that the run begins with."""
    sealed: SealedSplit
    folder: RunFolder | None
    report: Reporter
    crew: Crew | None
    began: float = dataclasses.field(default_factory=time.monotonic)

    @property
    def task(self) -> Task:
        """The task of all stages."""
        return self.config.task(self.experiment)

    def stage(self, name: str, kind: type[Result], compute: Callable[[Any], Result]) -> Result:
        """A stage's result: from the folder if it is there, computed and put there if not."""
        folder = self.folder
        if folder is None:
            return compute(NoCheckpoint())
        if folder.has(name):
            return self._found(folder, name, kind)
        folder.mark(name, state="running")
        began = time.monotonic()
        try:
            result = compute(folder.checkpoint(name))
        except InfeasibleError as error:
            folder.mark(name, state="infeasible", reason=str(error))
            raise
        folder.save(name, result)
        folder.mark(name, state="done", seconds=round(time.monotonic() - began, 3))
        return result

    def _found(self, folder: RunFolder, name: str, kind: type[Result]) -> Result:
        self.report.say(f"{name}: found in {folder.path}")
        try:
            result = folder.load(name, kind)
        except RunFolderError as error:
            raise RunFolderError(
                f"{error}. Remove the file, and the same command computes it again"
            ) from error
        if folder.status().get(name, {}).get("state") != "done":
            # Interrupted between the result and the note that it is there.
            folder.save(name, result)
            folder.mark(name, state="done")
        return result


def record_inputs(
    folder: RunFolder, sealed: SealedSplit, experiment: Experiment, rule: Rule
) -> None:
    """Note fingerprints of data and experiment and what computes; refuse what has changed."""
    inputs = {
        "prior": sealed.prior.sha256,
        "validation": sealed.validation.sha256,
        "experiment": _fingerprint(experiment, rule, sealed),
    }
    _note(folder, inputs)
    record_hashes(folder, sealed)
    before = folder.status().get("made_with", {}).get("environments", [])
    if provenance() not in before and not folder.has("certify"):
        folder.mark("made_with", environments=[*before, provenance()])


def record_opened(folder: RunFolder, split: Split) -> None:
    """The same for the sets that are opened when the plan is fixed."""
    _note(folder, {"train": split.train.sha256, "test": split.test.sha256})


def _note(folder: RunFolder, inputs: dict[str, str]) -> None:
    found = folder.status().get("inputs", {})
    for name, value in inputs.items():
        if found.get(name, value) != value:
            raise RunFolderError(
                f"the run in {folder.path} was begun with another {name}: its problem, rules or "
                "code have changed, or this machine or these versions compute other bits. Choose "
                "another folder, or go on where and as it was started"
            )
    folder.mark("inputs", **found | inputs)


def _fingerprint(experiment: Experiment, rule: Rule, sealed: SealedSplit) -> str:
    """What the problem computes at the start and beside it, its data, every rule's numbers."""
    with working_precision(experiment.problem):
        few = probes_of(experiment.problem, sealed)
        probe = rollouts(GradientDescent(1e-3), experiment.problem, few, 2, PROBES)
    rules = (rule, experiment.teacher, dict(experiment.baselines))
    return solver_fingerprint((rules, experiment.accuracies.values, probe, experiment.pool))


def probes_of(problem: Problem, sealed: SealedSplit | Split) -> Theta:
    """The prior set's first instances: by them a solver's file recognises its problem."""
    with working_precision(problem):
        return instance(sealed.prior.thetas, np.arange(min(PROBES, sealed.prior.size)))
