"""Step sizes for each coordinate, and the classical rules that take them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from support.catalogue import MATRIX, PROBLEMS, WIDE, Bowl
from surestep.base.errors import ConfigurationError
from surestep.base.keys import named_key
from surestep.paper.coordinate_descent import CoordinateDescent
from surestep.paper.lasso import Lasso, LassoSettings
from surestep.paper.quadratics import Quadratics, QuadraticsSettings
from surestep.problem.base import Problem, instance
from surestep.problem.datasets import PriorSet
from surestep.problem.draw import draw
from surestep.rollout.batched import rollouts
from surestep.rollout.loop import advance, begin, rollout
from surestep.rules import (
    ConjugateGradients,
    FistaWithRestart,
    PreconditionedConjugateGradients,
    ScaledFista,
)
from surestep.rules.base import solver_fingerprint
from surestep.train.metric import coordinate_steps, safe_steps

STEPS = np.geomspace(0.1, 3.0, 6)


def exact(values):
    with jax.enable_x64(True):
        return jnp.asarray(values)


def iterates(rule, problem, theta, number):
    progress, points = begin(rule, problem, theta), []
    for _ in range(number):
        progress = advance(rule, problem, theta, progress)
        points.append(np.asarray(progress.state.x))
    return np.array(points)


@pytest.mark.parametrize(("name", "matrix"), [("regression", MATRIX), ("lasso", WIDE)])
def test_for_a_fixed_matrix_steps_are_the_inverse_diagonal(name, matrix):
    data = PriorSet.draw(PROBLEMS[name].problem, 5, 0)
    found = coordinate_steps(PROBLEMS[name].problem, data, block=2)
    np.testing.assert_allclose(found, 1 / np.sum(matrix**2, axis=0), rtol=1e-12)
    assert found.dtype == jnp.float64


@pytest.mark.parametrize("rotated", [False, True])
def test_curvatures_are_averaged_over_the_prior_set(rotated):
    problem = Quadratics.create(QuadraticsSettings(dimension=9, rotated=rotated), 0)
    data = PriorSet.draw(problem, 7, 0)
    squares = np.mean(np.asarray(data.thetas.diagonal) ** 2, axis=0)
    Q = np.eye(9) if problem.basis is None else np.asarray(problem.basis)
    np.testing.assert_allclose(
        coordinate_steps(problem, data), 1 / np.diag(Q.T @ np.diag(squares) @ Q), rtol=1e-9
    )


def test_points_of_any_form_have_flat_steps():
    found = coordinate_steps(Bowl(), PriorSet.draw(Bowl(), 3, 0))
    assert found.shape == (5,)
    assert found[4] == pytest.approx(0.5)


def test_a_coordinate_without_curvature_is_named():
    class Flat(Problem):
        def sample(self, key):
            return jnp.ones(3)

        def start(self, theta):
            return jnp.zeros(3)

        def loss(self, x, theta):
            return jnp.sum((x[:2] - theta[:2]) ** 2)

    with pytest.raises(ConfigurationError, match=r"along 1 of 3 coordinates .* number 2"):
        coordinate_steps(Flat(), PriorSet.draw(Flat(), 2, 0))


def test_safe_steps_touch_the_limit():
    steps = np.asarray(safe_steps(exact(np.geomspace(0.01, 9.0, 16)), exact(WIDE)))
    left = np.linalg.eigvalsh(np.diag(1 / steps) - WIDE.T @ WIDE)
    assert left[0] == pytest.approx(0, abs=1e-9 * left[-1])
    np.testing.assert_allclose(steps / steps[0], np.geomspace(0.01, 9.0, 16) / 0.01)
    same = safe_steps(exact(np.ones(16)), exact(WIDE))
    np.testing.assert_allclose(same, 1 / PROBLEMS["lasso"].smoothness)
    with pytest.raises(ConfigurationError, match="positive"):
        safe_steps(exact(np.zeros(16)), exact(WIDE))


def test_with_a_metric_of_ones_it_is_conjugate_gradients():
    problem = PROBLEMS["regression"].problem
    theta = problem.sample(named_key(0, "theta"))
    plain = iterates(ConjugateGradients(), problem, theta, 8)
    ones = PreconditionedConjugateGradients(exact(np.ones(6)))
    np.testing.assert_array_equal(iterates(ones, problem, theta, 8), plain)


def test_it_is_conjugate_gradients_in_scaled_variables():
    """Textbook CGLS on `A sqrt(M)`, and its points times `sqrt(M)`."""
    problem = PROBLEMS["regression"].problem
    theta = problem.sample(named_key(1, "theta"))
    root = np.sqrt(STEPS)
    A, y, r = MATRIX * root, np.zeros(6), np.asarray(theta)
    s = p = A.T @ r
    expected = []
    for _ in range(5):
        q = A @ p
        alpha = s @ s / (q @ q)
        y, r = y + alpha * p, r - alpha * q
        following = A.T @ r
        p = following + following @ following / (s @ s) * p
        s = following
        expected.append(root * y)
    rule = PreconditionedConjugateGradients(exact(STEPS))
    np.testing.assert_allclose(iterates(rule, problem, theta, 5), expected, rtol=1e-9, atol=1e-12)


def test_a_perfect_metric_solves_in_one_step():
    problem = Quadratics.create(QuadraticsSettings(dimension=12), 0)
    theta = problem.sample(named_key(0, "theta"))
    rule = PreconditionedConjugateGradients(1 / theta.diagonal**2)
    losses = rollout(rule, problem, theta, 1).losses
    assert losses[1] < 1e-20 * losses[0]


def test_the_prior_sets_metric_pays_on_diagonal_quadratics_and_not_on_rotated_ones():
    losses_after = {}
    for rotated in (False, True):
        settings = QuadraticsSettings(dimension=40, rotated=rotated)
        problem = Quadratics.create(settings, 0)
        metric = coordinate_steps(problem, PriorSet.draw(problem, 20, 0))
        thetas = draw(problem, 5, named_key(0, "test"))
        losses = rollouts(PreconditionedConjugateGradients(metric), problem, thetas, 30, 5).losses
        losses_after[rotated] = float(np.median(np.asarray(losses)[:, 30]))
    assert losses_after[False] < 1e-8
    assert losses_after[True] > 1.0


def test_with_equal_steps_it_is_fista_with_restart():
    entry = PROBLEMS["lasso"]
    theta = entry.problem.sample(named_key(2, "theta"))
    step = 1 / entry.smoothness
    plain = iterates(FistaWithRestart(step), entry.problem, theta, 60)
    scaled = iterates(ScaledFista(exact(np.full(16, step))), entry.problem, theta, 60)
    np.testing.assert_allclose(scaled, plain, rtol=1e-9, atol=1e-11)


def test_scaled_fista_is_fista_in_scaled_variables_restarts_included():
    entry = PROBLEMS["lasso"]
    theta = entry.problem.sample(named_key(3, "theta"))
    steps = safe_steps(exact(np.geomspace(0.2, 2.0, 16)), exact(WIDE))
    root, b = np.sqrt(np.asarray(steps)), np.asarray(theta)
    A = WIDE * root
    y = previous = np.ones(16) / root
    t, momentum, restarts, expected = 1.0, 0.0, 0, []
    for _ in range(80):
        beyond = y + momentum * (y - previous)
        moved = beyond - A.T @ (A @ beyond - b)
        following = np.sign(moved) * np.maximum(np.abs(moved) - entry.problem.weight * root, 0)
        t_next = (1 + np.sqrt(1 + 4 * t**2)) / 2
        momentum, t = (t - 1) / t_next, t_next
        if (beyond - following) @ (following - y) > 0:
            momentum, t, restarts = 0.0, 1.0, restarts + 1
        y, previous = following, y
        expected.append(root * y)
    assert restarts > 0
    found = iterates(ScaledFista(steps), entry.problem, theta, 80)
    np.testing.assert_allclose(found, expected, rtol=1e-8, atol=1e-10)


def test_scaled_fista_finds_the_lassos_minimum():
    problem = Lasso.create(LassoSettings(rows=20, columns=60), 0)
    data = PriorSet.draw(problem, 8, 0)
    steps = safe_steps(coordinate_steps(problem, data), problem.matrix)
    minima = CoordinateDescent.of(problem.matrix).minima(data.thetas.target, data.thetas.weight)
    found = rollouts(ScaledFista(steps), problem, data.thetas, 3000, 8).losses[:, -1]
    np.testing.assert_allclose(found, minima, rtol=1e-9)


def test_fingerprints_see_the_metric():
    one, other = (PreconditionedConjugateGradients(exact(STEPS * k)) for k in (1, 1 + 1e-12))
    again = PreconditionedConjugateGradients(exact(STEPS))
    assert solver_fingerprint(one) == solver_fingerprint(again) != solver_fingerprint(other)
    assert solver_fingerprint(one) != solver_fingerprint(ScaledFista(exact(STEPS)))


def test_one_instance_is_as_good_as_a_batch():
    problem = PROBLEMS["regression"].problem
    thetas = draw(problem, 3, named_key(0, "data"))
    rule = PreconditionedConjugateGradients(exact(STEPS))
    together = rollouts(rule, problem, thetas, 4, 3).losses[1]
    np.testing.assert_allclose(together, rollout(rule, problem, instance(thetas, 1), 4).losses)
