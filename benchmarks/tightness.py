"""How tight certificates are: against the truth, the paper's bound and textbook intervals.

For families whose truth is known exactly, each certificate of the deployed rule is averaged over
repeated train sets of several sizes and set beside

- the truth,
- the paper's bound (for the expected loss where the goal is reached; it plugs in estimates),
- Clopper-Pearson and Hoeffding at the claim's own share of epsilon, which hold for *one* rule
  fixed beforehand: what the freedom to choose among the prior's samples costs.

    python benchmarks/tightness.py
"""

import numpy as np

from surestep.base.machine import provenance
from surestep.bounds.kl import binomial_upper
from surestep.certify.audit import FAMILIES
from surestep.certify.claims import LossLevels, LossWhereReached, Truth
from surestep.certify.posterior import find_posterior
from surestep.certify.statements import rigorous_statements

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


def rows(family, size):
    plan = family.plan(size, EPSILON)
    random = np.random.default_rng(0)
    truth = Truth(plan, family.table, family.chances)
    shown = [claim for claim in plan.claims if not isinstance(claim, LossLevels)]
    exact_means = {claim.name: claim.exact(truth) for claim in shown}
    collected = {claim.name: [] for claim in shown}
    for _ in range(REPEATS):
        evidence = family.draw(random, size)
        found = find_posterior(plan, family.prior, evidence)
        deployed = found.deployed_sample
        statements = rigorous_statements(plan, evidence, found.log_posterior, deployed)
        for claim, statement in zip(plan.claims, statements, strict=True):
            if isinstance(claim, LossLevels):
                continue
            known = exact_means[claim.name]
            if isinstance(claim, LossWhereReached):
                row = (float(known[deployed]), statement.value, found.point_bound, np.nan, np.nan)
            else:
                exact, hoeffding = textbook(claim, plan, evidence, deployed)
                true = claim.number(float(known[0, deployed]))
                row = (true, statement.value, np.nan, exact, hoeffding)
            collected[claim.name].append(row)
    return {name: np.mean(found, axis=0) for name, found in collected.items()}


def main():
    for name, value in provenance().items():
        print(f"{name}: {value}")
    print(f"epsilon {EPSILON}, mean of {REPEATS} train sets\n")
    heads = ("truth", "certificate", "paper", "Clopper-P.", "Hoeffding")
    for make in FAMILIES.values():
        family = make()
        print(f"{family.name:<24}{'N':>7}" + "".join(f"{head:>13}" for head in heads))
        for size in (50, 250, 1000, 10_000):
            for name, row in rows(family, size).items():
                cells = "".join(f"{v:>13.4g}" if np.isfinite(v) else f"{'':>13}" for v in row)
                print(f"{name:<24}{size:>7}{cells}")
        print()


if __name__ == "__main__":
    main()
