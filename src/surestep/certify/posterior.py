"""The posterior over the prior's samples, and the paper's bound, from plan and evidence."""

import dataclasses

import numpy as np

from surestep.bounds import sublevel_family
from surestep.certify.evidence import Evidence
from surestep.certify.plan import Plan
from surestep.problem import reached
from surestep.storage.run_folder import axes
from surestep.train import Sampled, mean_square, weighed_risks


@dataclasses.dataclass(frozen=True)
class Certified:
    """The train set's evidence, and the posterior and the paper's bound computed from it."""

    evidence: Evidence
    iterations: np.ndarray = dataclasses.field(metadata=axes("iteration"))
    risks: np.ndarray = dataclasses.field(metadata=axes("sample"))
    second_moments: np.ndarray = dataclasses.field(metadata=axes("sample"))
    bounds: np.ndarray = dataclasses.field(metadata=axes("lambda"))
    log_posterior: np.ndarray = dataclasses.field(metadata=axes("sample"))
    """The Gibbs posterior on the prior that the certificates bet with: the certificate's."""
    paper_log_posterior: np.ndarray = dataclasses.field(metadata=axes("sample"))
    """The Gibbs posterior on the paper's prior."""
    bound: float
    """The paper's bound for a rule drawn from its posterior."""
    point_bound: float
    """The same bound for the rule that is deployed."""
    lambda_: float
    deployed_sample: int
    """Which sample is deployed: the mode of the certificate's posterior."""
    plan_sha256: str


def find_posterior(plan: Plan, prior: Sampled, evidence: Evidence) -> Certified:
    """The posterior, the deployed sample and the paper's bound, with its estimates plugged in.

    Where losses may be negative the same posterior weighs misses of the goal instead of losses.
    The bound is then one for their probability, and no statement is made of it.
    """
    final, threshold = evidence.final, evidence.thresholds
    good = reached(final, threshold)
    risks = weighed_risks(final, threshold, prior.probabilities, plan.bounded)
    moments = mean_square(threshold, good) / prior.probabilities**2
    moments = moments if plan.bounded else np.ones(len(risks))
    lambdas = np.array(plan.lambdas)
    family = sublevel_family(prior.log_prior, risks, moments, plan.train_size)
    bound = family.minimise_on_set(lambdas, plan.epsilon)
    betting = dataclasses.replace(family, log_prior=np.array(plan.log_prior))
    log_posterior = betting.log_posterior(bound.lambda_)
    deployed = int(np.argmax(log_posterior))
    return Certified(
        evidence=evidence,
        iterations=np.array(plan.iterations),
        risks=risks,
        second_moments=moments,
        bounds=bound.values,
        log_posterior=log_posterior,
        paper_log_posterior=bound.log_posterior,
        bound=bound.value,
        point_bound=family.point_bound(deployed, lambdas, plan.epsilon),
        lambda_=bound.lambda_,
        deployed_sample=deployed,
        plan_sha256=plan.sha256,
    )
