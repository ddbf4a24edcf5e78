"""What training makes small: objectives in closed form, distances, and exact derivatives."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array

from support.catalogue import PROBLEMS
from surestep.base.errors import ConfigurationError
from surestep.base.keys import named_key
from surestep.problem.base import instance
from surestep.problem.datasets import PriorSet
from surestep.problem.draw import draw
from surestep.problem.oracle import Oracle
from surestep.rules import GradientDescent, Safeguarded, Scaled
from surestep.rules.base import GradientRule, hyper_of, with_hyper
from surestep.train.trajectory import (
    Material,
    TrainingSettings,
    follow,
    piece_objective,
    start_trajectory,
    training_gradient,
)

ENTRY = PROBLEMS["bowl"]
PROBLEM = ENTRY.problem


class Momentum(GradientRule):
    """Heavy ball whose two numbers, and a gain for each coordinate, are learned."""

    numbers: Array
    gains: Array

    def remember(self, x, value, gradient):
        return x

    def update(self, x, value, gradient, memory):
        step, momentum = self.numbers
        return x - step * self.gains * gradient + momentum * (x - memory), x


with jax.enable_x64(True):
    RULE = Momentum(jnp.asarray([0.1, 0.5]), jnp.linspace(0.5, 1.5, 5))
    THETAS = draw(PROBLEM, 3, named_key(1, "trajectory"))
    MINIMA = np.array([PROBLEM.minimum(instance(THETAS, i)) for i in range(3)])
DATA = PriorSet(THETAS, MINIMA)


def test_objectives_against_numpy():
    losses = np.array([3.0, 0.5, 2e-9, 0.0])
    found = piece_objective(jnp.asarray(losses), "log", 1e-8)
    assert found == pytest.approx(np.mean(np.log(losses[1:] + 1e-8)), rel=1e-14)
    assert piece_objective(jnp.asarray(losses), "sum") == pytest.approx(losses[1:].sum())
    assert piece_objective(jnp.asarray(losses), "ratio") == pytest.approx(0.5 / 3 + 4e-9, rel=1e-12)
    gradient = jax.grad(lambda v: piece_objective(v, "log", 1e-8))(jnp.asarray(losses))
    np.testing.assert_allclose(gradient, [0, *(1 / 3 / (losses[1:] + 1e-8))], rtol=1e-12)


@pytest.mark.parametrize("objective", ["ratio", "log", "sum"])
def test_distances_are_counted_from_the_minimum_of_the_instance(objective):
    settings = TrainingSettings(objective=objective, distances=True, floor=1e-6)
    material = Material.of(settings, DATA)
    for i in range(3):
        losses = MINIMA[i] + np.array([4.0, 1.0, 0.01])
        found = material.objective(jnp.asarray(losses), jnp.asarray(i))
        wanted = {
            "ratio": 1 / 4 + 0.01,
            "log": np.mean(np.log(np.array([1.0, 0.01]) + 1e-6)),
            "sum": 1.01,
        }
        assert found == pytest.approx(wanted[objective], rel=1e-9)
    # Rounding below the minimum is no distance.
    below = material.objective(jnp.asarray(MINIMA[0] - np.array([0.0, 1e-9])), jnp.asarray(0))
    assert below == pytest.approx({"ratio": 0.0, "sum": 0.0, "log": np.log(1e-6)}[objective])


def test_without_distances_minima_do_not_matter():
    plain = Material.of(TrainingSettings(objective="sum"), PriorSet(THETAS))
    known = Material.of(TrainingSettings(objective="sum"), DATA)
    losses = jnp.asarray([3.0, 2.0])
    assert plain.objective(losses, jnp.asarray(1)) == 2.0
    assert known.objective(losses, jnp.asarray(1)) == 2.0


def test_distances_without_minima_are_refused():
    with pytest.raises(ConfigurationError, match=r"training\.distances needs the minima.*Exper"):
        Material.of(TrainingSettings(distances=True), PriorSet(THETAS))


@pytest.mark.parametrize("floor", [0.0, -1e-9, float("nan")])
def test_a_floor_that_is_none_is_refused(floor):
    with pytest.raises(ConfigurationError, match=r"training\.floor must be positive"):
        TrainingSettings(floor=floor).validate()


@eqx.filter_jit
def trained(hyper, material, before, length):
    """The objective and its gradient, on a piece that begins after some iterations."""
    begun = start_trajectory(RULE, PROBLEM, THETAS, jnp.asarray(2))
    _, begun = follow(RULE, PROBLEM, THETAS, begun, before)
    value, _, gradient = training_gradient(RULE, PROBLEM, material, hyper, begun, length)
    return value, gradient


def through(**changes):
    return Material.of(TrainingSettings(objective="log", through=True, **changes), DATA)


@pytest.mark.parametrize("distances", [False, True])
def test_derivatives_of_a_whole_piece_are_those_of_finite_differences(distances):
    hyper, material = hyper_of(RULE), through(distances=distances, floor=1e-3)
    gradient = trained(hyper, material, 2, 4)[1]
    slopes = [
        float(
            trained(hyper.at[i].add(1e-6), material, 2, 4)[0]
            - trained(hyper.at[i].add(-1e-6), material, 2, 4)[0]
        )
        / 2e-6
        for i in range(hyper.size)
    ]
    assert np.max(np.abs(slopes)) > 0.1
    np.testing.assert_allclose(gradient, slopes, rtol=1e-5, atol=1e-7)


@eqx.filter_jit
def constant_gradients(hyper, length):
    """The last loss after some steps, and its derivative with gradients held constant."""
    theta = instance(THETAS, 2)
    oracle = Oracle(PROBLEM, theta)

    def last(hyper):
        rule = with_hyper(RULE, hyper)
        x = memory = oracle.start
        for _ in range(length):
            slope = jax.lax.stop_gradient(jax.grad(oracle.unmetered_value)(x))
            x, memory = rule.update(x, jnp.zeros(()), slope, memory)
        return oracle.unmetered_value(x)

    return jax.value_and_grad(last)(hyper)


def test_without_through_gradients_are_constants():
    """By hand: a sum of one loss at the end of a piece, gradients inside stopped."""
    material = Material.of(TrainingSettings(objective="sum"), DATA)
    hyper = hyper_of(RULE)
    # The sum over three iterations, less the sum over two, is the last loss.
    begun = start_trajectory(RULE, PROBLEM, THETAS, jnp.asarray(2))

    @eqx.filter_jit
    def summed(length):
        value, _, gradient = training_gradient(RULE, PROBLEM, material, hyper, begun, length)
        return value, gradient

    (three, slope_three), (two, slope_two) = summed(3), summed(2)
    value, slope = constant_gradients(hyper, 3)
    assert three - two == pytest.approx(float(value))
    np.testing.assert_allclose(slope_three - slope_two, slope, rtol=1e-10)
    exact = trained(hyper, through(), 0, 3)[1]
    stopped = trained(hyper, Material.of(TrainingSettings(objective="log"), DATA), 0, 3)[1]
    assert np.max(np.abs(exact - stopped)) > 1e-3


def test_training_sees_the_rule_without_its_guard():
    watched = Safeguarded(RULE, GradientDescent(1e-9), factor=1.0, patience=1, decrease=0.99)
    found = start_trajectory(watched, PROBLEM, THETAS, jnp.asarray(0))
    plain = start_trajectory(RULE, PROBLEM, THETAS, jnp.asarray(0))
    losses, _ = follow(watched, PROBLEM, THETAS, found, 4)
    wanted, _ = follow(RULE, PROBLEM, THETAS, plain, 4)
    np.testing.assert_array_equal(losses, wanted)


def test_the_first_piece_of_a_scaled_rule_keeps_the_problems_start():
    """Scales change the coordinates, not the point that a rollout begins at."""
    rule = Scaled.around(RULE, 5)
    begun = start_trajectory(rule, PROBLEM, THETAS, jnp.asarray(0))
    other = with_hyper(rule, hyper_of(rule).at[-5:].set(0.4))

    @jax.jit
    def first_loss(hyper):
        return follow(with_hyper(rule, hyper), PROBLEM, THETAS, begun, 1)[0][0]

    start = float(PROBLEM.loss(PROBLEM.start(None), instance(THETAS, 0)))
    assert first_loss(hyper_of(other)) == pytest.approx(start, rel=1e-12)
