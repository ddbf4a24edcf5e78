"""Verification: compute a certificate again from what a run stored, and say what stands."""

import dataclasses
import json
from typing import Any

import jax.numpy as jnp
import numpy as np

from surestep.certificate import Certificate, Statement
from surestep.claims import Plan
from surestep.config import RunConfig
from surestep.errors import RunFolderError, SurestepError
from surestep.experiment import Experiment
from surestep.problem import instance, working_precision
from surestep.randomness import named_key
from surestep.records import from_plain, to_json
from surestep.rule import with_hyper
from surestep.split import Split, TrainSet
from surestep.stages.certify import Certified, paper_posterior
from surestep.stages.sample import Sampled
from surestep.statements import make_certificate
from surestep.store import RunFolder


@dataclasses.dataclass(frozen=True)
class Check:
    """One thing that was verified."""

    name: str
    stands: bool
    reason: str = ""

    def __str__(self) -> str:
        mark = "stands" if self.stands else "FAILS "
        return f"{mark}  {self.name}" + (f": {self.reason}" if self.reason else "")


def verify(
    folder: RunFolder, config: RunConfig[Any], experiment: Experiment, rerun: int = 0, seed: int = 0
) -> list[Check]:
    """Recompute every number of a run's certificate; roll `rerun` random instances out again.

    - The plan, the evidence and the solver are those the certificate was issued for (hashes).
    - The budget adds up, and every statement follows from plan and evidence, to the last digit.
    - The data sets are those that the configuration draws.
    - Losses that are rolled out again agree with the stored ones.
    """
    issued = Certificate.load(folder.certificate_path)
    plan = _plan(folder)
    prior, found = folder.load("sample", Sampled), folder.load("certify", Certified)
    split = Split.draw(experiment.problem, config.sizes, config.seed)
    again = paper_posterior(plan, prior, found.evidence)
    sets = {key: getattr(split, key) for key in issued.data_sha256}
    rebuilt = make_certificate(
        config.name,
        plan,
        prior,
        again,
        {key: data.size for key, data in sets.items()},
        {key: data.sha256 for key, data in sets.items()},
    )
    checks = [
        _budget(plan),
        *_facts(issued, rebuilt),
        *_statements(issued, rebuilt),
        _thresholds(config, experiment, split.train, found),
    ]
    if rerun:
        checks.append(_rerun(config, experiment, split.train, plan, prior, found, rerun, seed))
    return checks


def _plan(folder: RunFolder) -> Plan:
    try:
        return from_plain(Plan, json.loads(folder.plan_path.read_text()), "plan")
    except (OSError, ValueError) as error:
        raise RunFolderError(f"{folder.plan_path} cannot be read: {error}") from error


def _budget(plan: Plan) -> Check:
    name = f"the budget of {plan.epsilon:g}"
    try:
        ledger = plan.ledger
    except SurestepError as error:
        return Check(name, False, str(error))
    unpaid = {claim.name for claim in plan.claims} - {share.name for share in ledger.shares}
    return Check(name, not unpaid, f"nothing is paid for {', '.join(unpaid)}" if unpaid else "")


_FACTS = {
    "schema": "the schema's version",
    "problem": "the problem's name",
    "horizon": "the horizon",
    "epsilon": "epsilon",
    "ledger": "the ledger",
    "deployed_sample": "which sample is deployed",
    "solver_sha256": "the deployed rule's weights",
    "plan_sha256": "the plan",
    "evidence_sha256": "the evidence (train losses)",
    "data_sha256": "the data sets",
    "sizes": "the sizes of the data sets",
}


def _facts(issued: Certificate, rebuilt: Certificate) -> list[Check]:
    return [
        Check(
            words,
            getattr(issued, name) == getattr(rebuilt, name),
            ""
            if getattr(issued, name) == getattr(rebuilt, name)
            else "not what the certificate was issued for",
        )
        for name, words in _FACTS.items()
    ]


def _statements(issued: Certificate, rebuilt: Certificate) -> list[Check]:
    expected = {statement.name: statement for statement in rebuilt.statements}
    checks = [
        _same_statement(statement, expected.pop(statement.name, None))
        for statement in issued.statements
    ]
    missing = [Check(f"statement: {name}", False, "is missing") for name in expected]
    return checks + missing


def _same_statement(issued: Statement, rebuilt: Statement | None) -> Check:
    name = f"statement: {issued.name}"
    if rebuilt is None:
        return Check(name, False, "is not in the plan")
    for field in dataclasses.fields(Statement):
        found, wanted = getattr(issued, field.name), getattr(rebuilt, field.name)
        # As text, because lists and tuples are the same there.
        if to_json({"": found}) != to_json({"": wanted}):
            shown = f"{found!r}, recomputed {wanted!r}" if field.name != "details" else "differs"
            return Check(name, False, f"{field.name} is {shown}")
    return Check(name, True)


def _thresholds(
    config: RunConfig[Any], experiment: Experiment, train: TrainSet, found: Certified
) -> Check:
    again = config.task(experiment).thresholds(train)
    good = again.shape == found.thresholds.shape and np.allclose(
        again, found.thresholds, rtol=1e-9, atol=0
    )
    return Check("the goal on every train instance", good, "" if good else "differs")


def _rerun(
    config: RunConfig[Any],
    experiment: Experiment,
    train: TrainSet,
    plan: Plan,
    prior: Sampled,
    found: Certified,
    number: int,
    seed: int,
) -> Check:
    """Roll random instances out again with the deployed rule."""
    random = np.random.default_rng(seed)
    chosen = np.sort(random.choice(train.size, min(number, train.size), replace=False))
    task = config.task(experiment)
    with working_precision(experiment.problem):
        rule = experiment.create_rule(named_key(config.seed, "rule"))
        rule = with_hyper(rule, jnp.asarray(prior.hypers[found.mode]))
        some = TrainSet(instance(train.thetas, jnp.asarray(chosen)))
    losses, hits, _ = task.observe(rule, some, plan.iterations, plan.hit_tolerances)
    stored = found.losses[found.mode][chosen]
    # Another batch may round otherwise, and long rollouts amplify that: compare orders of size
    # where the loss is tiny, digits where it is not.
    start = stored[:, :1]
    wrong = ~np.isclose(losses, stored, rtol=1e-3, atol=0) & (
        np.maximum(losses, stored) > 1e-9 * start
    )
    off = wrong.any(axis=1) | (hits != found.hits[found.mode][chosen]).any(axis=1)
    name = f"{len(chosen)} instances rolled out again"
    if not off.any():
        return Check(name, True)
    first = int(chosen[np.argmax(off)])
    return Check(name, False, f"{int(off.sum())} differ from what is stored, first {first}")
