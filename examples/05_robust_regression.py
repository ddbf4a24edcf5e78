"""Robust regression with a Huber loss, for data sets that share their kind of features.

    surestep run examples/05_robust_regression.py --budget 1m

Features are strongly correlated, one in ten targets is an outlier, and every data set has its own
true coefficients. Only the curvature of the loss is common to all instances.
"""

import jax
import jax.numpy as jnp
import numpy as np

import surestep as ss

FEATURES, POINTS = 20, 100
mixing = np.linalg.cholesky(0.9 ** np.abs(np.subtract.outer(range(FEATURES), range(FEATURES))))


def sample(key):
    keys = jax.random.split(key, 4)
    inputs = jax.random.normal(keys[0], (POINTS, FEATURES)) @ mixing.T
    truth = jax.random.normal(keys[1], (FEATURES,))
    noise = 0.1 * jax.random.normal(keys[2], (POINTS,))
    outlier = jax.random.bernoulli(keys[3], 0.1, (POINTS,))
    return {"inputs": inputs, "targets": inputs @ truth + jnp.where(outlier, 100 * noise, noise)}


def huber(residual):
    size = jnp.abs(residual)
    return jnp.where(size < 1.0, 0.5 * residual**2, size - 0.5)


def loss(x, theta):
    return jnp.mean(huber(theta["inputs"] @ x - theta["targets"])) + 1e-4 * jnp.sum(x**2)


problem = ss.make_problem(loss, x0=np.zeros(FEATURES), sample=sample, name="robust regression")

if __name__ == "__main__":
    learned = ss.fit(problem, budget="1m")
    print(learned.certificate)
    print(ss.report.summary(learned))
