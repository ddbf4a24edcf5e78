"""Robust regression: 8 weights, on 300 recorded data sets with heavy-tailed errors."""

import jax.numpy as jnp
import numpy as np

import surestep as ss

RECORDED, POINTS, SIZE = 300, 30, 8

_rng = np.random.default_rng(0)
_inputs = _rng.normal(size=(RECORDED, POINTS, SIZE))
_truths = np.maximum(_rng.normal(size=(RECORDED, SIZE)), 0.0)
_errors = 0.1 * _rng.standard_t(3, size=(RECORDED, POINTS))
THETAS = {"A": _inputs, "b": np.einsum("kij,kj->ki", _inputs, _truths) + _errors}


def loss(x, theta):
    """Quadratic for small errors, linear for large ones."""
    return jnp.mean(jnp.sqrt(1 + (theta["A"] @ x - theta["b"]) ** 2) - 1)


problem = ss.make_problem(loss, x0=np.zeros(SIZE), thetas=THETAS, name="robust regression")
