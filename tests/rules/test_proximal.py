"""The learned rule for the lasso against a plain NumPy transcription of the paper's formulas."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from support.catalogue import PROBLEMS
from surestep.base.errors import ConfigurationError
from surestep.base.keys import named_key
from surestep.paper.lasso import Lasso, LassoSettings
from surestep.problem.base import instance
from surestep.problem.datasets import PriorSet
from surestep.problem.draw import draw
from surestep.rollout.batched import rollouts
from surestep.rules import Proximal
from surestep.rules.base import hyper_of, require_fit, unit, with_hyper
from surestep.train.trajectory import (
    Material,
    TrainingSettings,
    follow,
    start_trajectory,
    training_gradient,
)

PROBLEM = Lasso.create(LassoSettings(rows=6, columns=15, weights=(1.0, 4.0), start=3.0), 0)
with jax.enable_x64(True):
    CREATED = Proximal.create(named_key(0, "rule"), 1 / PROBLEM.smoothness)
    THETAS = draw(PROBLEM, 3, named_key(0, "data"))
    MATERIAL = Material.of(TrainingSettings(), PriorSet(THETAS))
    # Fresh weights hardly correct the step; larger ones show in the loss.
    RULE = with_hyper(CREATED, 1.6 * hyper_of(CREATED))

TEXT = {
    "loss_changes": "raw",
    "third_norm": "point",
    "first_acts_on": "nonzero",
    "gradient_of": "whole",
}


def chosen(**choices):
    return dataclasses.replace(RULE, **choices)


def run(rule):
    return rollouts(rule, PROBLEM, THETAS, 8, 3)


def transcription(rule, theta, x, previous, iterations):
    """The formulas of the appendix, entry by entry; also whether zeros and non-zeros were seen."""
    A, b, lam = np.asarray(PROBLEM.matrix), np.asarray(theta.target), float(theta.weight)
    L = np.linalg.eigvalsh(A.T @ A)[-1]

    def h(z):
        return 0.5 * np.linalg.norm(A @ z - b) ** 2

    def g(z):
        return lam * np.linalg.norm(z, 1)

    def gradient(z):
        smooth = A.T @ (A @ z - b)
        return smooth if rule.gradient_of == "smooth" else smooth + lam * np.sign(z)

    def prox(z):
        return np.array([0.0 if abs(v) <= lam / L else v - lam / L * v / abs(v) for v in z])

    def normalised(v):
        return v / np.linalg.norm(v) if np.any(v) else v

    def network(chain, columns):
        layers = [np.asarray(w) for group in chain.groups for w in group]
        for layer in layers[:-1]:
            columns = np.maximum(layer @ columns, 0)
        return layers[-1] @ columns

    def change(loss):
        after, before = loss(x), loss(previous)
        return after - before if rule.loss_changes == "raw" else np.log((1 + after) / (1 + before))

    seen, losses = set(), [h(x) + g(x)]
    for _ in range(iterations):
        nonzero, zero = (x != 0).astype(float), (x == 0).astype(float)
        seen |= {"zero"} if zero.any() else set()
        seen |= {"nonzero"} if nonzero.any() else set()
        grad, momentum = gradient(x), x - previous
        p = prox(x - grad / L)
        third = x - p if rule.third_norm == "residual" else p
        d1, d2, d3 = normalised(grad), normalised(momentum), normalised(x - p)
        features = [
            np.log(1 + np.linalg.norm(mask * v))
            for v in (grad, momentum, third)
            for mask in (nonzero, zero)
        ]
        features += [change(lambda z: h(z) + g(z)), change(g), change(h)]
        features += [np.sum(nonzero * d1 * d2), np.sum(zero * d1 * d2), lam]
        w = network(rule.weights, np.array(features))
        directions = [mask * d for d in (d1, d2, d3, d1 * d2) for mask in (nonzero, zero)]
        weighted = np.stack([w[i] * directions[i] for i in range(8)])
        out1, out2 = network(rule.corrections, weighted)
        on1, on2 = (zero, nonzero) if rule.first_acts_on == "zero" else (nonzero, zero)
        step = (on1 * out1 - grad + np.linalg.norm(momentum) * on2 * out2) / L
        x, previous = prox(x + step), x
        losses.append(h(x) + g(x))
    return x, np.array(losses), seen


@pytest.mark.parametrize(
    "choices", [{}, *({name: value} for name, value in TEXT.items()), TEXT], ids=str
)
def test_agrees_with_the_transcription(choices):
    rule = chosen(**choices)
    result, start = run(rule), np.asarray(PROBLEM.origin)
    for i in range(3):
        x, losses, seen = transcription(rule, instance(THETAS, i), start, start, 8)
        assert seen == {"zero", "nonzero"}
        np.testing.assert_allclose(result.losses[i], losses, rtol=1e-10)
        np.testing.assert_allclose(result.x[i], x, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("choice", TEXT)
def test_every_difference_between_text_and_code_matters(choice):
    code, text = run(RULE).losses, run(chosen(**{choice: TEXT[choice]})).losses
    assert np.max(np.abs(np.asarray(text / code) - 1)) > 1e-4


def test_has_the_layers_of_the_figure_and_no_biases():
    weights = [w.shape for group in RULE.weights.groups for w in group]
    corrections = [w.shape for group in RULE.corrections.groups for w in group]
    assert weights == [(30, 12), (20, 30), (10, 20), (8, 10)]
    assert corrections == [(20, 8), (20, 20), (20, 20), (2, 20)]
    assert hyper_of(RULE).size == sum(a * b for a, b in weights + corrections)


def test_without_a_correction_it_is_a_proximal_gradient_step():
    plain = run(with_hyper(RULE, 0 * hyper_of(RULE)))
    A, x, step = np.asarray(PROBLEM.matrix), np.asarray(PROBLEM.origin), 1 / PROBLEM.smoothness
    for _ in range(8):
        moved = x - step * A.T @ (A @ x - np.asarray(THETAS.target[0]))
        x = np.sign(moved) * np.maximum(np.abs(moved) - step * float(THETAS.weight[0]), 0)
    np.testing.assert_allclose(plain.x[0], x, rtol=1e-10, atol=1e-12)


def test_one_gradient_an_iteration():
    np.testing.assert_array_equal(run(RULE).gradients[0], np.arange(1, 10))


def test_a_problem_without_a_weight_is_refused():
    for name in ("regression", "lasso"):
        with pytest.raises(ConfigurationError, match=r"Proximal cannot run on .*`weight` of Penal"):
            require_fit(RULE, PROBLEMS[name].problem)


@eqx.filter_jit
def trained(hyper, before, length):
    """The objective and its gradient, on a piece that begins after some iterations."""
    begun = start_trajectory(RULE, PROBLEM, THETAS, jnp.asarray(1))
    if before:
        _, begun = follow(RULE, PROBLEM, THETAS, begun, before)
    value, _, gradient = training_gradient(RULE, PROBLEM, MATERIAL, hyper, begun, length)
    return value, gradient


def test_training_gradients_are_those_of_finite_differences():
    hyper = hyper_of(RULE)
    towards = jax.random.normal(named_key(0, "towards"), hyper.shape)
    after, before = (trained(hyper + s * 1e-6 * towards, 3, 1)[0] for s in (1, -1))
    slope = float(after - before) / 2e-6
    assert abs(slope) > 1e-3
    assert trained(hyper, 3, 1)[1] @ towards == pytest.approx(slope, rel=1e-5)


def test_longer_pieces_can_be_differentiated_from_the_start_on():
    """Where no entry is zero yet: the norms of empty parts must not spoil the derivative."""
    gradient = trained(hyper_of(RULE), 0, 3)[1]
    assert np.all(np.isfinite(gradient)) and np.any(gradient != 0)


def test_a_unit_vector_can_be_differentiated_at_zero():
    direction, norm = unit(jnp.array([3.0, 4.0]))
    np.testing.assert_allclose(direction, [0.6, 0.8])
    assert norm == 5
    direction, norm = unit(jnp.zeros(3))
    assert norm == 0 and np.all(np.asarray(direction) == 0)
    jacobians = jax.jacobian(unit)(jnp.zeros(3))
    assert all(np.all(np.isfinite(one)) for one in jacobians)
