"""Random programs: whatever degrees are proved, numbers agree."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from support import session
from surestep.problem.coordinates import adds_up_by_coordinates
from surestep.problem.degrees import AFFINE, FREE, degrees

N = 4
MATRIX = np.random.default_rng(5).normal(size=(N, N)) + 2 * np.eye(N)
PROGRAMS = 400 if session.ALL else 40

LEAVES = [lambda x, t: x, lambda x, t: x, lambda x, t: t, lambda x, t: jnp.asarray(MATRIX[0])]
ONES = [
    jnp.negative, jnp.square, jnp.abs, jnp.cumsum, jnp.exp, jnp.sort, jnp.round,
    lambda a: a**3, lambda a: a**0, lambda a: jnp.power(a, 2.0), lambda a: jnp.sqrt(a * a),
    lambda a: MATRIX @ a, lambda a: a[::-1], lambda a: a * jnp.sum(a), lambda a: a / 3,
    lambda a: jnp.where(a > 0, a, 2 * a), lambda a: jnp.full(N, jnp.linalg.norm(a)),
    lambda a: jax.lax.fori_loop(0, 2, lambda i, v: MATRIX @ v + a, a),
    lambda a: jax.lax.scan(lambda c, s: (c * s, c + s), 1.0, a)[1],
    lambda a: a.at[1].set(0.0), lambda a: a[np.array([0, 0, 2, 1])],
    lambda a: jnp.real(jnp.fft.fft(a)), lambda a: jnp.abs(jnp.fft.fft(a)),
    lambda a: jnp.linalg.solve(MATRIX, a),
]  # fmt: skip
TWOS = [
    jnp.add, jnp.subtract, jnp.multiply, jnp.maximum,
    lambda a, b: a / (2 + b * b), lambda a, b: jnp.where(b > 0, a, b),
    lambda a, b: a * jnp.vdot(a, b), lambda a, b: jnp.convolve(a, b, "same"),
    lambda a, b: jnp.outer(a, b) @ a, lambda a, b: jnp.linalg.solve(jnp.diag(2 + b * b), a),
    lambda a, b: a[jnp.argsort(b)], lambda a, b: jax.lax.cond(b[0] > 0, lambda: a, lambda: b),
]  # fmt: skip


def program(random, depth):
    if depth == 0 or random.random() < 0.15:
        return LEAVES[random.integers(len(LEAVES))]
    first, second = program(random, depth - 1), program(random, depth - 1)
    if random.random() < 0.5:
        one = ONES[random.integers(len(ONES))]
        return lambda x, t: one(first(x, t))
    # Sums and products, half of the time: what is a polynomial stays one.
    two = TWOS[random.integers(3 if random.random() < 0.5 else len(TWOS))]
    return lambda x, t: two(first(x, t), second(x, t))


def test_random_programs_are_what_they_are_proved_to_be():
    random, proved, apart = np.random.default_rng(0), 0, 0
    for _ in range(PROGRAMS):
        inner = program(random, random.integers(1, 5))

        def function(x, theta, inner=inner):
            return jnp.sum(inner(x, theta))

        found = degrees(function, np.zeros(N), np.zeros(N))
        if adds_up_by_coordinates(function, np.zeros(N), np.zeros(N)):
            apart += 1
            bent = np.asarray(jax.jit(jax.hessian(function))(*random.normal(size=(2, N))))
            outside = np.abs(bent - np.diag(np.diag(bent))).max()
            assert not outside > 1e-9 * (1 + np.abs(bent).max())
        if found is not None:
            proved += 1
            assert_degrees(function, found.powers, random)
    assert min(proved, apart) > PROGRAMS / 5


def assert_degrees(function, powers, random):
    """Differences of high order along lines of x, and along a line of theta, are 0."""
    x, along, one, other = random.normal(size=(4, N))
    thetas = np.stack([one, other, one + 3 * (other - one)])
    evaluate = jax.jit(jax.vmap(jax.vmap(function, (0, None)), (None, 0)))
    for size in (1.0, 30.0):
        points = [x + size * j * along for j in range(4)] + [size * along, -size * along]
        values = np.asarray(evaluate(np.stack(points), thetas))
        if not np.all(np.isfinite(values)):
            continue
        slack = 1e-8 * np.abs(values).max()
        thirds = np.diff(values[:, :4], 3, axis=1)
        assert np.abs(thirds).max() <= slack
        if powers[2] <= FREE:
            bends = np.diff(values[:, :3], 2, axis=1)
            assert np.ptp(bends) <= slack
        if powers[2] <= FREE and powers[1] <= AFFINE:
            first, second, third = values[:, 4] - values[:, 5]
            assert third - first == pytest.approx(3 * (second - first), abs=slack)
