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
    certify,
    issue,
    make_certificate,
    pilot_run,
    plan_run,
    references_for,
)
from surestep.problem import PriorSet, Split, StreamedTrainSet, TrainSet, working_precision
from surestep.problem.recorded import look_at
from surestep.rollout.tiles import Crew
from surestep.rules.base import Rule, hyper_of, require_fit, solver_fingerprint
from surestep.run.charges import (
    MOST_CHARGED,
    OWN,
    Charge,
    charge,
    read_charges,
    recorded_hashes,
    require_fresh,
    spent_on,
)
from surestep.run.config import RunConfig
from surestep.run.instance_store import write_instances
from surestep.storage.mirrored import Kept
from surestep.storage.records import to_json
from surestep.storage.run_folder import RunFolder
from surestep.train import Experiment, Sampled, Task


def certify_again(
    folder: RunFolder,
    config: RunConfig[Any],
    experiment: Experiment,
    train: TrainSet,
    epsilon: float,
    report: Reporter | None = None,
    deployed: bool = False,
    crew: Crew | None = None,
) -> tuple[Certificate, Path]:
    """Certify a run's trained rule on other instances, without training anything.

    With `deployed` the rule that the run deployed is certified alone, as the only sample of its
    prior; otherwise all samples are rolled out, and the instances choose again among them.
    A certificate that was interrupted is gone on with, and charged once. Returns the certificate
    and the folder it was written to, inside the run's own.
    """
    if not folder.has("sample"):
        raise RunFolderError(f"{folder.path} has no trained rule yet: finish the run first")
    charges = read_charges(folder)
    if all(entry.certificate != OWN for entry in charges):
        # Its own certificate comes first: what it costs must be known to all later ones.
        raise RunFolderError(
            f"{folder.path} has no certificate of its own yet: finish the run first"
        )
    if sum(len(entry.instances) for entry in charges) + train.size > MOST_CHARGED:
        raise ConfigurationError(
            f"a run can be certified on {MOST_CHARGED} instances in all, and no more: take fewer"
        )
    prior = folder.load("sample", Sampled)
    split = Split.draw(experiment.problem, config.sizes, config.seed)
    if deployed:
        prior = prior.only(deployed_sample(folder))
    require_fresh(split, train, deployed, recorded_hashes(folder))
    fresh = train.hashes
    about_file = _about_file(experiment, train)
    task = config.task(experiment)
    settings = dataclasses.replace(config.certify, epsilon=epsilon)
    rule = experiment.rule(config.seed)
    pilot = pilot_run(settings, task, experiment, rule, prior, split.prior, train.size)

    def planned(before: list[Charge]) -> Plan:
        spent = spent_on(fresh, before, train.seed)
        return plan_run(settings, task, experiment, prior, pilot, train.size, spent, about_file)

    plan, name = planned(charges), str(len(charges))
    for begun in _unfinished(folder, charges, fresh, epsilon):
        # One that goes on is charged what it was charged when it began. Another plan (of all
        # samples, of the deployed one alone) is another certificate.
        same = planned(charges[: charges.index(begun)])
        plan_then = Kept(folder.path / "certificates" / begun.certificate / "plan.json")
        if plan_then.read() == to_json(same):
            plan, name = same, begun.certificate
            break
    place = folder.path / "certificates" / name
    # Charged before the instances are looked at: an interrupted certificate has seen them too.
    Kept(place / "plan.json").write(to_json(plan))
    write_instances(place, train)
    charge(folder, place.name, epsilon, train)
    opponents = experiment.chosen(plan.opponents)
    references = references_for(settings, experiment, train)
    results = RunFolder(place)
    results.mark("made_with", environments=[provenance()])
    checkpoint = results.checkpoint("certify")
    found = certify(plan, task, rule, prior, opponents, references, train, checkpoint, report, crew)
    chosen = experiment.rule_at(config.seed, prior.hypers[found.deployed_sample])
    document = issue(config.name, plan, chosen, found, dataclasses.replace(split, train=train))
    results.save("certify", found)
    Kept(place / "certificate.json").write(to_json(document))
    return document, place


def _about_file(experiment: Experiment, train: TrainSet) -> str | None:
    """What was found about instances from a file; None where they are drawn."""
    if train.seed is not None:
        return None
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
    folder: RunFolder, charges: list[Charge], instances: list[str], epsilon: float
) -> Iterator[Charge]:
    """The charges of certificates on exactly these instances that nobody has seen yet."""
    for entry in charges:
        place = folder.path / "certificates" / entry.certificate
        # In the same order, because what was observed already is kept in that order.
        same = entry.instances == instances and entry.epsilon == epsilon
        if same and (place / "plan.json").exists() and not (place / "certificate.json").exists():
            yield entry


def certify_rule(
    name: str,
    rule: Rule,
    task: Task,
    experiment: Experiment,
    prior_set: PriorSet,
    train: TrainSet,
    settings: CertifySettings,
) -> Certificate:
    """Certify a rule that was not learned, by the same path: a prior of one sample.

    The prior set only fixes what is certified (targets, constants).
    """
    require_fit(rule, task.problem)
    with working_precision(task.problem):
        hyper = np.asarray(hyper_of(rule))
    losses = task.losses(rule, prior_set)[:, 0]
    alone = Sampled.given(
        hyper[None], np.ones(1), losses[None], task.thresholds(prior_set), np.zeros(1)
    )
    pilot = pilot_run(settings, task, experiment, rule, alone, prior_set, train.size)
    plan = plan_run(settings, task, experiment, alone, pilot, train.size)
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
    )
    # The paper's bound would plug in a success probability that nobody estimated.
    sure = [statement for statement in document.statements if statement.rigorous]
    return dataclasses.replace(document, statements=sure)
