"""Denoising small images with a smoothed total variation.

    surestep run examples/06_pictures.py --budget 2m

An instance is a random scene of rectangles and discs, with noise. All pixels are alike, so the
learned metric has one number for each frequency.
"""

import jax
import jax.numpy as jnp

import surestep as ss

SIDE, SHAPES = 32, 6
grid = (jnp.arange(SIDE) + 0.5) / SIDE


def sample(key):
    key_places, key_sizes, key_grey, key_noise = jax.random.split(key, 4)
    places = jax.random.uniform(key_places, (SHAPES, 2))
    sizes = jax.random.uniform(key_sizes, (SHAPES, 2), minval=0.05, maxval=0.3)
    grey = jax.random.uniform(key_grey, (SHAPES,), minval=-0.5, maxval=0.5)
    away = jnp.abs(grid[:, None] - places[:, 0]) / sizes[:, 0]  # [pixel, shape], down
    along = jnp.abs(grid[:, None] - places[:, 1]) / sizes[:, 1]  # the same, to the right
    box = jnp.maximum(away[:, None], along[None]) < 1
    disc = away[:, None] ** 2 + along[None] ** 2 < 1
    scene = 0.5 + jnp.where(jnp.arange(SHAPES) % 2 == 0, box, disc) @ grey
    return scene + 0.1 * jax.random.normal(key_noise, scene.shape)


def loss(x, noisy):
    down, right = x[1:, :-1] - x[:-1, :-1], x[:-1, 1:] - x[:-1, :-1]
    variation = jnp.sum(jnp.sqrt(down**2 + right**2 + 0.01**2))
    return 0.5 * jnp.sum((x - noisy) ** 2) + 0.1 * variation


problem = ss.make_problem(loss, x0=lambda noisy: noisy, sample=sample, name="pictures")

if __name__ == "__main__":
    learned = ss.fit(problem, budget="2m")
    print(learned.certificate)
    print(ss.report.summary(learned))
