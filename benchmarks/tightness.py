"""How tight certificates are: against the truth, in every form, and beside textbook intervals.

For families whose truth is known exactly, each certificate of the deployed rule is averaged over
repeated train sets of several sizes. Means of values between 0 and 1 are bounded in every form: by
relative entropy for each sample (Chernoff), by betting with bets from an independent pilot, and by
PAC-Bayes-kl. Beside them are

- the truth,
- the paper's bound (for the expected loss where the goal is reached; it plugs in estimates),
- Clopper-Pearson and Hoeffding at the claim's own share of epsilon, which hold for *one* rule
  fixed beforehand: what the freedom to choose among the prior's samples costs.

    python benchmarks/tightness.py
"""

import dataclasses
from typing import get_args

import numpy as np

from surestep.base.machine import provenance
from surestep.bounds.kl import binomial_upper
from surestep.certify.audit import FAMILIES
from surestep.certify.claims import Basis, LossLevels, LossWhereReached, MeanClaim, Truth
from surestep.certify.claims.base import BoundedClaim, BoundedForm
from surestep.certify.forms import forecast_basis, in_form
from surestep.certify.pilot import Pilot
from surestep.certify.posterior import find_posterior

EPSILON, REPEATS = 0.05, 20


def textbook(claim, plan, evidence, deployed):
    """Clopper-Pearson (where values are 0 or 1) and Hoeffding, in the claim's own units."""
    share, size = plan.ledger.of(claim.name), plan.train_size
    mean = claim.values(plan, evidence)[0, deployed].mean()
    exact = np.nan
    if claim.bound == "binomial":
        exact = float(binomial_upper(round(mean * size), size, share))
    hoeffding = min(mean + np.sqrt(np.log(1 / share) / (2 * size)), 1.0)
    return exact, claim.number(hoeffding)


def in_all_forms(claim, plan, family):
    """A claim about bounded values in every form; bets come from a pilot of as many instances."""
    pilot = Pilot(family.draw(np.random.default_rng(12), plan.train_size).of(slice(0, 1)), ())
    weight = float(np.exp(plan.log_prior[0]))
    basis = forecast_basis(plan, pilot, weight)
    return [in_form(form, claim, basis, pilot.evidence) for form in get_args(BoundedForm)]


def row(claim, statement, basis, found, known, forms):
    """The truth, the certificate by form, the paper's bound and the textbook's."""
    deployed, none = found.deployed_sample, np.nan
    if isinstance(claim, LossWhereReached):
        point = float(known[deployed])
        return point, statement.value, none, none, found.point_bound, none, none
    exact, hoeffding = textbook(claim, basis.terms, basis.evidence, deployed)
    stated = [statement.value, none, none]
    if forms:
        stated = [one.number(float(one.uppers(basis)[0][0])) for one in forms]
        order = [get_args(BoundedForm).index(f) for f in ("chernoff", "betting", "pac-bayes-kl")]
        stated = [stated[i] for i in order]
    return claim.number(float(known[0, deployed])), *stated, none, exact, hoeffding


def rows(family, size):
    plan = family.plan(size, EPSILON)
    random = np.random.default_rng(0)
    truth = Truth(plan, family.table, family.chances)
    shown = [claim for claim in plan.claims if isinstance(claim, MeanClaim | LossWhereReached)]
    shown = [
        claim for claim in shown if not isinstance(claim, LossLevels) and "kl" not in claim.name
    ]
    exact_means = {claim.name: claim.exact(truth) for claim in shown}
    forms = {c.name: in_all_forms(c, plan, family) for c in shown if isinstance(c, BoundedClaim)}
    collected = {claim.name: [] for claim in shown}
    for _ in range(REPEATS):
        evidence = family.draw(random, size)
        found = find_posterior(plan, family.prior, evidence)
        basis = Basis(plan, evidence, found.log_posterior, found.deployed_sample)
        for claim in shown:
            mine = (exact_means[claim.name], forms.get(claim.name))
            collected[claim.name].append(row(claim, claim.statement(basis), basis, found, *mine))
    return {name: np.mean(found, axis=0) for name, found in collected.items()}


def main():
    for name, value in provenance().items():
        print(f"{name}: {value}")
    print(f"epsilon {EPSILON}, mean of {REPEATS} train sets\n")
    heads = ("truth", "certificate", "betting", "PB-kl", "paper", "Clopper-P.", "Hoeffding")
    for make in FAMILIES.values():
        # The same claims in all forms, not further ones.
        family = dataclasses.replace(make(), betting=False)
        print(f"{family.name:<24}{'N':>7}" + "".join(f"{head:>13}" for head in heads))
        for size in (50, 250, 1000, 10_000):
            for name, found in rows(family, size).items():
                cells = "".join(f"{v:>13.4g}" if np.isfinite(v) else f"{'':>13}" for v in found)
                print(f"{name:<24}{size:>7}{cells}")
        print()


if __name__ == "__main__":
    main()
