"""Outcomes of anyone's solver in a folder: first the plan, then outcomes and certificate."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np

from surestep.base.errors import ConfigurationError, RunFolderError
from surestep.base.machine import provenance
from surestep.certify import Certificate
from surestep.certify.outcome_files import plain_arrays
from surestep.certify.outcome_plan import (
    OutcomePlan,
    OutcomeSettings,
    outcome_certificate,
    plan_from_pilot,
    plan_of_claims,
    plan_of_hits,
)
from surestep.certify.outcomes import PLAIN, Outcomes
from surestep.problem import fingerprint
from surestep.storage.arrays import read_arrays, write_arrays
from surestep.storage.files import exclusive, read_json
from surestep.storage.mirrored import Kept
from surestep.storage.records import from_plain, to_json
from surestep.storage.run_folder import RunFolder

_KIND = {"kind": "surestep outcomes"}


@dataclasses.dataclass(frozen=True)
class OutcomePilot:
    """Outcomes that suggest what to claim, and that nothing is claimed of."""

    arrays: dict[str, np.ndarray]

    @property
    def outcomes(self) -> Outcomes:
        """What is in the arrays."""
        return Outcomes.of(self.arrays)


def plan_outcomes(
    settings: OutcomeSettings,
    pilot: OutcomePilot | None,
    size: int,
    iterations: tuple[int, ...] = (),
    hits: bool = False,
) -> OutcomePlan:
    """The plan for so many independent instances: what a pilot suggests, or what was named.

    `iterations` are those after which outcomes are recorded, if that is known already.
    """
    if size < 1:
        raise ConfigurationError(f"a plan is for at least one instance, not {size}")
    if not 0 < settings.epsilon < 1:
        raise ConfigurationError(
            f"epsilon must lie strictly between 0 and 1, not {settings.epsilon}"
        )
    if pilot is not None and settings.claims:
        raise ConfigurationError("say what to claim, or give a pilot that suggests it: not both")
    if pilot is not None:
        return plan_from_pilot(settings, pilot.outcomes, fingerprint(pilot.arrays), size)
    if hits and iterations == PLAIN:
        return plan_of_hits(settings, size)
    if not settings.claims:
        raise ConfigurationError(
            "say what to claim ('within 1e-4 in 50 iterations: 0.95'), or give a pilot: outcomes "
            "on other instances, that suggest it"
        )
    return plan_of_claims(settings, size, iterations, hits)


def plan_for(
    arrays: dict[str, np.ndarray], settings: OutcomeSettings, pilot: OutcomePilot | None
) -> Any:
    """The plan for outcomes that are there already: it sees how many there are, not what."""
    form = Outcomes.of(arrays)
    return plan_outcomes(settings, pilot, form.size, form.iterations, form.hits)


@dataclasses.dataclass(frozen=True)
class OutcomeFolder:
    """Where plan, pilot, outcomes and certificate of one solver are kept."""

    path: Path

    @property
    def plan_path(self) -> Path:
        """The plan."""
        return self.path / "plan.json"

    @property
    def certificate_path(self) -> Path:
        """The certificate, once there is one."""
        return self.path / "certificate.json"

    @property
    def outcomes_path(self) -> Path:
        """The outcomes that it is of."""
        return self.path / "outcomes.safetensors"

    @property
    def pilot_path(self) -> Path:
        """The pilot, if there was one."""
        return self.path / "pilot.safetensors"

    @property
    def report_path(self) -> Path:
        """The page."""
        return self.path / "report.html"

    def is_one(self) -> bool:
        """Whether this is such a folder."""
        return (
            self.plan_path.exists()
            and isinstance(plain := read_json(self.plan_path), dict)
            and plain.get("kind") == "outcomes"
        )

    def plan(self) -> OutcomePlan:
        """The plan as it lies there."""
        return from_plain(OutcomePlan, read_json(self.plan_path), "plan")

    def pilot(self) -> OutcomePilot | None:
        """The pilot, if there was one."""
        if not self.pilot_path.exists():
            return None
        return OutcomePilot(read_arrays(self.pilot_path)[0])

    def outcomes(self) -> dict[str, np.ndarray]:
        """The arrays of outcomes."""
        return read_arrays(self.outcomes_path)[0]

    def certificate(self) -> Certificate:
        """The certificate."""
        return Certificate.load(self.certificate_path)

    def made_here(self) -> bool:
        """Whether these versions have made it on such a machine."""
        made = RunFolder(self.path).status().get("made_with", {})
        return provenance() in made.get("environments", [])

    def begin(self, plan: OutcomePlan, pilot: OutcomePilot | None) -> None:
        """Write the plan down, before outcomes are read; a plan that is there is not replaced."""
        if self.is_one():
            if to_json(self.plan()) != to_json(plan):
                raise RunFolderError(
                    f"{self.path} holds another plan, and a plan is not changed once it was made: "
                    "choose another folder (--out)"
                )
            return
        if self.path.exists() and (not self.path.is_dir() or any(self.path.glob("[!.]*"))):
            raise RunFolderError(
                f"{self.path} is no empty folder and holds no plan for outcomes: choose another "
                "(--out)"
            )
        self.path.mkdir(parents=True, exist_ok=True)
        if pilot is not None:
            write_arrays(self.pilot_path, pilot.arrays, _KIND)
        Kept(self.plan_path).write(to_json(plan))

    def issue(self, arrays: dict[str, np.ndarray]) -> Certificate:
        """The certificate of outcomes, by the plan that lies here; a plan serves once."""
        with exclusive(self.path / ".lock", self.path):
            if self.outcomes_path.exists() and fingerprint(self.outcomes()) != fingerprint(arrays):
                raise RunFolderError(
                    f"{self.path} holds a certificate of other outcomes: epsilon was spent on "
                    "those, so make another plan in another folder"
                )
            plan = self.plan()
            document = certified(plan, arrays, self.pilot())
            write_arrays(self.outcomes_path, arrays, _KIND)
            RunFolder(self.path).mark("made_with", environments=[provenance()])
            Kept(self.certificate_path).write(to_json(document))
        return document


def certified(
    plan: OutcomePlan, arrays: dict[str, np.ndarray], pilot: OutcomePilot | None
) -> Certificate:
    """The certificate of outcomes by a plan."""
    outcomes = Outcomes.of(arrays)
    hashes = {"train": fingerprint(arrays)}
    if pilot is not None:
        hashes["pilot"] = fingerprint(pilot.arrays)
        shared = _shared(outcomes, pilot.outcomes)
        if shared == pilot.outcomes.size:
            raise ConfigurationError(
                "the pilot's instances are among those that are to be certified: what has "
                "suggested the claims cannot show them"
            )
        if shared:
            words = f"{shared} instances have the very losses of one of the pilot"
            outcomes = dataclasses.replace(outcomes, found=(*outcomes.found, words))
    return outcome_certificate(plan, outcomes, hashes)


def _shared(outcomes: Outcomes, pilot: Outcomes) -> int:
    """How many rows of the pilot are there again, where rows tell instances apart."""
    rows = [row.tobytes() for row in np.ascontiguousarray(pilot.losses)]
    telling = not pilot.hits and len(pilot.iterations) > 1 and len(set(rows)) == len(rows)
    if outcomes.iterations != pilot.iterations or not telling:
        return 0
    there = {row.tobytes() for row in np.ascontiguousarray(outcomes.losses)}
    return sum(row in there for row in rows)


def pilot_of(given: Any) -> OutcomePilot | None:
    """A pilot from a file or from arrays."""
    return None if given is None else OutcomePilot(plain_arrays(given))
