"""Sparse coding of signals of 250 numbers, with a random dictionary of 500 atoms."""

import jax
import jax.numpy as jnp
import numpy as np

import surestep as ss

ROWS, ATOMS = 250, 500
WEIGHT = 0.1

D = np.random.default_rng(250).normal(size=(ROWS, ATOMS))
D /= np.linalg.norm(D, axis=0)


def sample(key):
    """A signal of about 50 atoms, with noise 40 dB below it."""
    which, how_much, noise = jax.random.split(key, 3)
    chosen = jax.random.bernoulli(which, 0.1, (ATOMS,))
    clean = D @ jnp.where(chosen, jax.random.normal(how_much, (ATOMS,)), 0.0)
    rest = jax.random.normal(noise, (ROWS,))
    return clean + 0.01 * jnp.linalg.norm(clean) / jnp.linalg.norm(rest) * rest


def loss(x, theta):
    """Half the squared misfit."""
    return 0.5 * jnp.sum((D @ x - theta) ** 2)


problem = ss.make_problem(
    loss,
    x0=np.zeros(ATOMS),
    sample=sample,
    penalty=ss.penalties.L1(WEIGHT),
    name="sparse coding 250 x 500",
)
