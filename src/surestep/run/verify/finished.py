"""A finished certificate with all that it was computed from, and the checks that are made of it."""

import dataclasses
from typing import Any

from surestep.base.errors import RunFolderError
from surestep.base.machine import provenance
from surestep.certify import Certificate, Certified, Plan, Standing, pilot_run, plan_run
from surestep.problem import SealedSplit, TrainSet
from surestep.rollout.rounding import agree
from surestep.rules.base import Rule
from surestep.run.config import RunConfig
from surestep.storage.records import to_plain
from surestep.storage.run_folder import RunFolder
from surestep.train import Experiment, Sampled, Task


@dataclasses.dataclass(frozen=True)
class Check:
    """One thing that was verified."""

    name: str
    stands: bool
    reason: str = ""

    def __str__(self) -> str:
        mark = "stands" if self.stands else "FAILS "
        return f"{mark}  {self.name}" + (f": {self.reason}" if self.reason else "")


def check(name: str, stands: bool, reason: str) -> Check:
    """A check with the reason why it fails, if it does."""
    return Check(name, bool(stands), "" if stands else reason)


@dataclasses.dataclass(frozen=True)
class Finished:
    """All that a certificate, a run's own or one on fresh instances, consists of."""

    config: RunConfig[Any]
    experiment: Experiment
    sealed: SealedSplit
    stored: Plan
    """The plan as it lies there."""
    plan: Plan
    """The plan that configuration, prior and prior set give; elsewhere the stored one, if that is
    the same but for rounding."""
    prior: Sampled
    train: TrainSet
    found: Certified
    issued: Certificate
    standing: Standing | None = None
    elsewhere: bool = False
    """Whether it was computed by other versions or on another kind of machine than this."""

    @property
    def task(self) -> Task:
        """The task of its run."""
        return self.config.task(self.experiment)

    @property
    def rounding(self) -> float:
        """How much numbers may differ that are computed from the instances again."""
        return rounding_of(self.experiment, self.elsewhere)

    def rule(self, sample: int) -> Rule:
        """One of the prior's rules."""
        return self.experiment.rule_at(self.config.seed, self.prior.hypers[sample])


def rounding_of(experiment: Experiment, elsewhere: bool) -> float:
    """How much numbers may differ that are computed from instances again."""
    if not elsewhere:
        return 1e-9
    return {"float64": 1e-9, "float32": 1e-4}[experiment.problem.precision]


def require_sample(prior: Sampled, number: int) -> None:
    """Refuse the number of a sample that there is not."""
    if not 0 <= number < len(prior.hypers):
        raise RunFolderError(
            f"the certificate names the sample {number}, and the prior has {len(prior.hypers)}"
        )


def made_elsewhere(folder: RunFolder) -> bool:
    """Whether nothing in a folder was computed by these versions on such a machine."""
    return provenance() not in folder.status().get("made_with", {}).get("environments", [])


def planned_again(
    config: RunConfig[Any],
    experiment: Experiment,
    sealed: SealedSplit,
    prior: Sampled,
    stored: Plan,
    elsewhere: bool,
    size: int,
    spent: float = 0.0,
    number: int = 0,
    about: str | None = None,
) -> Plan:
    """The plan that was to be made before the train set was opened.

    Elsewhere it is the stored one if both are the same to rounding: what follows from it, the train
    set's key before all, is a matter of every digit.
    """
    task, rule = config.task(experiment), experiment.rule(config.seed)
    pilot = pilot_run(config.certify, task, experiment, rule, prior, sealed.prior, size)
    settings = config.certify
    again = plan_run(settings, task, experiment, prior, pilot, size, spent, about, number)
    near = elsewhere and _agrees(stored, again, rounding_of(experiment, elsewhere))
    return stored if near else again


def _agrees(stored: Plan, again: Plan, rounding: float) -> bool:
    """Only the numbers of claims come from instances; all else follows from what is stored."""
    bare = [to_plain(dataclasses.replace(plan, claims=())) for plan in (stored, again)]
    claims = [to_plain(plan.claims) for plan in (stored, again)]
    return agree(bare[0], bare[1], 1e-12) and agree(claims[0], claims[1], rounding)
