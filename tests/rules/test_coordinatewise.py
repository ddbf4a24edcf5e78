"""The learned rule for quadratics against a plain NumPy transcription of the paper's figure."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from surestep.base.keys import named_key
from surestep.paper.quadratics import Quadratics, QuadraticsSettings
from surestep.rollout.loop import rollout
from surestep.rules import Coordinatewise
from surestep.rules.base import hyper_of, with_hyper
from surestep.rules.previous import Previous

with jax.enable_x64(True):
    RULE = Coordinatewise.create(named_key(0, "rule"))


def transcription(rule, diagonal, target, iterations):
    """The figure, layer by layer: nothing is multiplied together beforehand."""
    direction = [np.asarray(w) for group in rule.direction.groups for w in group]
    scale = [np.asarray(w) for group in rule.scale.groups for w in group]

    def chain(layers, h):
        for i, w in enumerate(layers):
            h = w @ h
            # ReLU after the 1st, 3rd and 5th of six linear layers.
            if i in (0, 2, 4):
                h = np.maximum(h, 0)
        return h

    def unit(v):
        norm = np.linalg.norm(v)
        return (v / norm if norm > 0 else v), norm

    def loss(x):
        return 0.5 * np.sum((diagonal * x - target) ** 2)

    x = previous = np.zeros_like(target)
    losses = [loss(x)]
    for _ in range(iterations):
        d1, n1 = unit(diagonal * (diagonal * x - target))
        d2, n2 = unit(x - previous)
        step = chain(scale, np.log(1 + np.array([n1, n2, loss(x), loss(previous)])))
        move = chain(direction, np.stack([d1, d2, d1 * d2]))[0]
        x, previous = x + step[0] * move, x
        losses.append(loss(x))
    return x, losses


def test_agrees_with_the_transcription():
    problem = Quadratics.create(QuadraticsSettings(dimension=12), 0)
    theta = problem.sample(named_key(1, "theta"))
    # Fresh weights hardly move; larger ones make steps that show in the loss.
    rule = with_hyper(RULE, 2.2 * hyper_of(RULE))
    result = rollout(rule, problem, theta, 10)
    x, losses = transcription(rule, np.asarray(theta.diagonal), np.asarray(theta.target), 10)
    assert np.all(np.abs(np.diff(losses)) > 1e-3 * losses[0])
    np.testing.assert_allclose(result.losses, losses, rtol=1e-9)
    np.testing.assert_allclose(result.x, x, rtol=1e-8)


def test_has_the_layers_of_the_figure_and_no_biases():
    direction = [w.shape for group in RULE.direction.groups for w in group]
    scale = [w.shape for group in RULE.scale.groups for w in group]
    assert direction == [(16, 3), (16, 16), (16, 16), (16, 16), (16, 16), (1, 16)]
    assert scale == [(8, 4), (8, 8), (8, 8), (8, 8), (8, 8), (1, 8)]
    assert hyper_of(RULE).size == 1088 + 296
    assert [len(group) for group in RULE.direction.groups] == [1, 2, 2, 1]


def test_the_previous_loss_is_a_feature_of_its_own():
    x, gradient = jnp.linspace(-1.0, 1.0, 5), jnp.linspace(2.0, 3.0, 5)
    moves = [
        RULE.update(x, jnp.asarray(10.0), gradient, Previous(x / 2, jnp.asarray(before)))[0]
        for before in (10.0, 1000.0)
    ]
    assert not np.allclose(moves[0], moves[1], rtol=1e-6)


def test_remembers_the_point_and_the_loss_it_came_from():
    x = jnp.ones(5)
    _, memory = RULE.update(x, jnp.asarray(4.0), x, Previous(x, jnp.asarray(9.0)))
    np.testing.assert_array_equal(memory.x, x)
    assert memory.value == 4.0


def test_stands_still_where_gradient_and_momentum_vanish():
    zero = jnp.zeros(5)
    x, _ = RULE.update(zero, jnp.asarray(1.0), zero, Previous(zero, jnp.asarray(1.0)))
    np.testing.assert_array_equal(x, zero)


def test_preparing_changes_the_form_only():
    prepared = RULE.prepare()
    assert hyper_of(prepared).size < hyper_of(RULE).size
    x, gradient = jnp.linspace(-1.0, 1.0, 5), jnp.linspace(2.0, 3.0, 5)
    memory = Previous(x / 2, jnp.asarray(1.0))
    np.testing.assert_allclose(
        prepared.update(x, jnp.asarray(2.0), gradient, memory)[0],
        RULE.update(x, jnp.asarray(2.0), gradient, memory)[0],
        rtol=1e-12,
    )


def test_the_hyper_goes_out_and_in_again():
    hyper = hyper_of(RULE)
    doubled = with_hyper(RULE, 2 * hyper)
    np.testing.assert_array_equal(hyper_of(doubled), 2 * hyper)
    assert jax.tree.structure(doubled) == jax.tree.structure(RULE)


def test_weights_start_as_in_pytorch():
    rule = Coordinatewise.create(named_key(5, "rule"), channels=400)
    weights = np.asarray(rule.direction.groups[1][0])
    assert np.abs(weights).max() <= 1 / 20
    assert weights.std() == pytest.approx(1 / 20 / np.sqrt(3), rel=0.01)
