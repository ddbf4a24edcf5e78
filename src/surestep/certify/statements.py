"""From a plan and its evidence to statements: pure, so that anyone can compute them again."""

import dataclasses
from typing import Any

import numpy as np
from jaxtyping import Float

from surestep.bounds import normalised, sublevel_family
from surestep.bounds.uniform import posterior_upper, quantile_uppers, sample_uppers
from surestep.certify.certificate import (
    SCHEMA,
    Certificate,
    Statement,
    percent,
    rounded_down,
    rounded_up,
)
from surestep.certify.claims import DECADES, EARLIER, Claim, Evidence, Plan, ties, values
from surestep.certify.gather import Certified
from surestep.problem.datasets import Split
from surestep.problem.goal import reached
from surestep.rules.base import Rule, solver_fingerprint

_AT_ONCE = 2**23
"""How many values are in memory at a time while they are averaged."""

HEADLINE = 0.8
"""The share of new instances whose certified loss is a certificate's headline."""


@dataclasses.dataclass(frozen=True)
class Basis:
    """What statements are computed from."""

    plan: Plan
    evidence: Evidence
    log_posterior: Float[np.ndarray, " sample"]
    deployed: int


def rigorous_statements(basis: Basis) -> list[Statement]:
    """Every claim of the plan as a statement; jointly false with probability epsilon at most."""
    return [_MAKERS[claim.kind](claim, basis) for claim in basis.plan.claims]


def _uppers(claim: Claim, basis: Basis, part: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """Upper bounds for the deployed rule and for the posterior, one a statistic.

    `part` of the claim's share of epsilon pays for them.
    """
    plan = basis.plan
    means = _means(claim, plan, basis.evidence)
    # All statistics of a claim hold at once: they divide its share.
    share = part * plan.ledger.of(claim.name) / len(means)
    common = (plan.train_size, np.array(plan.log_prior))
    uppers = sample_uppers(means, *common, share, claim.form)
    posterior = posterior_upper(means, *common, basis.log_posterior, share, claim.form, uppers)
    return uppers[:, basis.deployed], posterior


def _means(claim: Claim, plan: Plan, evidence: Evidence) -> Float[np.ndarray, "statistic sample"]:
    """The means of a claim's values, of a few samples at a time.

    The values of all could take a hundred times the memory of the losses they come from.
    """
    samples, size, _ = evidence.losses.shape
    statistics = max(len(claim.iterations) * len(claim.tolerances), 1)
    few = max(1, _AT_ONCE // (statistics * size))
    parts = [evidence.of(slice(first, first + few)) for first in range(0, samples, few)]
    return np.concatenate([values(claim, plan, part).mean(axis=2) for part in parts], axis=1)


def _statement(
    claim: Claim,
    basis: Basis,
    value: float,
    posterior: float,
    sentence: str,
    assumptions: tuple[str, ...] = (),
    **details: Any,
) -> Statement:
    plan = basis.plan
    return Statement(
        name=claim.name,
        value=value,
        posterior_value=posterior,
        confidence=1 - plan.epsilon,
        epsilon=plan.ledger.of(claim.name),
        sentence=f"With confidence {percent(1 - plan.epsilon)}, {sentence}",
        assumptions=[*_common_assumptions(plan), *assumptions],
        estimates=[],
        details=details,
    )


def _common_assumptions(plan: Plan) -> list[str]:
    charged = any(share.name == EARLIER for share in plan.shares)
    opened = (
        "they were opened before: what was spent on them then is charged here, and neither plan "
        "nor epsilon depend on what was found"
        if charged
        else "they were opened after the plan was fixed"
    )
    return [
        f"the {plan.train_size} train instances are independent draws from the distribution that "
        f"new instances come from; {opened}",
        "every rollout starts at the problem's start (where a start was learned, moving there is "
        "part of the rule)",
        *([f"instances are made from this stock of data alone: {plan.pool}"] if plan.pool else []),
    ]


def _goal(claim: Claim, basis: Basis) -> Statement:
    point, posterior = (float(v[0]) for v in _uppers(claim, basis))
    return _statement(
        claim, basis, point, posterior,
        f"on a new instance the deployed rule reaches the goal within {basis.plan.horizon} "
        f"iterations with probability at least {rounded_down(1 - point)}.",
    )  # fmt: skip


def _ratio(claim: Claim, basis: Basis) -> Statement:
    point, posterior = (float(v[0]) for v in _uppers(claim, basis))
    return _statement(
        claim, basis, point, posterior,
        f"on a new instance the deployed rule's loss after {basis.plan.horizon} iterations, as a "
        f"share of the goal and counted as 1 beyond it, is at most {rounded_up(point)} in "
        "expectation.",
    )  # fmt: skip


def _clipped(claim: Claim, basis: Basis) -> Statement:
    point, posterior = (float(v[0]) * claim.constant for v in _uppers(claim, basis))
    return _statement(
        claim, basis, point, posterior,
        f"on a new instance the deployed rule's loss after {basis.plan.horizon} iterations, "
        f"counted as {claim.constant:.4g} where it is larger, is at most {rounded_up(point)} in "
        "expectation.",
    )  # fmt: skip


def _levels(claim: Claim, basis: Basis) -> Statement:
    """Half of the share pays for the pairs of iteration and loss, half for the quantiles."""
    shape = (len(claim.iterations), len(claim.tolerances))
    point, posterior = (v.reshape(shape) for v in _uppers(claim, basis, 0.5))
    ranked, drawn = _quantiles(claim, basis, 0.5)
    # Both hold at once, so the smaller one does.
    certified = np.minimum(ranked, _read_off(claim, point))
    certified_posterior = np.minimum(drawn, _read_off(claim, posterior))
    headline = claim.quantiles.index(HEADLINE)
    final = float(certified[headline, -1])
    return _statement(
        claim, basis, final, float(certified_posterior[headline, -1]),
        f"at least {percent(HEADLINE)} of new instances end with a loss of at most "
        f"{rounded_up(final)} after {basis.plan.horizon} iterations of the deployed rule (details: "
        f"{certified.size} such quantiles, and all {point.size} pairs of iteration and loss, at "
        "once)."
        if np.isfinite(final)
        else f"no loss is certified for {percent(HEADLINE)} of new instances.",
        iterations=list(claim.iterations),
        tolerances=list(claim.tolerances),
        above=point.tolist(),
        above_posterior=posterior.tolist(),
        quantiles=_by_share(claim, certified),
        quantiles_posterior=_by_share(claim, certified_posterior),
        first_hits=_first_hits(claim, point),
    )  # fmt: skip


def _quantiles(claim: Claim, basis: Basis, part: float) -> tuple[np.ndarray, np.ndarray]:
    """Certified losses by share and iteration, for the deployed rule and for the posterior.

    The last iteration has half of what is spent, the others the rest in equal parts.
    """
    plan, losses = basis.plan, basis.evidence.losses
    earlier = len(claim.iterations) - 1
    weights = np.array([*[0.5 / max(earlier, 1)] * earlier, 0.5 if earlier else 1.0])
    spent = part * plan.ledger.of(claim.name) / len(claim.quantiles) * weights
    log_prior = np.array(plan.log_prior)
    point = np.empty((len(claim.quantiles), len(claim.iterations)))
    drawn = np.empty_like(point)
    held = np.exp(normalised(basis.log_posterior)) > 0
    for i, iteration in enumerate(claim.iterations):
        seen = losses[:, :, plan.iterations.index(iteration)]
        for s, share in enumerate(claim.quantiles):
            uppers = quantile_uppers(seen, share, log_prior, float(spent[i]))
            # A drawn rule is below what all that can be drawn are below.
            point[s, i], drawn[s, i] = uppers[basis.deployed], uppers[held].max()
    return point, drawn


def _read_off(claim: Claim, above: Float[np.ndarray, "iteration tolerance"]) -> np.ndarray:
    """The smallest loss of the plan that each share is certified to be below, if any is."""
    tolerances = np.array(claim.tolerances)
    return np.array(
        [
            [np.min(tolerances[row <= 1 - share], initial=np.inf) for row in above]
            for share in claim.quantiles
        ]
    )


def _by_share(claim: Claim, losses: np.ndarray) -> dict[str, list[float | None]]:
    """Certified losses over the iterations, by share; nothing where none is certified."""
    return {
        f"{share:g}": [float(loss) if np.isfinite(loss) else None for loss in row]
        for share, row in zip(claim.quantiles, losses, strict=True)
    }


def _first_hits(
    claim: Claim, above: Float[np.ndarray, "iteration tolerance"]
) -> dict[str, list[int | None]]:
    """Iterations within which a share of instances is certified to reach each tolerance."""
    hits: dict[str, list[int | None]] = {}
    for share in claim.quantiles:
        hits[f"{share:g}"] = [
            next((t for t, u in zip(claim.iterations, column, strict=True) if u <= 1 - share), None)
            for column in above.T
        ]
    return hits


def _sublevel(claim: Claim, basis: Basis) -> Statement:
    plan, evidence = basis.plan, basis.evidence
    log_prior, size = np.array(plan.log_prior), plan.train_size
    half = plan.ledger.of(claim.name) / 2
    goal = Claim("", "goal", "binomial")
    misses = values(goal, plan, evidence)[0].mean(axis=1)
    success = 1 - sample_uppers(misses, size, log_prior, half, "binomial")
    good = reached(evidence.losses[:, :, -1], evidence.thresholds)
    means = np.mean(np.where(good, evidence.losses[:, :, -1], 0.0), axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        risks = np.where(success > 0, means / success, np.inf)
        moments = np.where(success > 0, claim.constant / success**2, np.inf)
    family = sublevel_family(log_prior, risks, moments, size)
    lambdas = np.array(plan.lambdas)
    posterior = family.posterior_bound(basis.log_posterior, lambdas, half)
    point = family.point_bound(basis.deployed, lambdas, half)
    return _statement(
        claim, basis, point, posterior,
        "on a new instance on which it reaches the goal, the deployed rule has an expected loss of "
        f"at most {rounded_up(point)}."
        if np.isfinite(point)
        else "no expected loss where the goal is reached is certified: it is reached too rarely.",
        assumptions=(
            "the second moment of the goal's threshold is at most the declared "
            f"{claim.constant:.6g}",
            "the loss is never negative",
        ),
        success_lower=float(success[basis.deployed]),
    )  # fmt: skip


def _faster(claim: Claim, basis: Basis) -> Statement:
    point, posterior = (float(v[0]) for v in _uppers(claim, basis))
    tied = ties(claim, basis.plan, basis.evidence, basis.deployed)
    return _statement(
        claim, basis, point, posterior,
        f"on a new instance the deployed rule reaches a loss of {claim.tolerances[0]:.4g} within "
        f"{basis.plan.horizon} iterations, and with no more gradient evaluations than "
        f"{claim.opponent}, with probability at least {rounded_down(1 - point)}.",
        ties_on_train_set=tied,
    )  # fmt: skip


def _sooner(claim: Claim, basis: Basis) -> Statement:
    point, posterior = (float(v[0]) for v in _uppers(claim, basis))
    tied = ties(claim, basis.plan, basis.evidence, basis.deployed)
    return _statement(
        claim, basis, point, posterior,
        f"on a new instance the deployed rule reaches the goal within {basis.plan.horizon} "
        f"iterations, and with no more gradient evaluations than {claim.opponent}, with "
        f"probability at least {rounded_down(1 - point)}.",
        ties_on_train_set=tied,
    )  # fmt: skip


def _better(claim: Claim, basis: Basis) -> Statement:
    point, posterior = (float(v[0]) for v in _uppers(claim, basis))
    than = f"that of {claim.opponent} after as many"
    if claim.constant:
        than += f" plus {claim.constant:.4g}"
    return _statement(
        claim, basis, point, posterior,
        f"on a new instance the deployed rule's loss after {basis.plan.horizon} iterations is at "
        f"most {than}, with probability at least {rounded_down(1 - point)}.",
    )  # fmt: skip


def _advantage(claim: Claim, basis: Basis) -> Statement:
    # Values are (1 - advantage / DECADES) / 2.
    point, posterior = (DECADES * (1 - 2 * float(v[0])) for v in _uppers(claim, basis))
    size = rounded_down(point) if point >= 0 else rounded_up(-point)
    word = "smaller" if point >= 0 else "larger"
    return _statement(
        claim, basis, point, posterior,
        f"on a new instance the deployed rule's loss after {basis.plan.horizon} iterations is in "
        f"expectation {'at least' if point >= 0 else 'at most'} {size} powers of ten "
        f"{word} than that of {claim.opponent} after as many, advantages and losses beyond "
        f"{DECADES:g} powers of ten counted as {DECADES:g}.",
    )  # fmt: skip


def _statistic(claim: Claim, basis: Basis) -> Statement:
    point, posterior = (float(v[0]) for v in _uppers(claim, basis))
    return _statement(
        claim, basis, point, posterior,
        f"on a new instance the deployed rule's {claim.opponent} is at most {rounded_up(point)} in "
        "expectation.",
    )  # fmt: skip


_MAKERS = {
    "statistic": _statistic,
    "goal": _goal,
    "ratio": _ratio,
    "clipped": _clipped,
    "levels": _levels,
    "sublevel": _sublevel,
    "faster": _faster,
    "advantage": _advantage,
    "sooner": _sooner,
    "better": _better,
}


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
                *_common_assumptions(plan),
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
) -> Certificate:
    """The certificate of a run."""
    basis = Basis(plan, found.evidence, found.log_gibbs, found.mode)
    return Certificate(
        schema=SCHEMA,
        problem=name,
        horizon=plan.horizon,
        epsilon=plan.epsilon,
        ledger=list(plan.ledger.shares),
        deployed_sample=found.mode,
        solver_sha256=solver_sha256,
        plan_sha256=plan.sha256,
        evidence_sha256=found.evidence.sha256,
        data_sha256=data_sha256,
        sizes=sizes,
        statements=[*rigorous_statements(basis), *paper_statements(plan, found)],
    )


def issue(name: str, plan: Plan, deployed: Rule, found: Certified, split: Split) -> Certificate:
    """The certificate of a run's deployed rule."""
    sets = {key: getattr(split, key) for key in ("prior", "validation", "train")}
    sizes = {key: data.size for key, data in sets.items()}
    hashes = {key: data.sha256 for key, data in sets.items()}
    return make_certificate(name, plan, solver_fingerprint(deployed), found, sizes, hashes)
