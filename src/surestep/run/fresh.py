"""Certificates on fresh instances, of trained rules and of classical ones."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from surestep.base.errors import ConfigurationError, RunFolderError
from surestep.base.machine import provenance
from surestep.base.progress import Reporter
from surestep.certify import (
    Certificate,
    CertifySettings,
    Plan,
    Standing,
    certify,
    issue,
    make_certificate,
    opened_by,
    pilot_run,
    plan_run,
    posterior_hash,
    references_for,
)
from surestep.problem import (
    Commitment,
    DataSet,
    PriorSet,
    SealedSplit,
    SealedTrainSet,
    StreamedTrainSet,
    TrainSet,
    sha256_of,
    working_precision,
)
from surestep.problem.recorded import look_at
from surestep.rollout.tiles import Crew
from surestep.rules.base import Rule, hyper_of, require_fit, solver_fingerprint
from surestep.run.charges import (
    MOST_CHARGED,
    OWN,
    Charge,
    charge,
    joint_epsilon,
    read_charges,
    recorded_hashes,
    require_fresh,
    spent_on,
)
from surestep.run.config import RunConfig
from surestep.run.instance_store import write_instances
from surestep.run.stored import read_plan
from surestep.storage.mirrored import Kept
from surestep.storage.records import to_json
from surestep.storage.run_folder import RunFolder
from surestep.train import Experiment, Sampled, Task


def certify_again(
    folder: RunFolder,
    config: RunConfig[Any],
    experiment: Experiment,
    instances: SealedTrainSet | TrainSet,
    epsilon: float,
    report: Reporter | None = None,
    deployed: bool = False,
    crew: Crew | None = None,
) -> tuple[Certificate, Path]:
    """Certify a run's trained rule on other instances, without training anything.

    Those that a seed draws are opened when the plan is fixed. With `deployed` the rule that the run
    deployed is certified alone, as the only sample of its prior; otherwise all samples are rolled
    out, and the instances choose again among them. A certificate that was interrupted is gone on
    with, and charged once. Returns the certificate and the folder it was written to, inside the
    run's own.
    """
    charges = _charges_of_finished(folder, instances.size)
    sealed = SealedSplit.draw(experiment.problem, config.sizes, config.seed)
    prior, mode = folder.load("sample", Sampled), deployed_sample(folder)
    if deployed:
        prior = prior.only(mode)
    given = instances if isinstance(instances, TrainSet) else None
    if given is not None:
        used: dict[str, DataSet] = {"prior": sealed.prior, "validation": sealed.validation}
        if deployed:
            # Which sample is deployed was chosen by the train set.
            used["train"] = sealed.train.open(config.commitment(read_plan(folder.plan_path).sha256))
        require_fresh(used, given, recorded_hashes(folder))
    task = config.task(experiment)
    settings = dataclasses.replace(config.certify, epsilon=epsilon)
    rule = experiment.rule(config.seed)
    pilot = pilot_run(settings, task, experiment, rule, prior, sealed.prior, instances.size)
    about = None if given is None else about_file(experiment, given)

    def planned(before: list[Charge]) -> Plan:
        spent = 0.0 if given is None else spent_on(given.hashes, before)
        size, number = instances.size, len(before)
        return plan_run(settings, task, experiment, prior, pilot, size, spent, about, number)

    plan, before = planned(charges), charges
    for begun in _unfinished(folder, charges, instances, epsilon):
        # One that goes on is charged what it was charged when it began. Another plan (of all
        # samples, of the deployed one alone) is another certificate.
        earlier = charges[: charges.index(begun)]
        same = planned(earlier)
        plan_then = Kept(folder.path / "certificates" / begun.certificate / "plan.json")
        if plan_then.read() == to_json(same):
            plan, before = same, earlier
            break
    place = folder.path / "certificates" / str(len(before))
    # Charged before the instances are looked at: an interrupted certificate has seen them too.
    Kept(place / "plan.json").write(to_json(plan))
    if isinstance(instances, TrainSet):
        train = instances
    else:
        train = instances.open(config.commitment(plan.sha256))
    write_instances(place, train)
    charge(folder, place.name, epsilon, train)
    opponents = experiment.chosen(plan.opponents)
    references = references_for(settings, experiment, train)
    results = RunFolder(place)
    results.mark("made_with", environments=[provenance()])
    checkpoint = results.checkpoint("certify")
    found = certify(plan, task, rule, prior, opponents, references, train, checkpoint, report, crew)
    chosen = experiment.rule_at(config.seed, prior.hypers[found.deployed_sample])
    standing = Standing(joint_epsilon(before) + epsilon, mode)
    document = issue(config.name, plan, chosen, found, prior, sealed, train, standing)
    results.save("certify", found)
    Kept(place / "certificate.json").write(to_json(document))
    return document, place


def _charges_of_finished(folder: RunFolder, size: int) -> list[Charge]:
    """The charges of a run that has a certificate of its own, and room for as many instances."""
    if not folder.has("sample"):
        raise RunFolderError(f"{folder.path} has no trained rule yet: finish the run first")
    charges = read_charges(folder)
    if all(entry.certificate != OWN for entry in charges):
        # Its own certificate comes first: what it costs must be known to all later ones.
        raise RunFolderError(
            f"{folder.path} has no certificate of its own yet: finish the run first"
        )
    if sum(len(entry.instances) for entry in charges) + size > MOST_CHARGED:
        raise ConfigurationError(
            f"a run can be certified on {MOST_CHARGED} instances in all, and no more: take fewer"
        )
    return charges


def about_file(experiment: Experiment, train: TrainSet) -> str:
    """What was found about instances from a file."""
    if isinstance(train, StreamedTrainSet):
        return f"{train.size} instances from files, of which no two are equal to the bit"
    found = look_at(train.thetas, None, True)[1]
    pool = f"; {experiment.pool}" if experiment.pool else ""
    return f"from a file, {found}{pool}"


def deployed_sample(folder: RunFolder) -> int:
    """Which sample a run has deployed."""
    if not folder.kept(folder.certificate_path).exists():
        raise RunFolderError(f"{folder.path} has no deployed rule yet: finish the run first")
    folder.kept(folder.certificate_path).mend()
    return Certificate.load(folder.certificate_path).deployed_sample


def _unfinished(
    folder: RunFolder,
    charges: list[Charge],
    instances: SealedTrainSet | TrainSet,
    epsilon: float,
) -> Iterator[Charge]:
    """The charges of certificates on exactly these instances that nobody has seen yet."""
    for entry in charges:
        place = folder.path / "certificates" / entry.certificate
        if isinstance(instances, SealedTrainSet):
            same = (entry.seed, len(entry.instances)) == (instances.seed, instances.size)
        else:
            # In the same order, because what was observed already is kept in that order.
            same = entry.seed is None and entry.instances == instances.hashes
        begun = (place / "plan.json").exists() and not (place / "certificate.json").exists()
        if same and entry.epsilon == epsilon and begun:
            yield entry


def certify_rule(
    name: str,
    rule: Rule,
    task: Task,
    experiment: Experiment,
    prior_set: PriorSet,
    sealed: SealedTrainSet,
    settings: CertifySettings,
) -> Certificate:
    """Certify a rule that was not learned, by the same path: a prior of one sample.

    The prior set only fixes what is certified (targets, constants); the plan opens the train set.
    """
    require_fit(rule, task.problem)
    with working_precision(task.problem):
        hyper = np.asarray(hyper_of(rule))
    losses = task.losses(rule, prior_set)[:, 0]
    alone = Sampled.given(
        hyper[None], np.ones(1), losses[None], task.thresholds(prior_set), np.zeros(1)
    )
    pilot = pilot_run(settings, task, experiment, rule, alone, prior_set, sealed.size)
    plan = plan_run(settings, task, experiment, alone, pilot, sealed.size)
    configuration = sha256_of(to_json({"rule": name, "certify": settings}))
    train = sealed.open(Commitment(configuration, plan.sha256))
    opponents = experiment.chosen(plan.opponents)
    references = references_for(settings, experiment, train)
    found = certify(plan, task, rule, alone, opponents, references, train)
    document = make_certificate(
        name,
        plan,
        solver_fingerprint(rule),
        found,
        {"prior": prior_set.size, "train": train.size},
        {"prior": prior_set.sha256, "train": train.sha256},
        posterior_hash(alone.hypers, found.log_posterior),
        opened_by(train),
    )
    # The paper's bound would plug in a success probability that nobody estimated.
    sure = [statement for statement in document.statements if statement.rigorous]
    return dataclasses.replace(document, statements=sure)
