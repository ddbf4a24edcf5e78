"""Textbook loops for smooth losses."""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.strangers.opponents.loop import Array, Loop, Method, Smooth, Theta

HALVINGS = 25
"""A line search halves its step at most so often."""
ARMIJO = 1e-4

Solve = Callable[[Array, Theta, Array], Array]
"""The Newton direction's system: solve `H(x) d = g`."""


def gradient_descent(family: Smooth, steps: Sequence[float], limit: int = 4000) -> Method:
    """With a fixed step."""

    def begin(shared: Any, theta: Theta) -> Any:
        del shared
        return (family.start(theta),)

    def step(shared: Any, theta: Theta, state: Any) -> Any:
        (x,) = state
        return (x - shared * family.gradient(x, theta),)

    loops = tuple(Loop(begin, step, jnp.asarray(s), chosen=f"step {s:.3g}") for s in steps)
    return Method("gradient descent", loops, limit)


def heavy_ball(
    family: Smooth,
    steps: Sequence[float],
    momenta: Sequence[float] = (0.7, 0.9, 0.97),
    limit: int = 4000,
) -> Method:
    """With a fixed step and a fixed momentum."""

    def begin(shared: Any, theta: Theta) -> Any:
        del shared
        x = family.start(theta)
        return x, x

    def step(shared: Any, theta: Theta, state: Any) -> Any:
        x, before = state
        size, momentum = shared
        return x - size * family.gradient(x, theta) + momentum * (x - before), x

    loops = tuple(
        Loop(begin, step, (jnp.asarray(s), jnp.asarray(m)), chosen=f"step {s:.3g}, momentum {m}")
        for s, m in itertools.product(steps, momenta)
    )
    return Method("heavy ball", loops, limit)


def nesterov(
    family: Smooth,
    steps: Sequence[float],
    metric: tuple[Callable[[Theta], Any], Callable[[Any, Array], Array]] | None = None,
    name: str = "Nesterov with restart",
    limit: int = 4000,
) -> Method:
    """With a fixed step, in a metric if one is given, and restart by the gradient.

    A metric is what is computed once for an instance, and how its inverse acts on a gradient.
    """
    once, apply = metric or (lambda theta: (), lambda made, g: g)

    def begin(shared: Any, theta: Theta) -> Any:
        del shared
        x = family.start(theta)
        return x, x, jnp.ones(()), once(theta)

    def step(shared: Any, theta: Theta, state: Any) -> Any:
        x, y, t, made = state
        gradient = family.gradient(y, theta)
        new = y - shared * apply(made, gradient)
        t = jnp.where(jnp.sum(gradient * (new - x)) > 0, 1.0, t)
        following = (1 + jnp.sqrt(1 + 4 * t**2)) / 2
        return new, new + (t - 1) / following * (new - x), following, made

    loops = tuple(Loop(begin, step, jnp.asarray(s), chosen=f"step {s:.3g}") for s in steps)
    return Method(name, loops, limit)


def backtracked(
    family: Smooth, theta: Theta, x: Array, f: Array, g: Array, d: Array
) -> tuple[Array, Array, Array]:
    """Step 1 along a direction, halved until the loss decreases enough; stay if it never does."""
    slope = jnp.sum(g * d)

    def enough(t: Array, value: Array) -> Array:
        return value <= f + ARMIJO * t * slope

    def go_on(state: Any) -> Array:
        t, number, value, _ = state
        return ~enough(t, value) & (number < HALVINGS)

    def shorter(state: Any) -> Any:
        t, number, _, _ = state
        return t / 2, number + 1, *family.both(x + t / 2 * d, theta)

    first = (jnp.ones(()), jnp.zeros((), int), *family.both(x + d, theta))
    t, _, value, gradient = jax.lax.while_loop(go_on, shorter, first)
    good = enough(t, value)
    return (
        jnp.where(good, x + t * d, x),
        jnp.where(good, value, f),
        jnp.where(good, gradient, g),
    )


def lbfgs(
    family: Smooth,
    memories: Sequence[int] = (5, 10, 20),
    firsts: Sequence[float] = (1.0,),
    metric: tuple[Callable[[Theta], Any], Callable[[Any, Array], Array]] | None = None,
    name: str = "L-BFGS",
    limit: int = 1000,
) -> Method:
    """With a bounded line search; the first step is `first / norm(g)`, or the metric's.

    A metric is what is computed once for an instance, and how its inverse acts on a vector: the
    matrix that updates begin with.
    """
    once, apply = metric or (lambda theta: (), lambda made, v: v)
    plain = metric is None

    def looped(memory: int) -> tuple[Any, Any]:
        def begin(shared: Any, theta: Theta) -> Any:
            x = family.start(theta)
            f, g = family.both(x, theta)
            scale = shared / jnp.linalg.norm(g) if plain else shared
            none = jnp.zeros((memory, x.size))
            return x, f, g, none, none, jnp.zeros(memory), scale, once(theta)

        def step(shared: Any, theta: Theta, state: Any) -> Any:
            del shared
            x, f, g, S, Y, inverse, scale, made = state
            d = -two_loops(g, S, Y, inverse, lambda v: scale * apply(made, v))
            x1, f1, g1 = backtracked(family, theta, x, f, g, d)
            s, y = x1 - x, g1 - g
            product = jnp.sum(s * y)
            good = product > 1e-14 * jnp.sum(y * y)
            inverse = jnp.where(good, _pushed(inverse, 1 / product), inverse)
            S = jnp.where(good, _pushed(S, s), S)
            Y = jnp.where(good, _pushed(Y, y), Y)
            scale = jnp.where(good, product / jnp.sum(y * apply(made, y)), scale)
            return x1, f1, g1, S, Y, inverse, scale, made

        return begin, step

    loops = []
    for memory in memories:
        begin, step = looped(memory)
        loops += [
            Loop(begin, step, jnp.asarray(first), chosen=f"memory {memory}, first {first:.3g}")
            for first in firsts
        ]
    return Method(name, tuple(loops), limit)


def _pushed(rows: Array, new: Array) -> Array:
    """The newest first; the oldest is dropped."""
    return jnp.concatenate([new[None], rows[:-1]])


def two_loops(
    g: Array, S: Array, Y: Array, inverse: Array, middle: Callable[[Array], Array]
) -> Array:
    """The inverse of L-BFGS's matrix times a vector; empty rows change nothing."""
    shares = []
    for i in range(S.shape[0]):
        share = inverse[i] * jnp.sum(S[i] * g)
        g = g - share * Y[i]
        shares.append(share)
    d = middle(g)
    for i in reversed(range(S.shape[0])):
        d = d + (shares[i] - inverse[i] * jnp.sum(Y[i] * d)) * S[i]
    return d


def newton(
    family: Smooth,
    solve: Solve,
    name: str = "Newton",
    limit: int = 200,
    starts: Sequence[Callable[[Theta], Array]] = (),
) -> Method:
    """Damped by the line search; other starts than the family's may be tried."""

    def beginning(start: Callable[[Theta], Array]) -> Callable[[Any, Theta], Any]:
        def begin(shared: Any, theta: Theta) -> Any:
            del shared
            x = start(theta)
            return x, *family.both(x, theta)

        return begin

    def step(shared: Any, theta: Theta, state: Any) -> Any:
        del shared
        x, f, g = state
        return backtracked(family, theta, x, f, g, -solve(x, theta, g))

    return Method(name, tuple(Loop(beginning(s), step) for s in (family.start, *starts)), limit)


def positive_solve(matrix: Array, g: Array) -> Array:
    """For a positive definite matrix, by Cholesky."""
    return jax.scipy.linalg.cho_solve(jax.scipy.linalg.cho_factor(matrix), g)


def conjugate(product: Callable[[Array], Array], g: Array, iterations: int) -> Array:
    """A fixed number of conjugate gradients on `H d = g`."""

    def body(_: Any, state: Any) -> Any:
        d, r, p, rr = state
        hp = product(p)
        size = rr / jnp.maximum(jnp.sum(p * hp), 1e-300)
        r = r - size * hp
        new = jnp.sum(r * r)
        return d + size * p, r, r + new / jnp.maximum(rr, 1e-300) * p, new

    first = (jnp.zeros_like(g), g, g, jnp.sum(g * g))
    return jax.lax.fori_loop(0, iterations, body, first)[0]
