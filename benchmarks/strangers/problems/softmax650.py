"""Softmax regression: 64 features and a constant, 10 classes, a data set of 300 points each."""

import jax
import jax.numpy as jnp
import numpy as np

import surestep as ss

FEATURES, CLASSES, POINTS = 65, 10, 300
RIDGE = 1e-3


def sample(key):
    """A data set: classes differ by their means, and some features are much alike."""
    k_means, k_classes, k_noise = jax.random.split(key, 3)
    means = jax.random.normal(k_means, (CLASSES, FEATURES - 1))
    classes = jax.random.randint(k_classes, (POINTS,), 0, CLASSES)
    noise = jnp.cumsum(jax.random.normal(k_noise, (POINTS, FEATURES - 1)), axis=1) / 4
    features = 0.5 * means[classes] + noise
    return {
        "features": jnp.concatenate([features, jnp.ones((POINTS, 1))], axis=1),
        "labels": jax.nn.one_hot(classes, CLASSES),
    }


def loss(x, theta):
    """Mean cross entropy and a little of the squared weights."""
    scores = theta["features"] @ x
    likely = jnp.sum(theta["labels"] * scores, axis=1)
    misfit = jax.nn.logsumexp(scores, axis=1) - likely
    return jnp.mean(misfit) + 0.5 * RIDGE * jnp.sum(x**2)


problem = ss.make_problem(
    loss, x0=np.zeros((FEATURES, CLASSES)), sample=sample, name="softmax regression 650"
)
