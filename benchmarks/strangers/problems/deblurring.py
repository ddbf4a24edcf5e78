"""Sharp pictures of 128 x 128 from blurred counts of light."""

import jax
import jax.numpy as jnp
import numpy as np

import surestep as ss

SIDE = 128
RIDGE = 1e-2
BACKGROUND = 0.1

_place = np.minimum(np.arange(SIDE), SIDE - np.arange(SIDE))
_bell = np.exp(-0.5 * (_place / 1.5) ** 2)
_bell /= _bell.sum()
BLUR = np.fft.rfft2(np.outer(_bell, _bell)).real


def blur(picture):
    """With a smooth kernel, around the edges."""
    return jnp.fft.irfft2(BLUR * jnp.fft.rfft2(picture), (SIDE, SIDE))


def sample(key):
    """Counts from a smooth random scene with bright spots."""
    k_smooth, k_spots, k_count = jax.random.split(key, 3)
    rough = jax.random.normal(k_smooth, (SIDE, SIDE))
    smooth = jnp.fft.irfft2(BLUR**4 * jnp.fft.rfft2(rough), (SIDE, SIDE))
    spots = jax.random.bernoulli(k_spots, 0.01, (SIDE, SIDE))
    scene = 10 * jnp.exp(smooth / jnp.std(smooth) / 2) + 60 * spots
    mean = jnp.maximum(blur(scene), 0.0) + BACKGROUND
    return jax.random.poisson(k_count, mean, (SIDE, SIDE)).astype(mean.dtype)


def loss(x, theta):
    """Mean deviance of the counts; the picture is the exponential of x, so it is positive."""
    mean = jnp.maximum(blur(jnp.exp(x)), 0.0) + BACKGROUND
    counts = jnp.maximum(theta, 1e-9)
    deviance = mean - theta + theta * (jnp.log(counts) - jnp.log(mean))
    roughness = (x - jnp.roll(x, 1, 0)) ** 2 + (x - jnp.roll(x, 1, 1)) ** 2
    return jnp.mean(deviance) + RIDGE * jnp.mean(roughness)


problem = ss.make_problem(
    loss, x0=np.full((SIDE, SIDE), np.log(10.0)), sample=sample, name="Poisson deblurring"
)
