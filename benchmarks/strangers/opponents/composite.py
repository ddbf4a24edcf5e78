"""Textbook loops for least squares with an L1 norm, and for quadratics on the simplex."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.strangers.opponents.loop import Array, Loop, Method, Theta

Gradient = Callable[[Any, Array], Array]
"""Of the smooth part, from what was computed once for an instance."""
Prox = Callable[[Array, Array], Array]

STEPS = (0.8, 1.0, 1.2, 1.4, 1.6, 1.8)
"""Steps as shares of one over the smoothness; FISTA converges up to 1, and often beyond."""


def shrunk(v: Array, level: Array | float) -> Array:
    """Soft thresholding."""
    return v - jnp.clip(v, -level, level)


def on_simplex(v: Array) -> Array:
    """The nearest point of the simplex, by comparing all pairs: quicker than sorting so few."""
    above = v[None, :] >= v[:, None]
    number = jnp.sum(above, axis=1)
    levels = (jnp.sum(jnp.where(above, v[None, :], 0.0), axis=1) - 1) / number
    # The level that belongs to the largest set whose members stay positive is the largest.
    return jnp.maximum(v - jnp.max(levels), 0.0)


def proximal_gradient(
    once: Callable[[Theta], Any], gradient: Gradient, prox: Prox, start: Array, smoothness: float,
    name: str = "proximal gradient", limit: int = 4000,
) -> Method:  # fmt: skip
    """With a fixed step."""

    def begin(shared: Any, theta: Theta) -> Any:
        del shared
        return start, once(theta)

    def step(shared: Any, theta: Theta, state: Any) -> Any:
        del theta
        x, made = state
        return prox(x - shared * gradient(made, x), shared), made

    sizes = [share / smoothness for share in (1.0, 1.5, 1.9)]
    loops = tuple(Loop(begin, step, jnp.asarray(s), chosen=f"step {s:.3g}") for s in sizes)
    return Method(name, loops, limit)


def fista(
    once: Callable[[Theta], Any], gradient: Gradient, prox: Prox, start: Array, smoothness: float,
    name: str = "FISTA with restart", limit: int = 4000,
) -> Method:  # fmt: skip
    """With restart by the gradient."""

    def begin(shared: Any, theta: Theta) -> Any:
        del shared
        return start, start, jnp.ones(()), once(theta)

    def step(shared: Any, theta: Theta, state: Any) -> Any:
        del theta
        x, y, t, made = state
        new = prox(y - shared * gradient(made, y), shared)
        t = jnp.where(jnp.sum((y - new) * (new - x)) > 0, 1.0, t)
        following = (1 + jnp.sqrt(1 + 4 * t**2)) / 2
        return new, new + (t - 1) / following * (new - x), following, made

    sizes = [share / smoothness for share in STEPS]
    loops = tuple(Loop(begin, step, jnp.asarray(s), chosen=f"step {s:.3g}") for s in sizes)
    return Method(name, loops, limit)


def lasso_admm(
    D: np.ndarray,
    weight: float,
    rhos: Sequence[float],
    relaxations: Sequence[float] = (1.0, 1.6, 1.8, 1.9),
) -> list[Method]:
    """By the inverse of the large matrix, and by the two products that the small one needs."""
    rows, atoms = D.shape

    def advance(rho: Array, relaxation: Array, x: Array, z: Array, u: Array) -> Any:
        mixed = relaxation * x + (1 - relaxation) * z + u
        new = shrunk(mixed, weight / rho)
        return new, mixed - new

    def begin(shared: Any, theta: Theta) -> Any:
        inverse = shared[0]
        return jnp.zeros(atoms), jnp.zeros(atoms), inverse @ (D.T @ theta)

    def step(shared: Any, theta: Theta, state: Any) -> Any:
        del theta
        inverse, rho, relaxation = shared
        z, u, constant = state
        x = constant + inverse @ (rho * (z - u))
        return *advance(rho, relaxation, x, z, u), constant

    def begin_small(shared: Any, theta: Theta) -> Any:
        del shared
        return jnp.zeros(atoms), jnp.zeros(atoms), D.T @ theta

    def step_small(shared: Any, theta: Theta, state: Any) -> Any:
        del theta
        small, rho, relaxation = shared
        z, u, constant = state
        q = constant + rho * (z - u)
        x = (q - D.T @ (small @ q)) / rho
        return *advance(rho, relaxation, x, z, u), constant

    large, small = [], []
    for rho in rhos:
        inverse = jnp.asarray(np.linalg.inv(D.T @ D + rho * np.eye(atoms)))
        inner = jnp.asarray(np.linalg.solve(D @ D.T + rho * np.eye(rows), D))
        for relaxation in relaxations:
            numbers = (jnp.asarray(rho), jnp.asarray(relaxation))
            chosen = f"rho {rho:.3g}, relaxation {relaxation}"
            large.append(Loop(begin, step, (inverse, *numbers), chosen=chosen))
            small.append(Loop(begin_small, step_small, (inner, *numbers), chosen=chosen))
    return [Method("ADMM", tuple(large)), Method("ADMM, small factor", tuple(small))]


def simplex_admm(
    H: np.ndarray, rhos: Sequence[float], relaxations: Sequence[float] = (1.0, 1.6, 1.8, 1.9)
) -> list[Method]:
    """Minimise `x H x / 2 - theta x` on the simplex: the sum in one step, the sign in the other.

    Once with clipping, whose points are rescaled in the end, and once with whole projections.
    """
    size = H.shape[0]

    def begin(shared: Any, theta: Theta) -> Any:
        matrix, offset, _, _ = shared
        return jnp.full(size, 1 / size), jnp.zeros(size), matrix @ theta + offset

    def stepping(project: Callable[[Array], Array]) -> Callable:
        def step(shared: Any, theta: Theta, state: Any) -> Any:
            del theta
            matrix, _, rho, relaxation = shared
            z, u, constant = state
            x = constant + matrix @ (rho * (z - u))
            mixed = relaxation * x + (1 - relaxation) * z + u
            new = project(mixed)
            return new, mixed - new, constant

        return step

    def rescaled(shared: Any, theta: Theta, state: Any) -> Array:
        del shared, theta
        return state[0] / jnp.sum(state[0])

    clip, whole = stepping(lambda v: jnp.maximum(v, 0.0)), stepping(on_simplex)
    clipping, projecting = [], []
    for rho in rhos:
        inverse = np.linalg.inv(H + rho * np.eye(size))
        ones = inverse.sum(axis=1)
        offset = ones / ones.sum()
        matrix = inverse - np.outer(offset, ones)
        for relaxation in relaxations:
            shared = tuple(map(jnp.asarray, (matrix, offset, rho, relaxation)))
            chosen = f"rho {rho:.3g}, relaxation {relaxation}"
            clipping.append(Loop(begin, clip, shared, rescaled, chosen))
            projecting.append(Loop(begin, whole, shared, chosen=chosen))
    return [Method("ADMM", tuple(clipping)), Method("ADMM, projecting", tuple(projecting))]


def simplex_active_set(H: np.ndarray, limit: int = 60) -> Method:
    """The primal-dual active set method, which is a semismooth Newton method."""
    size = H.shape[0]

    def solved(theta: Theta, free: Array) -> tuple[Array, Array]:
        matrix = H * free[:, None] * free[None, :] + jnp.diag(1 - free)
        right = jnp.stack([free * theta, free], axis=1)
        both = jax.scipy.linalg.cho_solve(jax.scipy.linalg.cho_factor(matrix), right)
        price = (1 - jnp.sum(both[:, 0])) / jnp.sum(both[:, 1])
        return both[:, 0] + price * both[:, 1], price

    def begin(shared: Any, theta: Theta) -> Any:
        del shared, theta
        return jnp.full(size, 1 / size), jnp.ones(size)

    def step(shared: Any, theta: Theta, state: Any) -> Any:
        _, free = state
        x, price = solved(theta, free)
        rest = H @ x - theta - price
        keep = jnp.where(free > 0, x > 0, rest < 0)
        return x, keep.astype(x.dtype)

    def feasible(shared: Any, theta: Theta, state: Any) -> Array:
        positive = jnp.maximum(state[0], 0.0)
        return positive / jnp.sum(positive)

    return Method("active set", (Loop(begin, step, point=feasible),), limit)


def hinge_admm(
    lead: np.ndarray, reach: np.ndarray, bound: float, hardness: float, effort: float
) -> Method:
    """Steering with soft bounds: the squares in one step, what lies beyond bounds in the other."""
    square = reach.T @ reach
    size = square.shape[0]

    def begin(shared: Any, theta: Theta) -> Any:
        free = lead @ theta
        return jnp.zeros(size), free, jnp.zeros_like(free), free

    def step(shared: Any, theta: Theta, state: Any) -> Any:
        del theta
        inverse, rho, relaxation = shared
        _, s, w, free = state
        x = inverse @ (reach.T @ (rho * (s - free - w) - free))
        mixed = relaxation * (reach @ x + free) + (1 - relaxation) * s + w
        inside = jnp.clip(mixed, -bound, bound)
        s = inside + rho / (rho + hardness) * (mixed - inside)
        return x, s, mixed - s, free

    loops = []
    for rho in np.geomspace(0.1, 30.0, 11):
        inverse = jnp.asarray(np.linalg.inv((1 + rho) * square + effort * np.eye(size)))
        for relaxation in (1.0, 1.6, 1.8, 1.9):
            shared = (inverse, jnp.asarray(rho), jnp.asarray(relaxation))
            chosen = f"rho {rho:.3g}, relaxation {relaxation}"
            loops.append(Loop(begin, step, shared, chosen=chosen))
    return Method("ADMM", tuple(loops))
