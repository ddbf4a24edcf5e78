"""Sparse coding of short signals, with a dictionary of 300 atoms that resemble their neighbours."""

import jax
import jax.numpy as jnp
import numpy as np

import surestep as ss

ROWS, ATOMS = 120, 300
WEIGHT = 0.1
LIKENESS = 0.7


def _dictionary() -> np.ndarray:
    """Every atom is a share of the one before plus something new; all have length 1."""
    rng = np.random.default_rng(120)
    fresh = rng.normal(size=(ROWS, ATOMS))
    atoms = fresh.copy()
    for j in range(1, ATOMS):
        atoms[:, j] = LIKENESS * atoms[:, j - 1] + (1 - LIKENESS**2) ** 0.5 * fresh[:, j]
    return atoms / np.linalg.norm(atoms, axis=0)


D = _dictionary()


def sample(key):
    """A signal of about 30 atoms, with noise 40 dB below it."""
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
    name="sparse coding 120 x 300",
)
