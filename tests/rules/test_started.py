"""A learned start: where it begins, and that training moves it."""

import jax
import jax.numpy as jnp
import numpy as np

from support.catalogue import PROBLEMS
from support.traced import trace
from surestep.base.keys import named_key
from surestep.problem.datasets import PriorSet
from surestep.problem.draw import draw
from surestep.problem.oracle import Oracle
from surestep.rules import FistaWithRestart, GradientDescent, HeavyBall, Scaled, Started
from surestep.rules.base import hyper_of, with_hyper
from surestep.train.trajectory import (
    Material,
    TrainingSettings,
    follow,
    start_trajectory,
    training_gradient,
)

ENTRY, LASSO = PROBLEMS["regression"], PROBLEMS["lasso"]
PROBLEM = ENTRY.problem
STEP = float(1 / ENTRY.smoothness)
SHIFT = np.random.default_rng(0).normal(size=6)


def test_it_begins_at_the_shifted_start_and_goes_on_as_the_rule_does():
    theta = LASSO.problem.sample(named_key(1, "started"))
    shift = np.random.default_rng(0).normal(size=16)

    class Elsewhere(type(LASSO.problem)):
        def start(self, theta):
            return super().start(theta) + shift

    rule = FistaWithRestart(float(1 / LASSO.smoothness))
    found = trace(Started(rule, jnp.asarray(shift)), LASSO.problem, theta, 10)
    wanted = trace(rule, Elsewhere(LASSO.problem.matrix), theta, 10)
    for ours, theirs in zip(found, wanted, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-12, atol=1e-12)


def test_only_starts_are_shifted():
    rule = Started(HeavyBall(STEP, 0.5), jnp.asarray(SHIFT))
    oracle = Oracle(PROBLEM, PROBLEM.sample(named_key(1, "started")))
    begun, elsewhere = rule.init(oracle, oracle.start), jnp.linspace(0.0, 1.0, 6)
    np.testing.assert_array_equal(rule.point(begun), SHIFT)
    np.testing.assert_array_equal(rule.point(rule.relocate(oracle, begun, elsewhere)), elsewhere)
    np.testing.assert_array_equal(rule.point(rule.resume(oracle, elsewhere)), elsewhere)
    twice = Scaled(rule, jnp.full(6, 0.3))
    np.testing.assert_allclose(twice.resume(oracle, elsewhere).x, elsewhere, rtol=1e-14)


def pieces(settings, rule):
    data = PriorSet(draw(PROBLEM, 2, named_key(2, "started")))
    material = Material.of(settings, data)
    return material, start_trajectory(rule, PROBLEM, data.thetas, jnp.asarray(1))


def test_training_gradients_of_the_shift_are_those_of_finite_differences():
    rule = Started(HeavyBall(STEP, 0.5), jnp.asarray(SHIFT))
    material, begun = pieces(TrainingSettings(objective="log", through=True), rule)
    hyper = hyper_of(rule)
    _, _, gradient = training_gradient(rule, PROBLEM, material, hyper, begun, 4)

    @jax.jit
    def objective(hyper):
        changed = with_hyper(rule, hyper)
        losses, _ = follow(changed, PROBLEM, material.thetas, begun, 4, through=True)
        return material.objective(losses, begun.index)

    slopes = [
        float(objective(hyper.at[i].add(1e-6)) - objective(hyper.at[i].add(-1e-6))) / 2e-6
        for i in range(6)
    ]
    assert np.min(np.abs(slopes)) > 1e-6
    np.testing.assert_allclose(gradient, slopes, rtol=1e-5)


def test_with_constant_gradients_a_shift_moves_the_next_point_as_it_is():
    """One gradient step: its derivative is the gradient at the new point, and no Hessian."""
    rule = Started(GradientDescent(STEP), jnp.asarray(SHIFT))
    material, begun = pieces(TrainingSettings(objective="sum"), rule)
    _, _, gradient = training_gradient(rule, PROBLEM, material, hyper_of(rule), begun, 1)
    A, b = np.asarray(PROBLEM.matrix), np.asarray(material.thetas[1])
    x = SHIFT - STEP * A.T @ (A @ SHIFT - b)
    np.testing.assert_allclose(gradient, A.T @ (A @ x - b), rtol=1e-10)


def test_later_pieces_do_not_move_the_start():
    rule = Started(HeavyBall(STEP, 0.5), jnp.asarray(SHIFT))
    material, begun = pieces(TrainingSettings(objective="log"), rule)
    _, later, _ = training_gradient(rule, PROBLEM, material, hyper_of(rule), begun, 2)
    assert int(later.age) == 2
    _, _, gradient = training_gradient(rule, PROBLEM, material, hyper_of(rule), later, 2)
    np.testing.assert_array_equal(gradient, np.zeros(6))
