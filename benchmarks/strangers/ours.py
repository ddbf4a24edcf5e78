"""The library as a user calls it: fit, then solve."""

import dataclasses
import time
from typing import Any

import jax
import numpy as np

import surestep as ss
from benchmarks.strangers.counting import ACCURACIES, Ground
from surestep.base.errors import SurestepError

LIMIT = 2000
"""More iterations of ours are not tried."""


@dataclasses.dataclass(frozen=True)
class Fitted:
    """What a fit made, and what it took."""

    solver: ss.Solver | None
    """None if the fit was refused."""
    words: str
    wall_seconds: float
    training_seconds: float


def fitted(problem: Any, budget: str, seed: int = 0) -> Fitted:
    """Learn a solver; a refusal is an outcome like others."""
    began = time.monotonic()
    try:
        learned = ss.fit(problem, budget=budget, seed=seed)
    except SurestepError as error:
        return Fitted(None, f"{type(error).__name__}: {error}", time.monotonic() - began, 0.0)
    wall = time.monotonic() - began
    words = f"{type(learned.deployed).__name__}, horizon {learned.solver.horizon}"
    return Fitted(learned.solver, words, wall, learned.training_seconds)


def iterations_of(solver: ss.Solver, where: Ground) -> list[int | None]:
    """The least iterations after which enough instances are within each accuracy."""
    found: list[int | None] = [None] * len(ACCURACIES)

    def look(iteration: int, losses: np.ndarray, points: Any) -> bool:
        del losses  # they are counted from the problem's own lower bound
        flat = np.concatenate([np.reshape(p, (where.size, -1)) for p in jax.tree.leaves(points)], 1)
        with jax.enable_x64(True):
            exact = where.losses(flat)
        for a, accuracy in enumerate(ACCURACIES):
            if found[a] is None and iteration and where.reached(exact, accuracy):
                found[a] = iteration
        return found[-1] is not None

    solver.solve(where.thetas, iterations=LIMIT, callback=look, every=1)
    return found


def bare(solver: ss.Solver, iterations: int) -> tuple[Any, Any]:
    """The compiled function alone, of an instance and of a batch, without what `solve` does."""
    function = solver.function(iterations)
    return jax.jit(function), jax.jit(jax.vmap(function))
