"""From a plan and its evidence to a certificate: pure, so that anyone can compute it again."""

import dataclasses

import numpy as np
from jaxtyping import Float

from surestep.certify.certificate import SCHEMA, Certificate, Statement, percent, rounded_up
from surestep.certify.claims import Basis
from surestep.certify.claims.base import common_assumptions
from surestep.certify.evidence import Evidence
from surestep.certify.plan import Plan
from surestep.certify.posterior import Certified
from surestep.certify.subject import Opened, Standing
from surestep.problem import SealedSplit, TrainSet, fingerprint
from surestep.rules.base import Rule, solver_fingerprint
from surestep.train import Sampled


def rigorous_statements(
    plan: Plan,
    evidence: Evidence,
    log_posterior: Float[np.ndarray, " sample"],
    deployed_sample: int,
) -> list[Statement]:
    """Every claim of the plan as a statement; jointly false with probability epsilon at most."""
    basis = Basis(plan, evidence, log_posterior, deployed_sample)
    return [claim.statement(basis) for claim in plan.claims]


def paper_statements(plan: Plan, found: Certified) -> list[Statement]:
    """The paper's bound with its plug-ins named, for the posterior and for the deployed rule.

    Both come from one event: the theorem holds for all posteriors at once, a point mass among
    them. It is printed at the paper's epsilon and is no part of the budget. It needs losses that
    are never negative: without them there is none.
    """
    if not plan.bounded:
        return []
    return [
        Statement(
            name="paper: expected loss where the goal is reached",
            value=found.point_bound,
            posterior_value=found.bound,
            confidence=1 - plan.epsilon,
            epsilon=0.0,
            sentence=(
                f"With confidence {percent(1 - plan.epsilon)}, on a new instance on which it "
                "reaches the goal, a rule drawn from the paper's posterior has an expected loss of "
                f"at most {rounded_up(found.bound)}, and the deployed rule of at most "
                f"{rounded_up(found.point_bound)}."
            ),
            assumptions=[
                *common_assumptions(plan),
                "the loss is never negative",
                f"the bound is minimised over {len(plan.lambdas)} values of lambda, fixed before "
                "the train set was opened and paid for",
            ],
            estimates=[
                "the success probability of each sample (a Beta posterior's point, from the "
                "validation set that also chose the samples)",
                "the second moment of the goal's threshold (the train set's own)",
            ],
            details={"lambda": found.lambda_},
        )
    ]


def make_certificate(
    name: str,
    plan: Plan,
    solver_sha256: str,
    found: Certified,
    sizes: dict[str, int],
    data_sha256: dict[str, str],
    posterior_sha256: str = "",
    opened: Opened | None = None,
    standing: Standing | None = None,
) -> Certificate:
    """The certificate of a rule."""
    ours = (found.evidence, found.log_posterior, found.deployed_sample)
    return Certificate(
        schema=SCHEMA,
        problem=name,
        horizon=plan.horizon,
        epsilon=plan.epsilon,
        ledger=list(plan.ledger.shares),
        deployed_sample=found.deployed_sample,
        solver_sha256=solver_sha256,
        plan_sha256=plan.sha256,
        evidence_sha256=found.evidence.sha256,
        data_sha256=data_sha256,
        sizes=sizes,
        statements=[*rigorous_statements(plan, *ours), *paper_statements(plan, found)],
        posterior_sha256=posterior_sha256,
        subject=plan.subject,
        opened=opened,
        standing=standing,
    )


def opened_by(train: TrainSet) -> Opened | None:
    """What has decided which instances a train set holds; None if they were given."""
    if train.seed is None or train.commitment is None:
        return None
    return Opened(train.seed, train.commitment)


def posterior_hash(
    hypers: Float[np.ndarray, "sample d"], log_posterior: Float[np.ndarray, " sample"]
) -> str:
    """A hash of the prior's samples with their posterior weights."""
    return fingerprint({"hypers": hypers, "log_posterior": log_posterior})


def issue(
    name: str,
    plan: Plan,
    deployed: Rule,
    found: Certified,
    prior: Sampled,
    sealed: SealedSplit,
    train: TrainSet,
    standing: Standing | None = None,
) -> Certificate:
    """The certificate of a run's rule; the prior is the one that the plan was made for."""
    sets = {"prior": sealed.prior, "validation": sealed.validation, "train": train}
    document = make_certificate(
        name,
        plan,
        solver_fingerprint(deployed),
        found,
        {role: data.size for role, data in sets.items()},
        {role: data.sha256 for role, data in sets.items()},
        posterior_hash(prior.hypers, found.log_posterior),
        opened_by(train),
        standing,
    )
    if standing is not None and len(prior.hypers) == 1:
        # The deployed rule alone: what was the only sample is known by its number in the run.
        return dataclasses.replace(document, deployed_sample=standing.deployed_sample)
    return document
