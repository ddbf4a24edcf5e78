"""Portfolios, chosen again whenever expectations change.

    surestep run examples/08_portfolio.py --budget 1m

Two hundred assets share a few sources of risk, which stay the same. What returns are expected
differs from instance to instance. Weights are not negative and add up to 1.
"""

import jax
import numpy as np

import surestep as ss

ASSETS, SOURCES, AVERSION = 200, 8, 6.0
rng = np.random.default_rng(7)
exposure = 0.07 * rng.normal(size=(ASSETS, SOURCES)) + 0.15 * (np.arange(SOURCES) == 0)
own_risk = rng.uniform(0.05, 0.35, ASSETS)
covariance = exposure @ exposure.T + np.diag(own_risk**2)
usual = 0.03 + 0.4 * exposure[:, 0] + 0.02 * rng.normal(size=ASSETS)


def sample(key):
    return usual + 0.05 * jax.random.normal(key, (ASSETS,))


def cost(weights, returns):
    return 0.5 * AVERSION * weights @ covariance @ weights - returns @ weights


problem = ss.make_problem(
    cost,
    x0=np.full(ASSETS, 1 / ASSETS),
    sample=sample,
    penalty=ss.penalties.Simplex(),
    lower=None,
    name="portfolios",
)

if __name__ == "__main__":
    learned = ss.fit(problem, budget="1m")
    print(learned.certificate)
    print(ss.report.summary(learned))
