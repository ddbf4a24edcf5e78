"""The learned rule for MNIST against a plain NumPy transcription of the paper's figure."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from surestep.base.keys import named_key
from surestep.rules import Blended
from surestep.rules.base import hyper_of, with_hyper
from surestep.rules.previous import Previous

SIZE = 40

with jax.enable_x64(True):
    CREATED = Blended.create(named_key(0, "rule"), SIZE)
    # Other numbers in every entry, so that none can be taken for another.
    noise = jax.random.normal(named_key(0, "noise"), hyper_of(CREATED).shape)
    RULE = with_hyper(CREATED, hyper_of(CREATED) + 0.3 * noise)


def transcription(rule, x, value, gradient, before, value_before, blended):
    def chain(layers, h):
        for w in layers[:-1]:
            h = np.maximum(w @ h, 0)
        return layers[-1] @ h

    def unit(v):
        norm = np.linalg.norm(v)
        return (v / norm if norm > 0 else v), norm

    weigh = [np.asarray(w) for group in rule.weights.groups for w in group]
    mix = [np.asarray(w) for group in rule.direction.groups for w in group]
    (g1, g2), (m1, m2) = np.asarray(rule.gradient_scales), np.asarray(rule.momentum_scales)
    d1, n1 = unit(gradient)
    d2, n2 = unit(x - before)
    w = chain(weigh, np.log(1 + np.array([n1, n2, value, value_before])))
    factor = np.exp(-((value / 0.01) ** 4))
    first, second = (1 - factor, factor) if blended else (1, 1)
    channels = np.array(
        [
            w[0] * first * g1 * d1,
            w[1] * second * g2 * d1,
            w[2] * d1,
            w[3] * d1 * d2,
            w[4] * d2,
            w[5] * first * m1 * d2,
            w[6] * second * m2 * d2,
        ]
    )
    return x + chain(mix, channels)[0]


@pytest.mark.parametrize("value", [300.0, 0.011, 0.009, 0.004, 1e-9])
@pytest.mark.parametrize("blended", [True, False])
def test_agrees_with_the_transcription(value, blended):
    random = np.random.default_rng(1)
    x, gradient, before = random.normal(size=(3, SIZE))
    rule = dataclasses.replace(RULE, near_end=0.01 if blended else None)
    memory = Previous(jnp.asarray(before), jnp.asarray(2 * value))
    update = eqx.filter_jit(rule.update)
    found, kept = update(jnp.asarray(x), jnp.asarray(value), jnp.asarray(gradient), memory)
    wanted = transcription(rule, x, value, gradient, before, 2 * value, blended)
    assert np.max(np.abs(wanted - x)) > 1e-3
    np.testing.assert_allclose(found, wanted, rtol=1e-10, atol=1e-10)
    np.testing.assert_array_equal(kept.x, x)
    assert kept.value == value


def test_has_the_layers_of_the_figure_and_no_biases():
    weights = [w.shape for group in RULE.weights.groups for w in group]
    direction = [w.shape for group in RULE.direction.groups for w in group]
    assert weights == [(15, 4), (20, 15), (15, 20), (7, 15)]
    assert direction == [(15, 7), (20, 15), (15, 20), (1, 15)]
    assert hyper_of(RULE).size == 765 + 720 + 4 * SIZE
    assert np.all(CREATED.gradient_scales == 1e-3)


def test_huge_losses_leave_derivatives_finite():
    """In single precision the fourth power of a large loss overflows."""
    with jax.enable_x64(False):
        rule = Blended.create(named_key(0, "rule"), SIZE)
        x = jnp.ones(SIZE)

        def moved(value):
            return jnp.sum(rule.update(x, value, x, Previous(0 * x, value))[0])

        value, slope = jax.jit(jax.value_and_grad(moved))(jnp.asarray(1e12))
        assert np.isfinite(value)
        assert np.isfinite(slope)


def test_stands_still_where_gradient_and_momentum_vanish():
    zero = jnp.zeros(SIZE)
    x, _ = RULE.update(zero, jnp.asarray(1.0), zero, Previous(zero, jnp.asarray(1.0)))
    np.testing.assert_array_equal(x, zero)
