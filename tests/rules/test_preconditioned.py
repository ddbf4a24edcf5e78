"""The learned rule for networks against a plain NumPy transcription of the paper's figure."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from support.catalogue import Bowl
from surestep.base.keys import named_key
from surestep.paper.network import NetworkSettings, NetworkTraining
from surestep.problem.base import instance
from surestep.problem.draw import draw, working_precision
from surestep.rollout.batched import rollouts
from surestep.rules import Preconditioned
from surestep.rules.base import hyper_of, solver_fingerprint, with_hyper
from surestep.rules.blocks import Perceptron
from surestep.rules.previous import Previous

N = 7


@eqx.filter_jit
def update(rule, x, loss, gradient, previous, previous_loss):
    return rule.update(x, loss, gradient, Previous(previous, previous_loss))


def created(dimension=N, **changes):
    with jax.enable_x64(True):
        return Preconditioned.create(named_key(0, "rule"), dimension, **changes)


def shuffled(rule, scale=0.5):
    """Preconditioners and biases that differ from entry to entry, so that no mix-up hides."""
    with jax.enable_x64(True):
        hyper = hyper_of(rule)
        return with_hyper(rule, hyper + scale * jax.random.normal(named_key(3, "w"), hyper.shape))


def transcription(rule, x, previous, loss, previous_loss, gradient):
    """The figure, layer by layer: the next point."""

    def layers(block, h):
        for i, w in enumerate(block.weights):
            h = np.asarray(w) @ h
            if block.biases:
                h = h + np.asarray(block.biases[i]).reshape(-1, *[1] * (h.ndim - 1))
            if i < len(block.weights) - 1:
                h = np.where(h > 0, h, 0)
        return h

    def split(v):
        norm = np.linalg.norm(v)
        return (v / norm if norm > 0 else v), np.log(1 + norm)

    g, m = np.asarray(rule.gradient_scaling), np.asarray(rule.momentum_scaling)
    d1, n1 = split(gradient)
    d2, n2 = split(x - previous)
    shift = {"log": 0.0, "log1p": 1.0}[rule.loss_scale]
    l1, l2 = np.log(shift + loss), np.log(shift + previous_loss)
    w1, w2, w3, w4 = layers(rule.weighting, np.array([n1, n2, l1, l2, d1 @ d2]))
    channels = np.stack([w1 * g * d1, w2 * d1, w3 * d2, w4 * m * d2, x, previous])
    return x + layers(rule.direction, channels)[0]


@pytest.mark.parametrize("biases", [True, False])
@pytest.mark.parametrize("loss_scale", ["log", "log1p"])
def test_agrees_with_the_transcription(biases, loss_scale):
    rule = shuffled(created(biases=biases, loss_scale=loss_scale))
    random = np.random.default_rng(1)
    for _ in range(5):
        x, previous, gradient = random.normal(size=(3, N))
        loss, before = random.uniform(0.01, 3, 2)
        expected = transcription(rule, x, previous, loss, before, gradient)
        arguments = map(jnp.asarray, (x, loss, gradient, previous, before))
        found, left = update(rule, *arguments)
        assert np.abs(expected - x).max() > 1e-2
        np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-10)
        np.testing.assert_array_equal(left.x, x)
        assert left.value == loss


def test_a_rollout_starts_with_the_start_as_its_own_predecessor():
    problem = NetworkTraining.create(NetworkSettings(points=8, degree=2, hidden=3), 0)
    thetas = draw(problem, 1, named_key(1, "theta"))
    theta = instance(thetas, 0)
    rule = shuffled(created(dimension=13), scale=0.1)
    result = rollouts(rule, problem, thetas, 4, 1)

    inputs, targets = np.asarray(theta.inputs), np.asarray(theta.targets)
    powers = np.stack([inputs, inputs**2])

    def loss_and_gradient(x):
        inner, bias, outer = x[:6].reshape(3, 2), x[6:9], x[9:12]
        before = inner @ powers + bias[:, None]
        hidden = np.where(before > 0, before, 0)
        error = outer @ hidden + x[12] - targets
        slope = 2 * error / error.size
        back = outer[:, None] * slope * (before > 0)
        parts = [(back @ powers.T).ravel(), back.sum(1), hidden @ slope, [slope.sum()]]
        return np.mean(error**2), np.concatenate(parts)

    x = previous = np.concatenate([np.ravel(part) for part in problem.initial])
    loss, gradient = loss_and_gradient(x)
    before, losses = loss, [loss]
    for _ in range(4):
        x, previous = transcription(rule, x, previous, loss, before, gradient), x
        before = loss
        loss, gradient = loss_and_gradient(x)
        losses.append(loss)
    np.testing.assert_allclose(result.losses[0], losses, rtol=1e-10)
    np.testing.assert_allclose(result.x[0], x, rtol=1e-9)


def test_has_the_layers_of_the_figure():
    plain, biased = created(351, biases=False), created(351)
    assert [w.shape for w in plain.weighting.weights] == [(8, 5), (8, 8), (4, 8)]
    wide = [(16, 6), (16, 16), (16, 16), (16, 16), (16, 16), (1, 16)]
    assert [w.shape for w in plain.direction.weights] == wide
    assert hyper_of(plain).size == 136 + 1136 + 2 * 351
    assert [b.shape for b in biased.direction.biases] == [(16,)] * 5 + [(1,)]
    assert hyper_of(biased).size == hyper_of(plain).size + 20 + 81


def test_starts_as_what_reproduces_the_published_result():
    rule = created()
    assert rule.loss_scale == "log" and rule.weighting.biases and rule.direction.biases
    assert np.all(np.asarray(rule.gradient_scaling) == 0.001)
    assert np.all(np.asarray(rule.momentum_scaling) == 0.001)
    assert np.all(np.asarray(created(scaling=0.5).momentum_scaling) == 0.5)
    assert solver_fingerprint(rule) != solver_fingerprint(created(loss_scale="log1p"))


def test_a_loss_of_zero_is_no_trouble():
    x, zero = jnp.ones(N), jnp.zeros(())
    moved, _ = update(created(), x, zero, x, x, zero)
    assert np.all(np.isfinite(moved))


def test_runs_in_single_precision_and_on_other_problems():
    result = rollouts(created(dimension=5), Bowl(), draw(Bowl(), 2, named_key(1, "theta")), 4, 2)
    assert np.all(np.isfinite(result.losses))
    assert np.all(np.diff(np.asarray(result.gradients)) == 1)
    with jax.enable_x64(False):
        rule = Preconditioned.create(named_key(0, "rule"), N)
        one, value = jnp.ones(N), jnp.ones(())
        assert update(rule, one, value, one, one, value)[0].dtype == jnp.float32


def test_layers_start_as_in_pytorch():
    with working_precision(Bowl()):
        block = Perceptron.create((400, 500, 25), named_key(5, "rule"), biases=True)
    for values, inputs in (
        (block.weights[0], 400),
        (block.weights[1], 500),
        (block.biases[0], 400),
    ):
        numbers = np.asarray(values)
        assert np.abs(numbers).max() <= inputs**-0.5
        assert numbers.std() == pytest.approx((3 * inputs) ** -0.5, rel=0.06)
    assert Perceptron.create((4, 3), named_key(5, "rule"), biases=False).biases == ()
