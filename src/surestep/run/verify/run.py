"""Verification: compute a certificate again from what a run stored, and say what stands."""

import dataclasses
from typing import Any

import numpy as np

from surestep.base.errors import RunFolderError
from surestep.certify import (
    Certificate,
    Certified,
    Statement,
    find_posterior,
    issue,
    posterior_hash,
    references_for,
)
from surestep.problem import SealedSplit, StockedProblem, working_precision
from surestep.rollout.observe import REACHED
from surestep.rollout.rounding import agree
from surestep.rules.base import hyper_of
from surestep.run.config import RunConfig
from surestep.run.stored import read_plan
from surestep.run.verify.copies import verify_copies
from surestep.run.verify.elsewhere import PRECISION
from surestep.run.verify.finished import Check, Finished, check, made_elsewhere, planned_again
from surestep.run.verify.prior import verify_prior
from surestep.run.verify.rollouts import verify_rollouts
from surestep.run.verify.solver_file import verify_solver
from surestep.storage.records import to_json, to_plain
from surestep.storage.run_folder import RunFolder
from surestep.train import Experiment, Sampled


def verify(
    folder: RunFolder,
    config: RunConfig[Any],
    experiment: Experiment,
    rerun: int = 0,
    seed: int | None = None,
) -> list[Check]:
    """Recompute every number of a run's certificate; roll out again if `rerun` is not 0.

    - Files of facts are what was written.
    - What is stored of the prior's samples, but for the samples, is computed again.
    - The plan is the one that configuration, prior and validation sets give; its budget adds up.
    - The train set is the one that seed, configuration, plan and word open.
    - Evidence, posterior, solver and data are those that the certificate was issued for.
    - Every statement follows from plan and evidence, to the last digit.
    - The solver's file holds that rule, with that certificate.
    - The deployed rule and the opponents, rolled out again, do what is stored; so do `rerun` other
      samples. Which ones is not known beforehand, unless `seed` says so.

    Other versions and other kinds of machines round otherwise. What was made elsewhere is compared
    to rounding, and losses to what a last bit of the instances makes of them here; some are always
    rolled out, because the hashes of instances that are drawn again say nothing there.
    """
    run = _finished(folder, config, experiment)
    checks = [*verify_copies(folder), *verify_prior(run), *checks_of(run, rerun, seed)]
    return [*checks, *verify_solver(run, folder)]


def _finished(folder: RunFolder, config: RunConfig[Any], experiment: Experiment) -> Finished:
    sealed = SealedSplit.draw(experiment.problem, config.sizes, config.seed)
    stored, prior = read_plan(folder.plan_path), folder.load("sample", Sampled)
    with working_precision(experiment.problem):
        weights = hyper_of(experiment.rule(config.seed)).size
    if prior.hypers.shape[1] != weights:
        raise RunFolderError(
            f"{folder.path} holds samples of {prior.hypers.shape[1]} numbers each, where the rule "
            f"has {weights}"
        )
    elsewhere, size = made_elsewhere(folder), config.sizes.train
    plan = planned_again(config, experiment, sealed, prior, stored, elsewhere, size)
    return Finished(
        config,
        experiment,
        sealed,
        stored,
        plan,
        prior,
        sealed.train.open(config.commitment(plan.sha256)),
        folder.load("certify", Certified),
        Certificate.load(folder.certificate_path),
        elsewhere=elsewhere,
    )


def checks_of(run: Finished, rerun: int = 0, seed: int | None = None) -> list[Check]:
    """What is checked of every certificate, a run's own or one on fresh instances."""
    shapes = _shapes(run)
    checks = [_same_plan(run), shapes]
    if not shapes.stands:
        # Nothing can be computed from evidence that does not belong to the plan.
        return checks
    again = find_posterior(run.plan, run.prior, run.found.evidence)
    rule = run.rule(again.deployed_sample)
    rebuilt = issue(
        run.config.name, run.plan, rule, again, run.prior, run.sealed, run.train, run.standing
    )
    return [
        *checks,
        _same_posterior(run.found, again, run.elsewhere),
        *_facts(run, rebuilt),
        *_statements(run.issued, rebuilt, run.elsewhere),
        _thresholds(run),
        _references(run),
        *verify_rollouts(dataclasses.replace(run, found=again), rerun, seed),
    ]


def _same_plan(run: Finished) -> Check:
    """The stored plan is the one that could be made before the train set was opened."""
    same = to_json(run.stored) == to_json(run.plan)
    same &= run.found.plan_sha256 == run.plan.sha256
    reason = "is not the one that the configuration and the prior set give"
    return check("the plan, and its budget", same, reason)


def _shapes(run: Finished) -> Check:
    """The evidence has the form that the plan asks for."""
    plan, samples = run.plan, len(run.prior.hypers)
    size, entries, opponents = plan.train_size, REACHED * len(plan.targets), len(plan.opponents)
    evidence = run.found.evidence
    wanted = {
        "losses": (samples, size, len(plan.iterations)),
        "thresholds": (size,),
        "references": (size,),
        "starts": (size,),
        "reach": (samples, size, entries),
        "opponent_losses": (opponents, size),
        "opponent_reach": (opponents, size, entries),
        "statistics": (samples, size, len(plan.statistics)),
    }
    wrong = [name for name, shape in wanted.items() if getattr(evidence, name).shape != shape]
    if not wrong:
        # A loss that is no number would be above no tolerance.
        undefined = [name for name in wanted if np.isnan(getattr(evidence, name)).any()]
        reason = f"{', '.join(undefined)} hold what is no number"
        return check("the evidence belongs to the plan", not undefined, reason)
    reason = f"{', '.join(wrong)} do not have the plan's shape"
    return Check("the evidence belongs to the plan", False, reason)


def _same_posterior(found: Certified, again: Certified, elsewhere: bool) -> Check:
    def same(name: str) -> bool:
        one, other = getattr(found, name), getattr(again, name)
        if not elsewhere or np.asarray(one).dtype.kind != "f" or np.shape(one) != np.shape(other):
            return np.array_equal(one, other)
        # Logarithms of weights near 1 are what is left of a difference.
        least = 1e-9 if "log_" in name else 0.0
        return np.allclose(one, other, 1e-9, least, equal_nan=True)

    names = [field.name for field in dataclasses.fields(Certified)]
    wrong = [name for name in names if name != "evidence" and not same(name)]
    reason = f"{', '.join(wrong)} do not follow from the evidence"
    return check("posterior, deployed rule and the paper's bound", not wrong, reason)


_FACTS = {
    "schema": "the schema's version",
    "problem": "the problem's name",
    "subject": "the goal, the family's parameters, the prior and the number",
    "horizon": "the horizon",
    "epsilon": "epsilon",
    "ledger": "the ledger",
    "deployed_sample": "which sample is deployed",
    "solver_sha256": "the deployed rule's weights",
    "posterior_sha256": "the posterior",
    "plan_sha256": "the plan's hash",
    "opened": "what opened the train set",
    "standing": "the certificates before it",
    "evidence_sha256": "the evidence (train losses)",
    "data_sha256": "the data sets",
    "sizes": "the sizes of the data sets",
}


def _facts(run: Finished, rebuilt: Certificate) -> list[Check]:
    same = {
        name: to_json({"": getattr(run.issued, name)}) == to_json({"": getattr(rebuilt, name)})
        for name in _FACTS
    }
    if run.elsewhere:
        same["data_sha256"] |= _same_data(run, rebuilt)
        # The weights that are stored were compared to rounding.
        kept = posterior_hash(run.prior.hypers, run.found.log_posterior)
        same["posterior_sha256"] = run.issued.posterior_sha256 == kept
    reason = "not what the certificate was issued for"
    return [check(words, same[name], reason) for name, words in _FACTS.items()]


def _same_data(run: Finished, rebuilt: Certificate) -> bool:
    """Drawn again, instances have other last bits: what is known of them says if they are the same.

    Goals and losses on the prior and the train set are compared elsewhere.
    """
    issued, again = run.issued.data_sha256, rebuilt.data_sha256
    kept = run.train.seed is None or isinstance(run.experiment.problem, StockedProblem)
    return issued.keys() == again.keys() and not (kept and issued["train"] != again["train"])


def _statements(issued: Certificate, rebuilt: Certificate, elsewhere: bool) -> list[Check]:
    expected = {statement.name: statement for statement in rebuilt.statements}
    checks = [
        _same_statement(statement, expected.pop(statement.name, None), elsewhere)
        for statement in issued.statements
    ]
    missing = [Check(f"statement: {name}", False, "is missing") for name in expected]
    return checks + missing


def _same_statement(issued: Statement, rebuilt: Statement | None, elsewhere: bool) -> Check:
    name = f"statement: {issued.name}"
    if rebuilt is None:
        return Check(name, False, "is not in the plan, or there twice")
    for field in dataclasses.fields(Statement):
        found, wanted = getattr(issued, field.name), getattr(rebuilt, field.name)
        # As text, because lists and tuples are the same there.
        near = elsewhere and agree(to_plain(found), to_plain(wanted), 1e-9)
        if not near and to_json({"": found}) != to_json({"": wanted}):
            shown = f"{found!r}, recomputed {wanted!r}" if field.name != "details" else "other"
            return Check(name, False, f"{field.name} is {shown}")
    return Check(name, True)


def _thresholds(run: Finished) -> Check:
    here, stored = run.task.thresholds(run.train), run.found.evidence.thresholds
    good = np.array_equal(here, stored)
    if run.elsewhere:
        good = np.allclose(here, stored, rtol=run.rounding, atol=0)
    return check("the goal on every train instance", good, "differs")


def _references(run: Finished) -> Check:
    """What closeness is counted from, on every train instance."""
    again = references_for(run.config.certify, run.experiment, run.train)
    stored = run.found.evidence.references
    good = np.array_equal(again, stored)
    if run.elsewhere:
        good = np.allclose(again, stored, rtol=PRECISION[run.experiment.problem.precision])
    return check("the minimum of every train instance", good, "differs")
