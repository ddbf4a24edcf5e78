"""Certifying until it is proved: fresh instances are drawn until a claim is decided."""

import dataclasses
import time
from pathlib import Path
from typing import Any

import numpy as np

from surestep.base.errors import ConfigurationError, RunFolderError
from surestep.base.machine import provenance
from surestep.base.progress import Reporter, Silence, duration
from surestep.certify import Certificate
from surestep.certify.asked import Asked
from surestep.certify.until import (
    Course,
    UntilOutcomes,
    UntilPlan,
    course_of,
    until_certificate,
)
from surestep.run.asked_rule import AskedRule, asked_of
from surestep.run.charges import MOST_CHARGED, OWN, Charge, read_charges
from surestep.run.config import RunConfig
from surestep.run.fresh import deployed_sample
from surestep.storage.checkpoint import Saving
from surestep.storage.files import read_json
from surestep.storage.mirrored import Kept
from surestep.storage.records import from_plain, to_json
from surestep.storage.run_folder import RunFolder
from surestep.train import Experiment

STAGE = "until"
"""The name of the file of outcomes, beside a certificate's plan."""


def certify_until(
    folder: RunFolder,
    config: RunConfig[Any],
    experiment: Experiment,
    claim: str,
    epsilon: float = 0.05,
    budget: float = np.inf,
    most: int = MOST_CHARGED,
    seed: int = 0,
    report: Reporter | None = None,
) -> tuple[Certificate, Path]:
    """Draw fresh instances until a claim about a run's deployed rule is proved or refuted.

    What is certified holds whenever the drawing stops. The same call goes on where one was
    interrupted, or has used up its budget, and is charged once.

    **Arguments:**

    - `folder`, `config`, `experiment`: a finished run, as `learn` was given them.
    - `claim`: what is to be proved, as in `"within 1e-4 in 50 iterations: 0.999"`. Instead of
      `within 1e-4` (of the minimum): `within 1 % of the minimum`, `within 1e-4 of the gap` (from
      the start's loss to the minimum), `loss 1e-3` or `goal`. Without `in N iterations` it is
      about the run's horizon.
    - `epsilon`: the probability with which the certificate may be false.
    - `budget`: seconds, after which the claim may be left undecided.
    - `most`: so many instances, after which it may be.
    - `seed`: which instances are drawn, together with the claim.
    - `report`: who is told about progress.

    **Returns:** the certificate, and its folder inside the run's own.

    **Raises:** `surestep.errors.ConfigurationError` if the claim is not understood or cannot be
    made of this problem, `surestep.errors.RunFolderError` if the run has not ended.

    **Example:**

    ```python
    import pathlib

    folder = ss.RunFolder(pathlib.Path("runs/mine"))
    learned = ss.learn(config, experiment, folder)
    certificate, place = ss.certify_until(
        folder, config, experiment, "goal: 0.99", budget=60.0, most=2000
    )
    print(certificate)
    ```
    """
    report = report or Silence()
    if most < 1 or not budget > 0:
        raise ConfigurationError("the budget, and how many instances to draw at most, are positive")
    asked, sample = asked_of(claim, config, experiment), deployed_sample(folder)
    rule = AskedRule.of(folder, config, experiment, asked, sample, seed)
    name, plan = _begun(folder, rule.asked, epsilon, seed)
    if plan is None:
        pilot, seconds = rule.pilot()
        plan = rule.plan(epsilon, pilot)
        report.say(_estimate(plan, seconds))
    place = RunFolder(folder.path / "certificates" / name)
    seen = outcomes_of(place)
    # What is there counts, whatever is allowed now.
    most = max(most, seen.size)
    if course_of(plan, seen).verdict == "undecided" and seen.size < most:
        # Charged before an instance is looked at: an interrupted certificate has seen some, too.
        Kept(place.path / "plan.json").write(to_json(plan))
        _charge(folder, name, epsilon)
        place.mark("made_with", environments=[provenance()])
        seen = _draw_until(rule, plan, place, seen, budget, most, report)
    document = until_certificate(plan, seen.first(most))
    Kept(place.path / "certificate.json").write(to_json(document))
    return document, place.path


def outcomes_of(place: RunFolder) -> UntilOutcomes:
    """What has been observed so far."""
    if not place.has(STAGE):
        return UntilOutcomes.nothing()
    return place.load(STAGE, UntilOutcomes)


def _begun(
    folder: RunFolder, asked: Asked, epsilon: float, seed: int
) -> tuple[str, UntilPlan | None]:
    """The certificate that was begun for this claim, or the number of a new one."""
    charges = read_charges(folder)
    if all(entry.certificate != OWN for entry in charges):
        raise RunFolderError(
            f"{folder.path} has no certificate of its own yet: finish the run first"
        )
    for entry in charges:
        place = folder.path / "certificates" / entry.certificate
        kept = Kept(place / "plan.json")
        if kept.exists():
            kept.mend()
        plan = read_until_plan(place)
        if plan is not None and (plan.claim, plan.epsilon, plan.seed) == (
            asked.words,
            epsilon,
            seed,
        ):
            return entry.certificate, plan
    return str(len(charges)), None


def read_until_plan(place: Path) -> UntilPlan | None:
    """The plan in a certificate's folder, if it is one of this kind."""
    path = place / "plan.json"
    if not path.exists():
        return None
    plain = read_json(path)
    if not isinstance(plain, dict) or plain.get("kind") != STAGE:
        return None
    return from_plain(UntilPlan, plain, "plan")


def _charge(folder: RunFolder, name: str, epsilon: float) -> None:
    """Note what it costs. Its instances are its own: no other certificate can have seen them."""
    charges = read_charges(folder)
    if all(entry.certificate != name for entry in charges):
        charges.append(Charge(name, epsilon, []))
        folder.kept(folder.charges_path).write(to_json({"charges": charges}))


def _draw_until(
    rule: AskedRule,
    plan: UntilPlan,
    place: RunFolder,
    seen: UntilOutcomes,
    budget: float,
    most: int,
    report: Reporter,
) -> UntilOutcomes:
    """Batch after batch, until there is a decision or something is used up."""
    began, saving = time.monotonic(), Saving(_Outcomes(place))
    saved = seen.size
    # Whole batches, of about as many instances as are expected.
    total = plan.batch * int(np.ceil(min(plan.forecast.needed[1], most) / plan.batch))
    now = course_of(plan, seen)
    with report.stage(STAGE, max(total, seen.size), "instances", seen.size) as bar:
        try:
            while seen.size < most and time.monotonic() - began < budget:
                new = rule.observe(rule.fresh(plan, seen.size // plan.batch))
                now = now.then(plan, new.hits[: most - seen.size])
                seen = seen.then(new)
                bar.advance(plan.batch, _so_far(now))
                if now.verdict != "undecided":
                    break
                if saving.is_due():
                    saving.now(seen)
                    saved = seen.size
        finally:
            # Interrupted, too: what was seen is not lost.
            if seen.size > saved:
                place.save(STAGE, seen)
    return seen


@dataclasses.dataclass(frozen=True)
class _Outcomes:
    """Outcomes on disk, as something that states are left at."""

    place: RunFolder

    def load(self, like: Any) -> Any:
        """What was left last."""
        return self.place.load(STAGE, type(like)) if self.place.has(STAGE) else None

    def save(self, tree: Any) -> None:
        """Leave what was observed."""
        self.place.save(STAGE, tree)


def _so_far(now: Course) -> str:
    if now.verdict == "undecided":
        return f"shown so far: {now.low:.6g} <= p <= {now.high:.6g}"
    return f"{now.verdict} after {now.decided_after}"


def _estimate(plan: UntilPlan, each: float) -> str:
    """What it is going to cost, before it begins; a rollout takes `each` seconds."""
    course = plan.forecast
    successes, failures = plan.expected
    low, middle, high, earliest = (
        f"{n:.0f} instances ({duration(n * each)})" if n < 1e9 else "more than a billion"
        for n in (*course.needed, course.earliest)
    )
    spread = f", in 80 % of them after {low} to {high}" if low != high else ""
    return (
        f"'{plan.claim}': {failures} of {successes + failures} instances of a pilot miss it. "
        f"If others are like them, it is proved in {course.proved:.0%} and refuted in "
        f"{course.refuted:.0%} of simulated courses, after {middle} in the median{spread}. Without "
        f"a miss it is proved after {earliest}."
    )
