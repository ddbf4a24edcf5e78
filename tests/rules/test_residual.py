"""Residual rules: untrained they are the classical rule to the last bit; trained they bend it."""

import jax.numpy as jnp
import numpy as np
import pytest

from support.catalogue import PROBLEMS
from support.traced import trace
from surestep.base.keys import named_key
from surestep.problem.datasets import PriorSet
from surestep.rollout.loop import rollout
from surestep.rules import Adam, GradientDescent, HeavyBall, QuasiNewton, Residual
from surestep.rules.base import hyper_of, with_hyper
from surestep.train.trajectory import (
    Material,
    TrainingSettings,
    start_trajectory,
    training_gradient,
)

ENTRY = PROBLEMS["regression"]
PROBLEM = ENTRY.problem
STEP = float(1 / ENTRY.smoothness)
BASES = {
    "gradient descent": GradientDescent(STEP),
    "heavy ball": HeavyBall.for_constants(float(ENTRY.smoothness), float(ENTRY.convexity)),
    "Adam": Adam(0.05),
    "quasi-Newton": QuasiNewton(),
}


def theta():
    return PROBLEM.sample(named_key(1, "residual"))


def residual(base, key=0):
    return Residual.around(base, ENTRY.dimension, named_key(key, "rule"))


@pytest.mark.parametrize("name", BASES)
def test_untrained_it_is_the_classical_rule_to_the_last_bit(name):
    base = BASES[name]
    for found, wanted in zip(
        trace(residual(base), PROBLEM, theta(), 25), trace(base, PROBLEM, theta(), 25), strict=True
    ):
        np.testing.assert_array_equal(found, wanted)


def test_gains_and_directions_by_hand():
    """One gradient step: each coordinate by its gain, and the two directions as long as it."""
    gains, weights = np.linspace(0.5, 2.0, 6), np.array([0.3, -0.2, 0.7])
    created = residual(GradientDescent(STEP))
    network = created.gate
    # A last layer without weights answers with its biases.
    biases = (*network.biases[:-1], jnp.asarray(weights).reshape(network.biases[-1].shape))
    gate = type(network)(network.weights, biases)
    rule = Residual(created.base, jnp.asarray(np.log(gains)), gate)
    A, b = np.asarray(PROBLEM.matrix), np.asarray(theta())
    previous = x = np.zeros(6)
    expected = [x]
    for _ in range(4):
        gradient = A.T @ (A @ x - b)
        move, last = -STEP * gradient, x - previous
        onward = last / np.linalg.norm(last) if np.any(last) else last
        bent = 0.7 * onward + 0.2 * gradient / np.linalg.norm(gradient)
        x, previous = x + np.exp(0.3) * gains * move + np.linalg.norm(move) * bent, x
        expected.append(x)
    np.testing.assert_allclose(trace(rule, PROBLEM, theta(), 4)[0], expected, rtol=1e-11)


def test_a_wild_hyper_moves_a_bounded_number_of_times_the_classical_step():
    rule = residual(GradientDescent(STEP))
    wild = Residual(rule.base, jnp.full(6, 1e9), rule.gate)
    x = trace(wild, PROBLEM, theta(), 1)[0]
    gradient = np.asarray(PROBLEM.matrix).T @ np.asarray(theta())
    np.testing.assert_allclose(x[1], np.exp(7.0) * STEP * gradient, rtol=1e-12)


def test_one_gradient_an_iteration():
    assert np.all(np.diff(rollout(residual(Adam(0.1)), PROBLEM, theta(), 4).gradients) == 1)


def test_training_reaches_every_part_of_the_hyper():
    """The gate's last layer and the gains can be moved off the classical rule."""
    rule = residual(HeavyBall(STEP, 0.5))
    data = PriorSet(theta()[None])
    material = Material.of(TrainingSettings(objective="log"), data)
    begun = start_trajectory(rule, PROBLEM, data.thetas, jnp.asarray(0))
    _, _, gradient = training_gradient(rule, PROBLEM, material, hyper_of(rule), begun, 3)
    parts = with_hyper(rule, gradient)
    assert np.all(np.asarray(parts.log_gains) != 0)
    assert np.all(np.asarray(parts.gate.biases[-1]) != 0)
    assert np.any(np.asarray(parts.gate.weights[-1]) != 0)
