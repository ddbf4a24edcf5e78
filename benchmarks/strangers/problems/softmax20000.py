"""Softmax regression with 2000 features and 10 classes: 20 000 weights."""

import jax
import jax.numpy as jnp
import numpy as np

import surestep as ss

FEATURES, CLASSES, POINTS = 2000, 10, 200
RIDGE = 1e-3


def sample(key):
    """A data set: classes differ by their means in a tenth of the features."""
    k_means, k_classes, k_noise = jax.random.split(key, 3)
    informative = jnp.arange(FEATURES) < FEATURES // 10
    means = jnp.where(informative, jax.random.normal(k_means, (CLASSES, FEATURES)), 0.0)
    classes = jax.random.randint(k_classes, (POINTS,), 0, CLASSES)
    noise = jax.random.normal(k_noise, (POINTS, FEATURES))
    return {
        "features": (0.3 * means[classes] + noise) / FEATURES**0.5,
        "labels": jax.nn.one_hot(classes, CLASSES),
    }


def loss(x, theta):
    """Mean cross entropy and a little of the squared weights."""
    scores = theta["features"] @ x
    likely = jnp.sum(theta["labels"] * scores, axis=1)
    misfit = jax.nn.logsumexp(scores, axis=1) - likely
    return jnp.mean(misfit) + 0.5 * RIDGE * jnp.sum(x**2)


problem = ss.make_problem(
    loss, x0=np.zeros((FEATURES, CLASSES)), sample=sample, name="softmax regression 20000"
)
