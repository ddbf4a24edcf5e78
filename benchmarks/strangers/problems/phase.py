"""Phase retrieval: 20 numbers from 160 squared products with fixed vectors."""

import jax
import jax.numpy as jnp
import numpy as np

import surestep as ss

SIZE, MEASURED = 20, 160

A = np.random.default_rng(20).normal(size=(MEASURED, SIZE))


def sample(key):
    """Squares of what a random vector measures, with a little noise."""
    truth, noise = jax.random.split(key)
    clean = (A @ jax.random.normal(truth, (SIZE,))) ** 2
    return clean + 0.1 * jax.random.normal(noise, (MEASURED,))


def spectral(theta):
    """The main direction of the measuring vectors, weighted, by twenty power iterations."""
    weights = theta / jnp.mean(jnp.abs(theta))
    weights = jnp.minimum(weights, 3.0)  # a few large ones would decide alone

    def step(_, x):
        x = A.T @ (weights * (A @ x))
        return x / jnp.linalg.norm(x)

    first = jnp.asarray(A[0]) + 0.1
    direction = jax.lax.fori_loop(0, 20, step, first / jnp.linalg.norm(first))
    return direction * jnp.sqrt(jnp.mean(jnp.abs(theta)))


def loss(x, theta):
    """Mean squared misfit of the squares."""
    return jnp.mean(((A @ x) ** 2 - theta) ** 2)


problem = ss.make_problem(loss, x0=spectral, sample=sample, name="phase retrieval")
