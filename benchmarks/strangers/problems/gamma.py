"""Gamma regression with 60 weights: positive outcomes whose spread grows with their mean."""

import jax
import jax.numpy as jnp
import numpy as np

import surestep as ss

FEATURES, POINTS = 60, 300
RIDGE = 1e-3
SHAPE = 2.0


def sample(key):
    """A data set: features that resemble their neighbours, and outcomes that follow the model."""
    k_features, k_truth, k_outcome = jax.random.split(key, 3)
    steps = jax.random.normal(k_features, (POINTS, FEATURES - 1))
    features = jnp.cumsum(steps, axis=1) / 3
    features = features - jnp.mean(features, axis=0)
    features = jnp.concatenate([features, jnp.ones((POINTS, 1))], axis=1)
    truth = 0.3 * jax.random.normal(k_truth, (FEATURES,)) / jnp.arange(1, FEATURES + 1) ** 0.5
    noise = jax.random.gamma(k_outcome, SHAPE, (POINTS,)) / SHAPE
    return {"features": features, "outcomes": jnp.exp(features @ truth) * noise}


def loss(x, theta):
    """Mean negative logarithm of the likelihood, and a little of the squared weights."""
    logs = theta["features"] @ x
    return jnp.mean(logs + theta["outcomes"] * jnp.exp(-logs)) + 0.5 * RIDGE * jnp.sum(x**2)


problem = ss.make_problem(
    loss, x0=np.zeros(FEATURES), sample=sample, lower=None, name="gamma regression"
)
