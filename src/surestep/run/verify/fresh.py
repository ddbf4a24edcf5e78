"""Verification of the certificates that a run was given later, on fresh instances."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from surestep.base.errors import ConfigurationError
from surestep.base.keys import named_key
from surestep.certify import Certificate, Certified
from surestep.problem import DrawnInChunks, Split, TrainSet
from surestep.run.charges import OWN, Charge, read_charges, recorded_hashes, require_fresh, spent_on
from surestep.run.config import RunConfig
from surestep.run.fresh import deployed_sample
from surestep.run.instance_store import stored_instances
from surestep.run.until import read_until_plan
from surestep.run.verify.run import Check, Finished, checks_of, made_elsewhere, read_plan
from surestep.run.verify.until import verify_until
from surestep.storage.run_folder import RunFolder
from surestep.train import Experiment, Sampled


def verify_fresh(
    folder: RunFolder,
    config: RunConfig[Any],
    experiment: Experiment,
    rerun: int = 0,
    seed: int | None = None,
) -> list[Check]:
    """Recompute every certificate in a run's folder `certificates`, as `verify` does its own.

    - Its instances, which are kept beside it, are those that it was charged for, are different,
      and trained or chose nothing.
    - What earlier certificates cost that saw some of them is in its plan.
    """
    charges = read_charges(folder)
    later = {charge.certificate: charge for charge in charges if charge.certificate != OWN}
    place = folder.path / "certificates"
    there = {path.name for path in place.iterdir() if path.is_dir()} if place.is_dir() else set()
    checks = [
        Check(f"certificate {name}", False, "was not charged to the run's budget")
        for name in sorted(there - set(later))
    ]
    if not later:
        return checks
    split = Split.draw(experiment.problem, config.sizes, config.seed)
    elsewhere = made_elsewhere(folder)
    own = Charge(OWN, read_plan(folder.plan_path).epsilon, split.train.hashes, config.seed)
    charged = _same_charge(charges[0], own, elsewhere)
    checks.append(
        Check(
            "the run's own certificate was charged first", charged, "" if charged else "it was not"
        )
    )
    recorded = recorded_hashes(folder)
    for number, charge in enumerate(charges):
        if charge.certificate != OWN:
            before = charges[:number]
            found = _one(folder, config, experiment, split, charge, before, recorded, rerun, seed)
            checks += [
                dataclasses.replace(check, name=f"certificate {charge.certificate}: {check.name}")
                for check in found
            ]
    return checks


def _one(
    folder: RunFolder,
    config: RunConfig[Any],
    experiment: Experiment,
    split: Split,
    charge: Charge,
    before: list[Charge],
    recorded: Mapping[str, Sequence[str]],
    rerun: int,
    seed: int | None,
) -> list[Check]:
    place = folder.path / "certificates" / charge.certificate
    if not charge.certificate.isdecimal():
        return [Check("its name", False, "is no number")]
    if not (place / "certificate.json").exists():
        return [Check("it was begun and is not finished", True, "it states nothing yet")]
    until = read_until_plan(place)
    if until is not None:
        return verify_until(folder, config, experiment, charge, until, rerun, seed)
    plan, prior = read_plan(place / "plan.json"), folder.load("sample", Sampled)
    train = stored_instances(experiment.problem, place, len(charge.instances))
    if train is None:
        reason = "it cannot be computed again: they lie in files outside the run, or are lost"
        return [Check("its instances are kept", False, reason)]
    elsewhere = made_elsewhere(RunFolder(place))
    if isinstance(train.thetas, DrawnInChunks):
        train = dataclasses.replace(train, seed=charge.seed)
    deployed = len(plan.log_prior) == 1 < len(prior.hypers)
    if deployed:
        prior = prior.only(deployed_sample(folder))
    run = Finished(
        dataclasses.replace(
            config, certify=dataclasses.replace(config.certify, epsilon=charge.epsilon)
        ),
        experiment,
        dataclasses.replace(split, train=train),
        plan,
        prior,
        RunFolder(place).load("certify", Certified),
        Certificate.load(place / "certificate.json"),
        spent_on(charge.instances, before, charge.seed),
        elsewhere,
    )
    instances = _instances(split, train, charge, deployed, elsewhere, recorded)
    return [*instances, *checks_of(run, rerun, seed)]


def _drawn_by(train: TrainSet, seed: int | None) -> bool:
    """Whether a set that is drawn again is that of a seed."""
    if seed is None or not isinstance(train.thetas, DrawnInChunks):
        return False
    wanted = named_key(seed, "data", TrainSet.role)
    return bool(jnp.all(jax.random.key_data(train.thetas.key) == jax.random.key_data(wanted)))


def _same_charge(found: Charge, wanted: Charge, elsewhere: bool) -> bool:
    """Elsewhere instances that are drawn again have other last bits, and so other hashes."""
    if elsewhere and len(found.instances) == len(wanted.instances):
        found = dataclasses.replace(found, instances=wanted.instances)
    return found == wanted


def _instances(
    split: Split,
    train: TrainSet,
    charge: Charge,
    deployed: bool,
    elsewhere: bool,
    recorded: Mapping[str, Sequence[str]],
) -> list[Check]:
    charged = train.hashes == charge.instances or (elsewhere and _drawn_by(train, charge.seed))
    train = dataclasses.replace(train, seed=charge.seed)
    try:
        require_fresh(split, train, deployed, recorded)
        reason = ""
    except ConfigurationError as error:
        reason = str(error)
    return [
        Check("its instances are those it was charged for", charged, "" if charged else "others"),
        Check("its instances are fresh", not reason, reason),
    ]
