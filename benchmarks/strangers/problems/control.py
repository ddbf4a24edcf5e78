"""Steering four coupled masses back to rest in 20 steps, without leaving bounds by much."""

import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg

import surestep as ss

MASSES, INPUTS, HORIZON = 4, 3, 20
STATES = 2 * MASSES
BOUND, HARDNESS, EFFORT = 1.0, 50.0, 0.05

_springs = 2 * np.eye(MASSES) - np.eye(MASSES, k=1) - np.eye(MASSES, k=-1)
_flow = np.block(
    [[np.zeros((MASSES, MASSES)), np.eye(MASSES)], [-_springs, -0.05 * np.eye(MASSES)]]
)
_push = np.zeros((STATES, INPUTS))
_push[MASSES:] = [[1, 0, 0], [-1, 1, 0], [0, -1, 1], [0, 0, -1]]
_both = scipy.linalg.expm(0.4 * np.block([[_flow, _push], [np.zeros((INPUTS, STATES + INPUTS))]]))
A, B = _both[:STATES, :STATES], _both[:STATES, STATES:]


def sample(key):
    """A state to start from."""
    return 1.2 * jax.random.uniform(key, (STATES,), minval=-1.0, maxval=1.0)


def loss(x, theta):
    """States and inputs squared, and what lies beyond the bounds, squared and weighted."""

    def step(state, inputs):
        state = A @ state + B @ inputs
        beyond = jnp.maximum(jnp.abs(state) - BOUND, 0.0)
        cost = jnp.sum(state**2) + EFFORT * jnp.sum(inputs**2) + HARDNESS * jnp.sum(beyond**2)
        return state, 0.5 * cost

    return jnp.sum(jax.lax.scan(step, theta, x)[1])


problem = ss.make_problem(
    loss, x0=np.zeros((HORIZON, INPUTS)), sample=sample, name="control of masses"
)
