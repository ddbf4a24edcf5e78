"""The quasi-Newton rule's direction against a plain transcription and dense BFGS matrices."""

import jax.numpy as jnp
import numpy as np
import pytest

from support.catalogue import PROBLEMS
from support.traced import trace
from surestep.base.keys import named_key
from surestep.rules import QuasiNewton
from surestep.rules.base import hyper_of

PROBLEM = PROBLEMS["regression"].problem
SIZE = 5


def two_loops(pairs, gradient):
    """Nocedal and Wright, algorithm 7.4; pairs oldest first."""
    q, weights = gradient.copy(), []
    for s, y in reversed(pairs):
        weights.append(s @ q / (y @ s))
        q -= weights[-1] * y
    s, y = pairs[-1]
    r = (s @ y) / (y @ y) * q
    for (s, y), weight in zip(pairs, reversed(weights), strict=True):
        r += s * (weight - (y @ r) / (y @ s))
    return -r


def dense(pairs, gradient):
    """The inverse BFGS formula on whole matrices."""
    s, y = pairs[-1]
    n = len(s)
    H = (s @ y) / (y @ y) * np.eye(n)
    for s, y in pairs:
        left = np.eye(n) - np.outer(s, y) / (y @ s)
        H = left @ H @ left.T + np.outer(s, s) / (y @ s)
    return -H @ gradient


@pytest.mark.parametrize("number", [1, 3, 5, 8])
@pytest.mark.parametrize("reference", [two_loops, dense])
def test_the_direction_from_random_pairs(reference, number):
    """More pairs than fit: the oldest are forgotten."""
    random = np.random.default_rng(number)
    root = random.normal(size=(6, 6))
    hessian = root @ root.T + np.eye(6)
    points = np.cumsum(random.normal(size=(number + 1, 6)), axis=0)
    # Nothing is cut: the last move may be exceeded by any factor.
    rule = QuasiNewton(longest=1e9, memory_size=SIZE)
    zero = jnp.zeros(())
    memory = rule.remember(jnp.asarray(points[0]), zero, jnp.asarray(hessian @ points[0]))
    following = jnp.asarray(points[0])
    for point in points[1:]:
        where = jnp.asarray(point)
        following, memory = rule.update(where, zero, jnp.asarray(hessian @ point), memory)
    moves = np.diff(points, axis=0)
    pairs = [(s, hessian @ s) for s in moves][-SIZE:]
    expected = points[-1] + reference(pairs, hessian @ points[-1])
    np.testing.assert_allclose(following, expected, rtol=1e-9, atol=1e-10)


def test_the_first_step_and_the_longest():
    theta = PROBLEM.sample(named_key(1, "quasi"))
    A, b = np.asarray(PROBLEM.matrix), np.asarray(theta)
    x = trace(QuasiNewton(first=0.01, longest=2.0), PROBLEM, theta, 15)[0]
    gradient = -A.T @ b
    np.testing.assert_allclose(x[1], -0.01 * gradient / np.linalg.norm(gradient), rtol=1e-12)
    lengths = np.linalg.norm(np.diff(x, axis=0), axis=1)
    assert np.all(lengths[1:] <= 2.0 * lengths[:-1] * (1 + 1e-12))
    # Cut at first, then not any more.
    assert lengths[1] == pytest.approx(0.02) and lengths[-1] < 1.9 * lengths[-2]


def test_moves_without_positive_curvature_leave_no_pair():
    rule, zero = QuasiNewton(), jnp.zeros(())
    first, second = jnp.zeros(2), jnp.ones(2)
    memory = rule.remember(first, zero, jnp.ones(2))
    # Along the move the gradient falls: a hill.
    following, memory = rule.update(second, zero, jnp.full(2, 0.5), memory)
    assert not np.any(memory.memory.used) and int(memory.memory.next) == 0
    np.testing.assert_allclose(following, second - 0.5, rtol=1e-12)


def test_it_ends_at_the_minimum_of_a_regression():
    theta = PROBLEM.sample(named_key(2, "quasi"))
    _, losses, gradients, _ = trace(QuasiNewton(), PROBLEM, theta, 60)
    assert losses[-1] == pytest.approx(PROBLEM.minimum(theta), rel=1e-12)
    np.testing.assert_array_equal(gradients, np.arange(1, 62))
    assert hyper_of(QuasiNewton()).size == 0
