"""Instances drawn from a problem, in the precision that the problem needs.

JAX computes in float32 unless told otherwise. A problem says which precision it needs; surestep
enters JAX's 64-bit context for those that need float64 and leaves the process as it found it.
"""

import dataclasses
from contextlib import AbstractContextManager

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array

from surestep.problem.base import Problem, Theta, concatenated, instance


def working_precision(problem: Problem) -> AbstractContextManager[None]:
    """Inside this context, new arrays have the precision the problem asks for."""
    return jax.enable_x64(problem.precision == "float64")


def draw(problem: Problem, size: int, key: Array, first: int = 0) -> Theta:
    """`size` independent instances, stacked along a new first axis, from number `first` on.

    Instance `i` depends on the key and on `i` alone, to the bit, so a larger set begins with a
    smaller one: all sets are drawn by one program, a few instances at a time. Whether an instance
    has been used before is found out by its bits.
    """
    with working_precision(problem):
        begin = first // _DRAWN_AT_ONCE
        end = max(-(-(first + size) // _DRAWN_AT_ONCE), begin + 1)
        parts = [
            _draw(problem, key, jnp.asarray(number * _DRAWN_AT_ONCE))
            for number in range(begin, end)
        ]
        # The ends are cut off before the parts are put together: large sets are copied once.
        parts[-1] = instance(parts[-1], slice(first + size - (end - 1) * _DRAWN_AT_ONCE))
        parts[0] = instance(parts[0], slice(first - begin * _DRAWN_AT_ONCE, None))
        return concatenated(parts)


@dataclasses.dataclass(frozen=True, eq=False)
class DrawnInChunks:
    """Instances that are drawn when they are asked for."""

    problem: Problem
    size: int
    key: Array
    chunk: int = 1024

    def part(self, first: int, last: int) -> Theta:
        """The instances from `first` to before `last`, stacked."""
        return draw(self.problem, last - first, self.key, first)


_DRAWN_AT_ONCE = 64
"""How many instances the program that draws them makes at a time."""


@eqx.filter_jit
def _draw(problem: Problem, key: Array, first: Array) -> Theta:
    keys = jax.vmap(lambda i: jax.random.fold_in(key, i))(first + jnp.arange(_DRAWN_AT_ONCE))
    return jax.vmap(problem.sample)(keys)
