"""Verification of certificates that were gone on with until their claims were decided."""

import dataclasses
import secrets
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool

from surestep.certify import Certificate
from surestep.certify.until import UntilOutcomes, UntilPlan, plan_until, until_certificate
from surestep.problem import StreamedTrainSet, TrainSet
from surestep.rollout.rounding import (
    PERTURBATIONS,
    Perturbed,
    agree,
    explained,
    losses_kind,
    perturbed_rule,
)
from surestep.run.asked_rule import AskedRule, asked_of
from surestep.run.charges import Charge
from surestep.run.config import RunConfig
from surestep.run.until import outcomes_of
from surestep.run.verify.finished import Check, made_elsewhere
from surestep.storage.records import to_json, to_plain
from surestep.storage.run_folder import RunFolder
from surestep.train import Experiment

_PRECISION = {"float64": 1e-6, "float32": 1e-3}
_FEW = 64


def verify_until(
    folder: RunFolder,
    config: RunConfig[Any],
    experiment: Experiment,
    charge: Charge,
    plan: UntilPlan,
    rerun: int = 0,
    seed: int | None = None,
) -> list[Check]:
    """Recompute a certificate that was gone on with until its claim was decided.

    - The plan is the one that the claim, the run's deployed rule and the pilot give.
    - The certificate follows from the plan and the outcomes, to the last digit.
    - Of the instances, which the plan's hash draws, some are drawn and rolled out again: as many
      batches as `rerun` of them need, and their levels (the minima) are computed again.
    """
    place = RunFolder(folder.path / "certificates" / charge.certificate)
    elsewhere = made_elsewhere(place)
    asked = asked_of(plan.claim, config, experiment)
    # As it lies there: nothing is mended while it is verified.
    sample = Certificate.load(folder.certificate_path).deployed_sample
    rule = AskedRule.of(folder, config, experiment, asked, sample, plan.seed)
    outcomes = outcomes_of(place)
    checks = [
        _plan(rule, plan, charge, elsewhere),
        _whole(plan, outcomes),
        _certificate(place.path, plan, outcomes),
    ]
    if not all(check.stands for check in checks):
        return checks
    if elsewhere:
        # Where instances have other last bits, what rules do on them says if they are the same.
        rerun = max(rerun, _FEW)
    if rerun > 0:
        checks.append(_rerun(rule, plan, outcomes, rerun, seed, elsewhere))
    return checks


def _plan(rule: AskedRule, plan: UntilPlan, charge: Charge, elsewhere: bool) -> Check:
    name = "the plan, and its budget"
    if charge.epsilon != plan.epsilon or charge.instances:
        return Check(name, False, "it was charged for something else")
    pilot, _ = rule.pilot()
    again = rule.plan(plan.epsilon, pilot)
    same = to_json(again) == to_json(plan)
    if elsewhere and not same:
        # Rounding may have moved an instance of the pilot across the line: bets may differ.
        facts = {"expected", "test", "batch"}
        bare = [{k: v for k, v in to_plain(one).items() if k not in facts} for one in (again, plan)]
        same = agree(bare[0], bare[1], 1e-12) and _follows(rule, plan)
    return Check(name, same, "" if same else "is not the one that claim, rule and pilot give")


def _follows(rule: AskedRule, plan: UntilPlan) -> bool:
    """Whether a plan follows from the pilot's counts that it names."""
    again = plan_until(
        rule.asked,
        plan.epsilon,
        plan.expected,
        rule.tile,
        **{
            name: getattr(plan, name)
            for name in ("problem", "iterations", "above", "goal", "pool", "seed")
        },
        deployed_sample=plan.deployed_sample,
        solver_sha256=plan.solver_sha256,
    )
    return agree(to_plain(again), to_plain(plan), 1e-9)


def _whole(plan: UntilPlan, outcomes: UntilOutcomes) -> Check:
    """All batches that were drawn are there, and numbers in them."""
    name = "outcomes of whole batches"
    if outcomes.size % plan.batch or outcomes.levels.shape != outcomes.losses.shape:
        return Check(name, False, f"{outcomes.size} are no multiple of {plan.batch}")
    undefined = bool(np.isnan(outcomes.losses).any() or np.isnan(outcomes.levels).any())
    return Check(name, not undefined, "some are no numbers" if undefined else "")


def _certificate(place: Path, plan: UntilPlan, outcomes: UntilOutcomes) -> Check:
    name = "every number of the certificate"
    issued = Certificate.load(place / "certificate.json")
    number = issued.sizes.get("train", 0)
    # A limit may have cut the last batch off: the first ones are counted, never a choice of them.
    if not outcomes.size - plan.batch < number <= outcomes.size:
        return Check(name, False, f"it counts {number} of {outcomes.size} outcomes")
    again = until_certificate(plan, outcomes.first(number))
    wrong = [
        field.name
        for field in dataclasses.fields(Certificate)
        if to_json({"": getattr(issued, field.name)}) != to_json({"": getattr(again, field.name)})
    ]
    return Check(name, not wrong, f"{', '.join(wrong)} do not follow" if wrong else "")


def _rerun(
    rule: AskedRule,
    plan: UntilPlan,
    outcomes: UntilOutcomes,
    number: int,
    seed: int | None,
    elsewhere: bool,
) -> Check:
    seed = secrets.randbits(32) if seed is None else seed
    batches = outcomes.size // plan.batch
    needed = min(-(-number // plan.batch), batches)
    chosen = np.sort(np.random.default_rng(seed).choice(batches, needed, replace=False))
    wrong = [
        int(batch) * plan.batch + int(i)
        for batch in chosen
        for i in np.flatnonzero(~_same(rule, plan, outcomes, int(batch), elsewhere))
    ]
    name = f"{needed * plan.batch} instances rolled out again (chosen by seed {seed})"
    reason = f"{len(wrong)} differ from what is stored, first {wrong[0]}" if wrong else ""
    return Check(name, not wrong, reason)


def _same(
    rule: AskedRule, plan: UntilPlan, outcomes: UntilOutcomes, batch: int, elsewhere: bool
) -> Bool[np.ndarray, " instance"]:
    """On which instances of a batch the same is observed again."""
    part = slice(batch * plan.batch, (batch + 1) * plan.batch)
    losses, levels = outcomes.losses[part], outcomes.levels[part]
    data = rule.fresh(plan, batch)
    here = rule.observe(data)
    if not elsewhere:
        return (here.losses == losses) & (here.levels == levels)
    problem = rule.experiment.problem
    near = _PRECISION[problem.precision]
    kind = losses_kind(problem.nonnegative, near, levels)
    perturbed = [
        rule.observe(_perturbed(data, turn), perturbed_rule(rule.rule, turn)).losses[:, None]
        for turn in range(PERTURBATIONS)
    ]
    good = explained(here.losses[:, None], losses[:, None], perturbed, kind)[:, 0]
    return good & np.isclose(here.levels, levels, rtol=near, atol=0)


def _perturbed(data: TrainSet, turn: int) -> TrainSet:
    return TrainSet(StreamedTrainSet(Perturbed(data, turn)).part(0, data.size))
