"""Classical rules against independent implementations and known rates."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from support.catalogue import PROBLEMS, SmallLasso
from surestep.base.keys import named_key
from surestep.paper.quadratics import Quadratics, QuadraticsSettings
from surestep.problem.base import instance
from surestep.problem.draw import draw
from surestep.problem.oracle import Oracle
from surestep.rollout.batched import rollouts
from surestep.rollout.loop import advance, begin, rollout
from surestep.rules import (
    LBFGS,
    Adam,
    ConjugateGradients,
    Fista,
    FistaWithRestart,
    GradientDescent,
    HeavyBall,
    Nesterov,
)


def iterates(rule, problem, theta, number):
    progress, points = begin(rule, problem, theta), []
    for _ in range(number):
        progress = advance(rule, problem, theta, progress)
        points.append(np.asarray(progress.state.x))
    return np.array(points)


def test_fista_agrees_with_scikit_learn():
    entry = PROBLEMS["lasso"]
    thetas = draw(entry.problem, 5, named_key(3, "lasso"))
    for rule in (Fista(1 / entry.smoothness), FistaWithRestart(1 / entry.smoothness)):
        found = rollouts(rule, entry.problem, thetas, 20_000, 5).losses[:, -1]
        for i in range(5):
            minimum = entry.problem.minimum(instance(thetas, i))
            assert abs(float(found[i]) - minimum) < 1e-8


def test_fista_is_the_textbook_recurrence():
    """Momentum scalar from 1, previous point = start: a NumPy transcription."""
    entry = PROBLEMS["lasso"]
    problem: SmallLasso = entry.problem
    theta = problem.sample(named_key(4, "lasso"))
    A, b, step = np.asarray(problem.matrix), np.asarray(theta), 1 / entry.smoothness
    x = np.asarray(problem.start(theta))
    y, t, expected = x, 1.0, []
    for _ in range(12):
        moved = y - step * A.T @ (A @ y - b)
        following = np.sign(moved) * np.maximum(np.abs(moved) - step * problem.weight, 0)
        t_next = (1 + np.sqrt(1 + 4 * t**2)) / 2
        y = following + (t - 1) / t_next * (following - x)
        x, t = following, t_next
        expected.append(x)
    found = iterates(Fista(step), problem, theta, 12)
    np.testing.assert_allclose(found, expected, rtol=1e-11, atol=1e-12)
    restarted = iterates(FistaWithRestart(step), problem, theta, 12)
    np.testing.assert_allclose(restarted[0], expected[0], rtol=1e-11)


def test_nesterov_is_fista_without_a_prox():
    entry = PROBLEMS["regression"]
    theta = entry.problem.sample(named_key(5, "regression"))
    step = 1 / entry.smoothness
    np.testing.assert_array_equal(
        iterates(Nesterov(step), entry.problem, theta, 10),
        iterates(Fista(step), entry.problem, theta, 10),
    )


def test_restart_fires_and_helps_on_a_badly_conditioned_quadratic():
    problem = Quadratics.create(QuadraticsSettings(dimension=20, convexity=(0.1, 0.1)), 0)
    theta = problem.sample(named_key(0, "theta"))
    plain = rollout(Fista(1 / 500), problem, theta, 1500).losses
    restarted = rollout(FistaWithRestart(1 / 500), problem, theta, 1500).losses
    assert restarted[-1] < 1e-3 * plain[-1]


def test_adam_is_optax_adam():
    problem = PROBLEMS["bowl"].problem
    theta = problem.sample(named_key(6, "bowl"))
    oracle = Oracle(problem, theta)
    optimizer = optax.adam(0.05)
    x, state, expected = oracle.start, optimizer.init(oracle.start), []
    for _ in range(20):
        gradient = jax.grad(oracle.unmetered_value)(x)
        change, state = optimizer.update(gradient, state, x)
        x = optax.apply_updates(x, change)
        expected.append(np.asarray(x))
    found = iterates(Adam(0.05), problem, theta, 20)
    np.testing.assert_allclose(found, expected, rtol=1e-13, atol=1e-15)


def test_heavy_ball_has_its_known_rate():
    """The distance shrinks by the square root of the momentum, for L and m attained."""
    settings = QuadraticsSettings(dimension=30, convexity=(1.0, 1.0), smoothness=(100.0, 100.0))
    problem = Quadratics.create(settings, 0)
    theta = problem.sample(named_key(7, "theta"))
    rule = HeavyBall.for_constants(100.0, 1.0)
    solution = np.asarray(theta.target / theta.diagonal)
    points = iterates(rule, problem, theta, 120)
    distance = np.linalg.norm(points - solution, axis=1)
    # Over a stretch, so that the polynomial factor of the double root hardly counts.
    rate = (distance[119] / distance[59]) ** (1 / 60)
    expected = (np.sqrt(100) - 1) / (np.sqrt(100) + 1)
    assert rate == pytest.approx(expected, abs=0.02)


def test_heavy_ball_and_gradient_descent_by_hand():
    entry = PROBLEMS["regression"]
    theta = entry.problem.sample(named_key(8, "regression"))
    A, b = np.asarray(entry.problem.matrix), np.asarray(theta)
    previous = x = np.zeros(6)
    heavy, plain, z = [], [], np.zeros(6)
    for _ in range(6):
        x, previous = x - 0.01 * A.T @ (A @ x - b) + 0.5 * (x - previous), x
        z = z - 0.01 * A.T @ (A @ z - b)
        heavy.append(x)
        plain.append(z)
    found = iterates(HeavyBall(0.01, 0.5), entry.problem, theta, 6)
    np.testing.assert_allclose(found, heavy, rtol=1e-12)
    found = iterates(GradientDescent(0.01), entry.problem, theta, 6)
    np.testing.assert_allclose(found, plain, rtol=1e-12)


def test_conjugate_gradients_end_after_as_many_steps_as_there_are_unknowns():
    entry = PROBLEMS["regression"]
    theta = entry.problem.sample(named_key(9, "regression"))
    result = rollout(ConjugateGradients(), entry.problem, theta, 40)
    exact = np.linalg.lstsq(np.asarray(entry.problem.matrix), np.asarray(theta))[0]
    six = rollout(ConjugateGradients(), entry.problem, theta, 6)
    np.testing.assert_allclose(six.x, exact, rtol=1e-8)
    np.testing.assert_allclose(result.x, exact, rtol=1e-12)  # and it stays there


def test_lbfgs_counts_what_its_line_search_evaluates():
    calls = []
    entry = PROBLEMS["bowl"]

    class Counted(type(entry.problem)):
        def loss(self, x, theta):
            jax.debug.callback(lambda: calls.append(1))
            return super().loss(x, theta)

    problem = Counted()
    theta = problem.sample(named_key(10, "bowl"))
    result = rollout(LBFGS(), problem, theta, 8)
    jax.effects_barrier()
    assert int(result.gradients[-1]) == len(calls)


@pytest.mark.parametrize(
    "rule", [HeavyBall(0.01, 0.5), Fista(0.01), Adam(0.1), LBFGS(), ConjugateGradients()]
)
def test_relocating_moves_the_point_and_its_loss(rule):
    problem = PROBLEMS["regression"].problem
    theta = problem.sample(named_key(11, "regression"))
    progress = advance(rule, problem, theta, begin(rule, problem, theta))
    elsewhere = jnp.linspace(0.0, 1.0, 6)
    oracle = Oracle(problem, theta)
    moved = rule.relocate(oracle, progress.state, elsewhere)
    np.testing.assert_array_equal(moved.x, elsewhere)
    np.testing.assert_allclose(rule.loss(oracle, moved), oracle.value(elsewhere))


def test_a_relocated_heavy_ball_keeps_its_momentum():
    problem = PROBLEMS["regression"].problem
    theta = problem.sample(named_key(12, "regression"))
    rule = HeavyBall(0.01, 0.5)
    oracle = Oracle(problem, theta)
    state = rule.init(oracle, oracle.start)
    elsewhere = jnp.linspace(0.0, 1.0, 6)
    # The start was 0, so the last move was `elsewhere` itself.
    oracle = Oracle(problem, theta)
    moved = rule.step(oracle, rule.relocate(oracle, rule.step(oracle, state), elsewhere))
    gradient = jax.grad(oracle.unmetered_value)(elsewhere)
    np.testing.assert_allclose(moved.x, elsewhere - 0.01 * gradient + 0.5 * elsewhere, rtol=1e-12)
