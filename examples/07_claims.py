"""How many claims to expect: a Poisson regression for every month. It is what `make demo` shows.

    surestep run examples/07_claims.py --budget 1m

Each instance is a data set of its own: 400 contracts with 60 correlated features, and how many
claims each of them had. The 60 coefficients are fitted to each month anew.
"""

import jax
import jax.numpy as jnp
import numpy as np

import surestep as ss

FEATURES, CONTRACTS, RIDGE = 60, 400, 1e-3


def sample(key):
    k_features, k_effects, k_claims = jax.random.split(key, 3)
    steps = jax.random.normal(k_features, (CONTRACTS, FEATURES - 1))
    features = jnp.cumsum(steps, axis=1) / 4  # neighbours resemble each other
    features = jnp.concatenate([features, jnp.ones((CONTRACTS, 1))], axis=1)
    effects = 0.2 * jax.random.normal(k_effects, (FEATURES,)) / jnp.arange(1, FEATURES + 1) ** 0.5
    claims = jax.random.poisson(k_claims, jnp.exp(jnp.clip(features @ effects, -3, 3)))
    return {"features": features, "claims": claims.astype(features.dtype)}


def loss(coefficients, month):
    logs = month["features"] @ coefficients
    misfit = jnp.mean(jnp.exp(logs) - month["claims"] * logs)
    return misfit + 0.5 * RIDGE * jnp.sum(coefficients**2)


problem = ss.make_problem(loss, x0=np.zeros(FEATURES), sample=sample, lower=None, name="claims")

if __name__ == "__main__":
    learned = ss.fit(problem, budget="1m")
    print(learned.certificate)
    print(ss.report.summary(learned))
