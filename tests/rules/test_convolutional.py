"""The learned rule for pictures against a plain NumPy transcription of the paper's figure."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from support.types import unchecked
from surestep.base.keys import named_key
from surestep.rules import Convolutional
from surestep.rules.base import hyper_of
from surestep.rules.blocks import convolve, convolve_by_products

HEIGHT, WIDTH = 7, 5
with jax.enable_x64(True):
    RULE = Convolutional.create(named_key(0, "rule"), HEIGHT, WIDTH)


def transcription(rule, x, gradient, previous):
    """The figure, pixel by pixel: neighbours beyond the edge are those on its other side."""

    def inside(i, size):
        i = abs(i)
        return i if i < size else 2 * (size - 1) - i

    def convolution(pictures, kernel):
        result = np.zeros((kernel.shape[3], HEIGHT, WIDTH))
        for i in range(HEIGHT):
            for j in range(WIDTH):
                for a in range(3):
                    for b in range(3):
                        near = pictures[:, inside(i + a - 1, HEIGHT), inside(j + b - 1, WIDTH)]
                        result[:, i, j] += kernel[a, b].T @ near
        return result

    def unit(v):
        norm = np.linalg.norm(v)
        return (v / norm if norm > 0 else v), norm

    d1, n1 = unit(gradient)
    d2, n2 = unit(x - previous)
    h = np.stack([d.reshape(HEIGHT, WIDTH) for d in (d1, d2, d1 * d2)])
    kernels = [np.asarray(k) for k in rule.direction.kernels]
    for kernel in kernels[:2]:
        h = np.maximum(convolution(h, kernel), 0)
    direction = convolution(h, kernels[2])[0].ravel()
    first, second, last = (np.asarray(group[0]) for group in rule.scale.groups)
    features = np.log(1 + np.array([n1, n2]))
    scale = last @ np.maximum(second @ np.maximum(first @ features, 0), 0)
    return x + scale[0] * direction


@pytest.mark.parametrize("seed", range(3))
@unchecked()
def test_agrees_with_the_transcription(seed):
    rule = Convolutional.create(named_key(seed, "rule"), HEIGHT, WIDTH)
    random = np.random.default_rng(seed)
    x, gradient, previous = random.normal(size=(3, HEIGHT * WIDTH))
    moved, memory = rule.update(jnp.asarray(x), jnp.asarray(1.0), jnp.asarray(gradient), previous)
    expected = transcription(rule, x, gradient, previous)
    assert np.abs(expected - x).max() > 1e-4
    np.testing.assert_allclose(moved - x, expected - x, rtol=1e-10, atol=1e-14)
    np.testing.assert_array_equal(memory, x)


def test_has_the_layers_of_the_figure_and_no_biases():
    assert [k.shape for k in RULE.direction.kernels] == [
        (3, 3, 3, 16), (3, 3, 16, 16), (3, 3, 16, 1),
    ]  # fmt: skip
    assert [w.shape for g in RULE.scale.groups for w in g] == [(8, 2), (8, 8), (1, 8)]
    assert hyper_of(RULE).size == 9 * (48 + 256 + 16) + 16 + 64 + 8


def test_the_first_step_has_no_momentum():
    x, gradient = jnp.linspace(-1.0, 1.0, 35), jnp.linspace(2.0, 3.0, 35)
    memory = RULE.remember(x, jnp.asarray(1.0), gradient)
    moved, _ = RULE.update(x, jnp.asarray(1.0), gradient, memory)
    still = transcription(RULE, np.asarray(x), np.asarray(gradient), np.asarray(x))
    np.testing.assert_allclose(moved, still, rtol=1e-12)


def test_stands_still_where_gradient_and_momentum_vanish():
    zero = jnp.zeros(35)
    moved, _ = RULE.update(zero, jnp.asarray(1.0), zero, zero)
    np.testing.assert_array_equal(moved, zero)


def test_weights_start_as_in_pytorch():
    rule = Convolutional.create(named_key(5, "rule"), HEIGHT, WIDTH, channels=100)
    weights = np.asarray(rule.direction.kernels[1])
    assert np.abs(weights).max() <= 1 / 30
    assert weights.std() == pytest.approx(1 / 30 / np.sqrt(3), rel=0.01)


def drawn(*shape):
    return jnp.asarray(np.random.default_rng(0).normal(size=shape))


def test_both_forms_of_a_convolution_are_the_same():
    picture, kernel = drawn(4, 7, 5), drawn(3, 3, 4, 6)
    first, second = convolve(picture, kernel), convolve_by_products(picture, kernel)
    assert first.shape == (6, 7, 5)
    np.testing.assert_allclose(first, second, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("shape", [(4, 7, 5), (1, 3, 3)])
def test_the_derivatives_of_a_convolution_are_those_of_automatic_differentiation(shape):
    picture, kernel = drawn(*shape), drawn(3, 3, shape[0], 6)

    def derivatives(form):
        weights = drawn(6, *shape[1:])
        return jax.grad(lambda p, k: jnp.sum(weights * form(p, k) ** 2), (0, 1))(picture, kernel)

    pairs = zip(derivatives(convolve), derivatives(convolve_by_products), strict=True)
    for ours, automatic in pairs:
        np.testing.assert_allclose(ours, automatic, rtol=1e-11, atol=1e-11)


def test_preparing_changes_the_form_only_and_batches_too():
    random = np.random.default_rng(0)
    xs, gradients, memories = jnp.asarray(random.normal(size=(3, 4, HEIGHT * WIDTH)))

    def moved(rule):
        return jax.vmap(lambda x, g, m: rule.update(x, jnp.asarray(1.0), g, m)[0])(
            xs, gradients, memories
        )

    np.testing.assert_allclose(moved(RULE.prepare()) - xs, moved(RULE) - xs, rtol=1e-10, atol=1e-14)
    np.testing.assert_array_equal(hyper_of(RULE.prepare()), hyper_of(RULE))
