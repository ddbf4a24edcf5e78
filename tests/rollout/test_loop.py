"""The one loop: indices, divergence, stopping, batching."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from support.catalogue import PROBLEMS
from support.reach import reach
from surestep.base.keys import named_key
from surestep.problem.base import Problem, instance
from surestep.problem.draw import draw
from surestep.problem.oracle import Oracle
from surestep.rollout.batched import losses_at, rollouts
from surestep.rollout.loop import Status, advance, begin, rollout
from surestep.rules import Coordinatewise, GradientDescent, HeavyBall

REGRESSION = PROBLEMS["regression"].problem
STEP = 1 / PROBLEMS["regression"].smoothness


class Cliff(Problem):
    """x^2 until x leaves the unit interval; there the loss is what the instance says."""

    def sample(self, key):
        return jnp.asarray(jnp.nan)

    def start(self, theta):
        return jnp.asarray(0.9)

    def loss(self, x, theta):
        return jnp.where(jnp.abs(x) <= 1, x**2, theta)


def test_index_n_is_the_loss_after_n_iterations():
    theta = REGRESSION.sample(named_key(0, "theta"))
    result = rollout(GradientDescent(STEP), REGRESSION, theta, 3)
    A, b = np.asarray(REGRESSION.matrix), np.asarray(theta)
    x, expected = np.zeros(6), []
    for _ in range(4):
        expected.append(0.5 * np.sum((A @ x - b) ** 2))
        x = x - STEP * A.T @ (A @ x - b)
    np.testing.assert_allclose(result.losses, expected, rtol=1e-12)


@pytest.mark.parametrize("beyond", [np.nan, np.inf, -np.inf])
def test_divergence_is_final_and_keeps_the_last_finite_point(beyond):
    # The step of 1.2 takes 0.9 to -1.26: over the cliff.
    result = rollout(GradientDescent(1.2), Cliff(), jnp.asarray(beyond), 4)
    assert result.losses[0] == pytest.approx(0.81)
    assert np.all(np.isposinf(result.losses[1:]))
    assert result.status == Status.DIVERGED
    assert result.x == pytest.approx(0.9)


def test_a_diverging_rollout_reaches_nothing_and_does_not_run_on():
    result = reach(GradientDescent(1.2), Cliff(), jnp.asarray(np.nan), 1e-3, 1000)
    assert result.status == Status.DIVERGED
    assert result.iterations == 1
    assert np.isposinf(result.loss)


def test_divergence_of_one_instance_leaves_the_others_alone():
    rule = GradientDescent(1.2)
    thetas = jnp.asarray([np.nan, 2.0, np.nan])
    result = rollouts(rule, Cliff(), thetas, 3, 3)
    assert result.status.tolist() == [Status.DIVERGED, Status.FINISHED, Status.DIVERGED]
    np.testing.assert_array_equal(result.losses[1], rollout(rule, Cliff(), thetas[1], 3).losses)


def test_reach_stops_at_the_first_loss_below_the_accuracy():
    theta = REGRESSION.sample(named_key(0, "theta"))
    rule = GradientDescent(STEP)
    losses = np.asarray(rollout(rule, REGRESSION, theta, 50).losses)
    result = reach(rule, REGRESSION, theta, float(losses[20]) * (1 + 1e-12), 50)
    assert (result.iterations, result.status) == (20, Status.REACHED)
    # One gradient for the start and one for each iteration.
    assert result.gradients == 21
    result = reach(rule, REGRESSION, theta, 0.0, 50)
    assert (result.iterations, result.status) == (50, Status.LIMIT)
    at_once = reach(rule, REGRESSION, theta, 1e9, 50)
    assert (at_once.iterations, at_once.status) == (0, Status.REACHED)


@pytest.mark.parametrize("block", [1, 2, 5, 64])
def test_blocks_do_not_change_the_outcome(block):
    thetas = draw(REGRESSION, 5, named_key(1, "theta"))
    rule = Coordinatewise.create(named_key(0, "rule"))
    together = rollouts(rule, REGRESSION, thetas, 20, block)
    for i in range(5):
        alone = rollout(rule, REGRESSION, instance(thetas, i), 20)
        np.testing.assert_allclose(together.losses[i], alone.losses, rtol=1e-10)
    some = losses_at(rule, REGRESSION, thetas, (0, 7, 20), block)
    np.testing.assert_allclose(some, together.losses[:, jnp.array([0, 7, 20])], rtol=1e-12)


def test_every_status_has_a_message():
    assert len({status.message for status in Status}) == len(Status)


def test_a_batch_with_other_weights_compiles_nothing_new(compilations):
    thetas = draw(REGRESSION, 4, named_key(1, "theta"))
    rollouts(HeavyBall(jnp.asarray(0.1), jnp.asarray(0.2)), REGRESSION, thetas, 5, 4)
    with compilations() as counter:
        rollouts(HeavyBall(jnp.asarray(0.3), jnp.asarray(0.4)), REGRESSION, thetas, 5, 4)
    assert counter.count == 0


def test_training_sees_the_gradient_as_a_constant():
    """d loss(x(h)) / dh uses the first derivative only: no second-order terms."""
    theta = REGRESSION.sample(named_key(2, "theta"))

    def final_loss(step):
        progress = begin(GradientDescent(step), REGRESSION, theta)
        for _ in range(2):
            progress = advance(GradientDescent(step), REGRESSION, theta, progress)
        return progress.loss

    A, b = np.asarray(REGRESSION.matrix), np.asarray(theta)
    x0 = np.zeros(6)
    g0 = A.T @ (A @ x0 - b)
    x1 = x0 - STEP * g0
    g1 = A.T @ (A @ x1 - b)
    x2 = x1 - STEP * g1
    # x2 = x0 - h g0 - h g1 with g0 and g1 held fixed.
    expected = (A.T @ (A @ x2 - b)) @ (-g0 - g1)
    assert jax.grad(final_loss)(STEP) == pytest.approx(expected, rel=1e-12)


def test_questions_inside_a_loop_of_the_rule_are_refused():
    oracle = Oracle(REGRESSION, REGRESSION.sample(named_key(3, "theta")))

    def inside(x, _):
        return x - STEP * oracle.value_and_gradient(x)[1], None

    with pytest.raises(RuntimeError, match="cannot be counted"):
        jax.lax.scan(inside, oracle.start, None, length=2)
    assert oracle.gradients == 0
