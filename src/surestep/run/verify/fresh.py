"""Verification of the certificates that a run was given later, on fresh instances."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from surestep.base.errors import ConfigurationError
from surestep.certify import Certificate, Certified, Plan, Standing
from surestep.problem import DataSet, SealedSplit, SealedTrainSet, Split, TrainSet
from surestep.run.charges import (
    OWN,
    Charge,
    joint_epsilon,
    read_charges,
    recorded_hashes,
    require_fresh,
    spent_on,
)
from surestep.run.config import RunConfig
from surestep.run.fresh import about_file
from surestep.run.instance_store import stored_instances
from surestep.run.stored import read_plan
from surestep.run.until import read_until_plan
from surestep.run.verify.finished import (
    Check,
    Finished,
    check,
    made_elsewhere,
    planned_again,
    require_sample,
)
from surestep.run.verify.run import checks_of
from surestep.run.verify.until import verify_until
from surestep.storage.run_folder import RunFolder
from surestep.train import Experiment, Sampled


@dataclasses.dataclass(frozen=True)
class _Of:
    """The run whose later certificates are verified."""

    folder: RunFolder
    config: RunConfig[Any]
    experiment: Experiment
    sealed: SealedSplit
    split: Split
    recorded: Mapping[str, Sequence[str]]


def verify_fresh(
    folder: RunFolder,
    config: RunConfig[Any],
    experiment: Experiment,
    rerun: int = 0,
    seed: int | None = None,
) -> list[Check]:
    """Recompute every certificate in a run's folder `certificates`, as `verify` does its own.

    - Its instances are those that it was charged for: drawn again by their seed and the plan, or
      kept beside it, where they are different, and trained or chose nothing.
    - What earlier certificates cost that saw some of them is in its plan, its number and what all
      of them cost in the certificate.
    """
    charges = read_charges(folder)
    later = {charge.certificate: charge for charge in charges if charge.certificate != OWN}
    place = folder.path / "certificates"
    there = {path.name for path in place.iterdir() if path.is_dir()} if place.is_dir() else set()
    checks = [
        Check(f"certificate {name}", False, "was not charged to the run's budget")
        for name in sorted(there - set(later))
    ]
    checks.append(_charged_in_order(charges))
    plan = read_plan(folder.plan_path)
    sealed = SealedSplit.draw(experiment.problem, config.sizes, config.seed)
    split = sealed.open(config.commitment(plan.sha256))
    checks.append(_own_charge(folder, charges, plan, split.train))
    of = _Of(folder, config, experiment, sealed, split, recorded_hashes(folder))
    for number, charge in enumerate(charges):
        if charge.certificate != OWN:
            found = _one(of, charge, charges[:number], rerun, seed)
            checks += [
                dataclasses.replace(one, name=f"certificate {charge.certificate}: {one.name}")
                for one in found
            ]
    return checks


def _charged_in_order(charges: list[Charge]) -> Check:
    """Certificates are numbered as they were charged, so none was left out."""
    names = [charge.certificate for charge in charges]
    wanted = [OWN, *(str(number) for number in range(1, len(charges)))]
    reason = f"{', '.join(names) or 'none'}: one is missing, or there twice"
    return check("all certificates are charged", names == wanted, reason)


def _own_charge(folder: RunFolder, charges: list[Charge], plan: Plan, train: TrainSet) -> Check:
    """Elsewhere instances that are drawn again have other last bits, and so other hashes."""
    wanted = Charge(OWN, plan.epsilon, train.hashes, train.seed)
    found = charges[0] if charges else None
    if found is not None and made_elsewhere(folder) and len(found.instances) == train.size:
        found = dataclasses.replace(found, instances=wanted.instances)
    return check("the run's own certificate was charged first", found == wanted, "it was not")


def _one(
    of: _Of, charge: Charge, before: list[Charge], rerun: int, seed: int | None
) -> list[Check]:
    place = of.folder.path / "certificates" / charge.certificate
    if not charge.certificate.isdecimal():
        return [Check("its name", False, "is no number")]
    if not (place / "certificate.json").exists():
        return [Check("it was begun and is not finished", True, "it states nothing yet")]
    until = read_until_plan(place)
    if until is not None:
        return verify_until(of.folder, of.config, of.experiment, charge, until, rerun, seed)
    stored, prior = read_plan(place / "plan.json"), of.folder.load("sample", Sampled)
    # As it lies there: nothing is mended while it is verified.
    mode = Certificate.load(of.folder.certificate_path).deployed_sample
    size = len(charge.instances)
    given = None
    if charge.seed is None:
        given = stored_instances(of.experiment.problem, place, size)
        if given is None:
            reason = "it cannot be computed again: they lie in files outside the run, or are lost"
            return [Check("its instances are kept", False, reason)]
    alone = len(stored.log_prior) == 1 < len(prior.hypers)
    if alone:
        require_sample(prior, mode)
        prior = prior.only(mode)
    elsewhere = made_elsewhere(RunFolder(place))
    certify = dataclasses.replace(of.config.certify, epsilon=charge.epsilon)
    config = dataclasses.replace(of.config, certify=certify)
    plan = planned_again(
        config,
        of.experiment,
        of.sealed,
        prior,
        stored,
        elsewhere,
        size,
        0.0 if given is None else spent_on(charge.instances, before),
        len(before),
        None if given is None else about_file(of.experiment, given),
    )
    train, instances = _instances(of, charge, given, plan, alone, elsewhere)
    run = Finished(
        of.config,
        of.experiment,
        of.sealed,
        stored,
        plan,
        prior,
        train,
        RunFolder(place).load("certify", Certified),
        Certificate.load(place / "certificate.json"),
        Standing(joint_epsilon(before) + charge.epsilon, mode),
        elsewhere,
    )
    return [*instances, *checks_of(run, rerun, seed)]


def _instances(
    of: _Of, charge: Charge, given: TrainSet | None, plan: Plan, alone: bool, elsewhere: bool
) -> tuple[TrainSet, list[Check]]:
    """The instances of a later certificate, and whether they are those that it was charged for."""
    charged = "its instances are those it was charged for"
    if given is None:
        assert charge.seed is not None
        sealed = SealedTrainSet(of.experiment.problem, len(charge.instances), charge.seed)
        train = sealed.open(of.config.commitment(plan.sha256))
        return train, [check(charged, elsewhere or train.hashes == charge.instances, "others")]
    used: dict[str, DataSet] = {"prior": of.split.prior, "validation": of.split.validation}
    if alone:
        used["train"] = of.split.train
    reason = ""
    try:
        require_fresh(used, given, of.recorded)
    except ConfigurationError as error:
        reason = str(error)
    return given, [
        check(charged, given.hashes == charge.instances, "others"),
        check("its instances are fresh", not reason, reason),
    ]
