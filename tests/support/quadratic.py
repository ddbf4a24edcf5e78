"""A small family whose solutions are linear in theta, and what a survey finds on it."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from surestep.auto.survey import Survey, survey
from surestep.problem.base import Problem
from surestep.problem.datasets import PriorSet
from surestep.problem.penalties import Box

RANDOM = np.random.default_rng(0)
MATRIX = RANDOM.normal(size=(5, 5)) + 3 * np.eye(5)
CURVATURE = MATRIX.T @ MATRIX


def sample(key):
    return jax.random.normal(key, (5,))


def quadratic(x, theta):
    """Its solution is linear in theta, and its Hessian is the same for all instances."""
    return 0.5 * jnp.sum((MATRIX @ x - theta) ** 2)


QUADRATIC = Problem.of(quadratic, x0=np.ones(5), sample=sample)
BOXED = Problem.of(quadratic, np.zeros(5), sample=sample, penalty=Box(-0.1, 0.1))


@functools.cache
def surveyed() -> Survey:
    return survey(QUADRATIC, PriorSet.draw(QUADRATIC, 48, 0))
