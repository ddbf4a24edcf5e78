"""Floating-point precision as a property of the problem, not a global switch.

JAX computes in float32 unless told otherwise. A problem says which precision it needs; surestep
enters JAX's 64-bit context for those that need float64 and leaves the process as it found it.
"""

import contextlib
from collections.abc import Iterator

import jax

from surestep.problem import Problem


@contextlib.contextmanager
def working_precision(problem: Problem) -> Iterator[None]:
    """Inside this context, new arrays have the precision the problem asks for."""
    with jax.enable_x64(problem.precision == "float64"):
        yield
