"""Sums of squares that are found in losses, and losses that are none."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from surestep.problem.base import Problem
from surestep.problem.datasets import PriorSet
from surestep.problem.draw import working_precision
from surestep.problem.penalties import L1
from surestep.problem.squares import is_sum_of_squares, squares_of
from surestep.problem.structure import find_structure

RNG = np.random.default_rng(0)
A, WEIGHTS = RNG.normal(size=(7, 4)), RNG.uniform(1, 2, 4)


def sample(key):
    return jax.random.normal(key, (7,))


def problem_of(loss, **kwargs):
    return Problem.of(loss, np.zeros(4), sample=sample, lower=None, **kwargs)


def residual(x, theta):
    return jnp.tanh(A @ x) - theta


SUMS = {
    "mean": lambda x, t: jnp.mean(residual(x, t) ** 2),
    "half": lambda x, t: 0.5 * jnp.sum(jnp.square(residual(x, t))),
    "dot": lambda x, t: (r := residual(x, t)) @ r / 3,
    "vdot": lambda x, t: jnp.vdot(r := residual(x, t), r),
    "norm": lambda x, t: jnp.linalg.norm(residual(x, t)) ** 2,
    "ridge": lambda x, t: jnp.mean(residual(x, t) ** 2) + 0.1 * jnp.sum(x**2),
    "constant": lambda x, t: jnp.sum(residual(x, t) ** 2) - jnp.sum(t) + 3.0,
    "by parts": lambda x, t: jnp.sum(jnp.sum(residual(x, t).reshape(7, 1) ** 2, axis=1) / 2),
    "jitted": lambda x, t: jnp.mean(jax.jit(lambda r: r * r)(residual(x, t))),
}
OTHERS = {
    "quartic": lambda x, t: jnp.sum(residual(x, t) ** 4),
    "huber": lambda x, t: jnp.sum(jnp.sqrt(1 + residual(x, t) ** 2)),
    "difference": lambda x, t: jnp.sum(residual(x, t) ** 2) - 0.1 * jnp.sum(x**2),
    "negative": lambda x, t: -jnp.sum(residual(x, t) ** 2),
    "times theta": lambda x, t: jnp.sum(t * residual(x, t) ** 2),
    "broadcast": lambda x, t: jnp.sum(jnp.sum(x**2) + residual(x, t)),
    "product": lambda x, t: jnp.sum(x) * jnp.sum(residual(x, t) ** 2),
    "without x": lambda x, t: jnp.sum(t**2) + 0 * jnp.sum(x),
}


def _found(problem, x, theta):
    found = squares_of(problem, x, theta)
    assert found is not None
    return found


@pytest.mark.parametrize("name", SUMS)
def test_squares_add_up_to_the_loss(name):
    """Up to a constant: differences agree, and so do gradients."""
    problem = problem_of(SUMS[name])
    with working_precision(problem):
        theta = problem.sample(jax.random.key(1))
        assert is_sum_of_squares(problem, theta)
        squares = lambda x: jnp.sum(jnp.square(_found(problem, x, theta)))  # noqa: E731
        x, y = jnp.asarray(RNG.normal(size=(2, 4)))
        wanted = problem.loss(x, theta) - problem.loss(y, theta)
        np.testing.assert_allclose(squares(x) - squares(y), wanted, rtol=1e-12)
        slope = jax.grad(lambda x: problem.loss(x, theta))(x)
        np.testing.assert_allclose(jax.grad(squares)(x), slope, rtol=1e-11, atol=1e-14)
    found = find_structure(problem, PriorSet.draw(problem, 5, 0).thetas)
    assert found.squares and "the loss is a sum of squares" in found.words


@pytest.mark.parametrize("name", OTHERS)
def test_other_losses_are_none(name):
    problem = problem_of(OTHERS[name])
    thetas = PriorSet.draw(problem, 5, 0).thetas
    assert not find_structure(problem, thetas).squares


def test_a_part_that_is_not_smooth_makes_it_none():
    problem = problem_of(SUMS["mean"], penalty=L1(0.1))
    assert not find_structure(problem, PriorSet.draw(problem, 5, 0).thetas).squares
