"""Losses that are sums of functions of one number each, behind an affine map that is shared.

`loss(x, theta) = sum_i h_i(z_i; theta)` with `z = A x + b(theta)`. That `z` is affine, with
the same `A` for every theta, is proved by the traced loss. That the sum is one of functions of one
number each, and that these are convex, is tried with numbers, not proved.
"""

import dataclasses
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from surestep.problem.base import Problem, Theta, count, instance
from surestep.problem.front_program import FrontProgram, front_program
from surestep.problem.quadratic import flat_smooth, flat_start

WIDEST, LONGEST = 1500, 6000
"""The largest number of variables, and of rows of `A`, with which a front is looked for."""
_TRIED = 4  # instances
_SIZES = (0.0, 1e-3, 0.1, 1.0, 3.0, 10.0, 0.0, 0.0) * 6  # of steps away from the start
_SPREADS = (0.0, 1e-2, 0.3, 1.0, 3.0, 10.0, 100.0, 1e3) * 6  # of steps away from the front there
_CENTRES = np.repeat((1.0, 1.0, 1.0, 0.5, 0.0, 0.0), 8)  # what is left of the front there
_NEAR = 10.0  # spreads up to which everything must be finite
_AT_ONCE = 64  # columns of A


@dataclasses.dataclass(frozen=True)
class AffineFront:
    """What was found. Rows of `A` whose function bends come first; parallel rows are one.

    The traced loss has a front of its own order and scale: its number `j` is `scales[j]` times row
    `places[j]`, plus what does not depend on x. Its number `first[i]` is row `i` itself.
    """

    matrix: Float[np.ndarray, "m n"]
    """`A`."""
    bent: int
    """So many of the functions are not quadratic, or not the same in all instances; the first."""
    curvature: Float[np.ndarray, " m"]
    """The second derivatives of the others, and what those of the first were never below."""
    first: Int[np.ndarray, " m"]
    places: Int[np.ndarray, " size"]
    scales: Float[np.ndarray, " size"]
    convex: bool
    """Whether every function was convex wherever it was tried."""
    typical: float
    """A typical second derivative at the starts, of functions that bend."""

    @property
    def plain(self) -> bool:
        """Whether the traced loss has these very rows, in this order."""
        return np.array_equal(self.first, np.arange(len(self.scales)))


class _Merged(NamedTuple):
    """Which numbers of a front are multiples of which."""

    first: Int[np.ndarray, " m"]
    """The numbers that represent the others."""
    places: Int[np.ndarray, " size"]
    scales: Float[np.ndarray, " size"]


class _Tried(NamedTuple):
    """How wrong the front's loss, gradient and values are, and the curvature of its functions."""

    errors: Float[np.ndarray, "theta point"]
    curvature: Float[np.ndarray, "theta point m"]
    mixed: Float[np.ndarray, "theta point m"]
    """What should be the curvature too, if every function has its own number."""
    finite: np.ndarray


def find_front(problem: Problem, thetas: Theta, tolerance: float) -> AffineFront | None:
    """Look for a front; call it in the problem's working precision."""
    theta = instance(thetas, 0)
    program = front_program(problem, theta)
    size = flat_size(problem, theta)
    if program is None or size > WIDEST or program.size > LONGEST:
        return None
    whole = np.asarray(_columns(problem, theta, np.eye(size, dtype=problem.precision)), np.float64)
    if not np.all(np.isfinite(whole)) or not np.any(whole):
        return None
    merged = _merge(whole)
    rows = whole[merged.first]
    wrong = whole - merged.scales[:, None] * rows[merged.places]
    if np.max(np.abs(wrong)) > tolerance * np.max(np.abs(whole)):
        return None
    tried = _try(problem, _some(thetas), rows, merged)
    near = np.asarray(_SPREADS) <= _NEAR
    if not (np.all(tried.finite[:, near]) and np.all(tried.errors <= tolerance)):
        return None
    if not _separate(tried, tolerance):
        return None
    found = _described(rows, merged, tried, tolerance)
    return found if found.bent else None


def flat_size(problem: Problem, theta: Theta) -> int:
    """The number of variables."""
    return jax.eval_shape(lambda theta: flat_start(problem, theta), theta).size


def _traced(problem: Problem, theta: Theta) -> FrontProgram:
    program = front_program(problem, theta)
    assert program is not None
    return program


@eqx.filter_jit
def _columns(problem: Problem, theta: Theta, unit: Float[Any, "n n"]) -> Float[Array, "size n"]:
    """The linear part of a front."""
    program = _traced(problem, theta)
    _, turned = jax.linearize(lambda x: program.values(x, theta), jnp.zeros_like(unit[0]))
    return jax.lax.map(turned, unit, batch_size=_AT_ONCE).T


def _merge(whole: Float[np.ndarray, "size n"]) -> _Merged:
    """Rows that are multiples of an earlier one; a row of zeros is 0 times the first."""
    norms = np.linalg.norm(whole, axis=1)
    zero = norms <= 1e-14 * np.max(norms)
    leading = np.argmax(np.abs(whole) > 1e-6 * np.maximum(norms, 1e-300)[:, None], axis=1)
    signs = np.sign(whole[np.arange(len(whole)), leading])
    sizes = signs * np.where(zero, 1.0, norms)
    directions = np.round(whole / np.where(sizes == 0, 1.0, sizes)[:, None], 10) + 0.0
    seen: dict[bytes, int] = {}
    first: list[int] = []
    places, scales = np.zeros(len(whole), int), np.zeros(len(whole))
    for number in np.flatnonzero(~zero):
        place = seen.setdefault(directions[number].tobytes(), len(first))
        if place == len(first):
            first.append(int(number))
        places[number], scales[number] = place, sizes[number] / sizes[first[place]]
    return _Merged(np.asarray(first), places, scales)


def _some(thetas: Theta) -> Theta:
    places = np.linspace(0, count(thetas) - 1, min(count(thetas), _TRIED)).astype(int)
    return jax.tree.map(lambda leaf: leaf[places], thetas)


def _try(problem: Problem, thetas: Theta, rows: Float[np.ndarray, "m n"], merged: _Merged) -> Any:
    kind, random = problem.precision, np.random.default_rng(0)
    points, (length, size) = len(_SIZES), rows.shape
    found = _probe(
        problem,
        thetas,
        rows.astype(kind),
        merged._replace(scales=merged.scales.astype(kind)),
        random.normal(size=(count(thetas), points, size)).astype(kind),
        random.normal(size=(count(thetas), points, length)).astype(kind),
        random.choice([-1.0, 1.0], size=length).astype(kind),
    )
    return _Tried(*(np.asarray(part) for part in found))


@eqx.filter_jit
def _probe(
    problem: Problem, thetas: Theta, rows: Any, merged: _Merged, steps: Any, moves: Any, signs: Any
) -> Any:
    sizes, spreads = jnp.asarray(_SIZES, rows.dtype), jnp.asarray(_SPREADS, rows.dtype)
    centres = jnp.asarray(_CENTRES, rows.dtype)

    def of(given: Any) -> Any:
        theta, steps, moves = given
        program, start = _traced(problem, theta), flat_start(problem, theta)
        offset = program.values(jnp.zeros_like(start), theta)
        shift = offset - merged.scales * offset[merged.first][merged.places]

        def outer(z: Array) -> Array:
            return program.outer(theta, merged.scales * z[merged.places] + shift)

        def at(z: Array) -> Any:
            """Value and slope, and how both change along two directions."""
            both, along = jax.linearize(jax.value_and_grad(outer), z)
            return both, jax.vmap(along)(jnp.stack([jnp.ones_like(z), signs]))

        def one(given: Any) -> Any:
            step, size, move, spread, centre = given
            x = start + size * (1 + jnp.max(jnp.abs(start))) * step
            z = rows @ x + offset[merged.first]
            whole = program.values(x, theta)
            moved = centre * z + spread * (1 + jnp.sqrt(jnp.mean(z**2))) * move
            (value, slope), _ = at(z)
            (tried, _), (_, (bend, mixed)) = at(moved)
            wanted, gradient = jax.value_and_grad(flat_smooth(problem, theta))(x)
            # Where terms cancel, rounding is as large as they are.
            terms = 1e-3 * jnp.linalg.norm(rows) * jnp.linalg.norm(slope)
            errors = (
                _relative(merged.scales * z[merged.places] + shift - whole, whole),
                _relative(value - wanted, wanted),
                _relative(slope @ rows - gradient, gradient, terms),
            )
            return jnp.max(jnp.stack(errors)), bend, signs * mixed, jnp.isfinite(tried)

        return jax.lax.map(one, (steps, sizes, moves, spreads, centres))

    return jax.lax.map(of, (thetas, steps, moves))


def _relative(error: Any, wanted: Array, terms: Array | float = 0.0) -> Array:
    size = jnp.linalg.norm(wanted) + terms
    return jnp.linalg.norm(error) / jnp.where(size > 0, size, 1.0)


def _separate(tried: _Tried, tolerance: float) -> bool:
    """Whether a function's slope changed with its own number only."""
    known = np.isfinite(tried.curvature) & np.isfinite(tried.mixed)
    mixed, curvature = (np.where(known, part, 0.0) for part in (tried.mixed, tried.curvature))
    wrong = np.abs(mixed - curvature)
    size = np.max(np.abs(curvature), axis=2, keepdims=True)
    return bool(np.any(size > 0) and np.all(wrong <= tolerance * size))


def _described(
    rows: Float[np.ndarray, "m n"], merged: _Merged, tried: _Tried, tolerance: float
) -> AffineFront:
    """Sort the functions into those that bend and those that are quadratic, and say the rest."""
    known = np.isfinite(tried.curvature)
    low = np.min(np.where(known, tried.curvature, np.inf), axis=1)
    high = np.max(np.where(known, tried.curvature, -np.inf), axis=1)
    close = tolerance * np.maximum(np.max(np.abs(high), axis=0), 1e-300)
    quadratic = np.all(known, axis=(0, 1)) & (np.max(high, axis=0) - np.min(low, axis=0) <= close)
    # A lowest curvature is believed if it was met more than once, in every instance.
    met = np.sum(np.where(known, tried.curvature, np.inf) <= low[:, None] + close, axis=1)
    floor = np.all(met > 1, axis=0) & (np.max(low, axis=0) - np.min(low, axis=0) <= close)
    curvature = np.where(quadratic | floor, np.maximum(np.min(low, axis=0), 0.0), 0.0)
    order = np.argsort(quadratic, kind="stable")
    back = np.argsort(order)
    first = tried.curvature[:, 0][:, ~quadratic]
    positive = first[np.isfinite(first) & (first > 0)]
    return AffineFront(
        matrix=rows[order],
        bent=int(np.sum(~quadratic)),
        curvature=curvature[order],
        first=merged.first[order],
        places=back[merged.places],
        scales=merged.scales,
        convex=bool(np.all(np.min(low, axis=0) >= -close)),
        typical=float(np.median(positive)) if positive.size else 1.0,
    )
