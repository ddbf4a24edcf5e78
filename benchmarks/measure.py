"""Repeated timing, with everything that is to be compared measured in turns.

A machine is rarely left alone. What is compared is therefore measured in the same rounds, one after
the other, together with an anchor: a matrix product, whose speed says what the machine gives at
that moment. Processor time is kept beside the time on the clock, because others who share the
machine lengthen only the latter.
"""

import math
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

Call = Callable[[], Any]

ORDER = 1024
"""Rows and columns of the anchor's matrices."""
ANCHOR = "matrix product"
LEAST = 0.02
"""Seconds that a timed piece lasts at least: calls that are shorter are repeated within it."""


class Spell(NamedTuple):
    """How long one call took."""

    seconds: float
    processor: float


def in_rounds(calls: Mapping[str, Call], rounds: int) -> dict[str, list[Spell]]:
    """Time every call once a round, after a warm-up that compiles; the anchor opens each round.

    Every other round goes backwards, so that nobody is always measured after the same neighbour.
    """
    repeats = {name: _repeats(call) for name, call in calls.items()}
    anchor = matrix_product("float64")
    timed: dict[str, list[Spell]] = {name: [] for name in (ANCHOR, *calls)}
    for number in range(rounds):
        timed[ANCHOR].append(spell(anchor, 1))
        names = list(calls)
        for name in names if number % 2 == 0 else names[::-1]:
            timed[name].append(spell(calls[name], repeats[name]))
    return timed


def spell(call: Call, repeats: int) -> Spell:
    """The mean duration of a few calls in a row."""
    began, processor = time.perf_counter(), time.process_time()
    for _ in range(repeats):
        jax.block_until_ready(call())
    used = time.process_time() - processor
    return Spell((time.perf_counter() - began) / repeats, used / repeats)


def _repeats(call: Call) -> int:
    jax.block_until_ready(call())
    once = spell(call, 1).seconds
    return max(1, math.ceil(LEAST / max(once, 1e-6)))


def matrix_product(precision: str) -> Call:
    """A product of two large matrices, compiled; it takes `2 * ORDER**3` operations."""
    with jax.enable_x64(True):
        matrix = jnp.asarray(jax.random.normal(jax.random.key(0), (ORDER, ORDER)), precision)

        @jax.jit
        def product(a: jax.Array) -> jax.Array:
            return a @ a

        compiled = product.lower(matrix).compile()
    jax.block_until_ready(compiled(matrix))
    return lambda: compiled(matrix)
