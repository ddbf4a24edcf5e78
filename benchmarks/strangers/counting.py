"""How many iterations, or which tolerance, a solver needs on a set of instances."""

import dataclasses
import math
import operator
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from benchmarks.strangers.opponents.libraries import Library
from benchmarks.strangers.opponents.loop import Loop, Method, begin_all, go_on
from benchmarks.strangers.opponents.menus import Menu

ACCURACIES = (1e-2, 1e-4, 1e-6)
"""Shares of what lies between the loss at the start and the minimum."""
SHARE = 0.9
"""So many of the instances must be within the accuracy."""
CHUNK = 40
AGREEMENT = 1e-8
"""Two references may differ by this share of what lies between start and minimum."""


@dataclasses.dataclass(frozen=True)
class Ground:
    """Instances with their minima: where counting is done."""

    menu: Menu
    thetas: Any
    minima: np.ndarray
    gaps: np.ndarray
    """Losses at the start, less the minima."""

    @property
    def size(self) -> int:
        """How many instances there are."""
        return self.minima.size

    def reached(self, losses: np.ndarray, accuracy: float) -> np.ndarray:
        """Whether enough instances are within; instances are the last axis."""
        with np.errstate(invalid="ignore"):
            within = losses <= self.minima + accuracy * self.gaps
        return np.sum(within, axis=-1) >= math.ceil(SHARE * self.size)

    def sane(self, losses: np.ndarray) -> bool:
        """Whether all losses are finite and none is above the one at the start."""
        return bool(np.all(losses <= self.minima + 1.01 * self.gaps))

    def losses(self, points: Any) -> np.ndarray:
        """At points, stacked and flat."""
        points = np.asarray(points).reshape(self.size, -1)
        return np.asarray(jax.jit(jax.vmap(self.menu.loss))(points, self.thetas))


def ground(menu: Menu, thetas: Any) -> Ground:
    """Solve instances by two trusted ways; that they disagree is an error."""
    number = jax.tree.leaves(thetas)[0].shape[0]
    starts = jax.jit(jax.vmap(menu.start))(thetas)
    bare = Ground(menu, thetas, np.zeros(number), np.ones(number))
    method, iterations = menu.trusted
    loop = method.loops[0]
    states = begin_all(loop.begin, loop.shared, thetas)
    longest, least = math.ceil(iterations / CHUNK), np.full(number, np.inf)
    for _ in range(longest):
        states, losses = _chunk(loop, menu, thetas, states)
        least = np.fmin(least, np.min(losses, axis=0))
    tightest = menu.checker.tolerances[-1]
    points = [menu.checker.solve(one, tightest) for one in separate(thetas)]
    checked = bare.losses(np.stack(points))
    minima = np.fmin(least, checked)
    gaps = bare.losses(starts) - minima
    apart = float(np.max(np.abs(least - checked) / gaps))
    if not apart <= AGREEMENT:
        raise ArithmeticError(
            f"{method.name} and {menu.checker.name} find minima that differ by {apart:.1e} of "
            "what lies between start and minimum"
        )
    return Ground(menu, thetas, minima, gaps)


def separate(thetas: Any) -> list[Any]:
    """Stacked instances, one by one."""
    number = jax.tree.leaves(thetas)[0].shape[0]
    return [jax.tree.map(operator.itemgetter(i), thetas) for i in range(number)]


def _chunk(loop: Loop, menu: Menu, thetas: Any, states: Any) -> tuple[Any, np.ndarray]:
    states, losses = go_on(loop.step, loop.point, menu.loss, CHUNK, loop.shared, thetas, states)
    return states, np.asarray(losses)


def iterations_needed(
    where: Ground,
    loop: Loop,
    limit: int,
    accuracies: Sequence[float] = ACCURACIES,
    steady: bool = False,
) -> list[int | None]:
    """The least iterations after which enough instances are within each accuracy.

    Who must be steady has none if an instance is thrown back behind the start, as too large steps
    do: on other instances it may be too many.
    """
    found: list[int | None] = [None] * len(accuracies)
    states = begin_all(loop.begin, loop.shared, where.thetas)
    for begun in range(0, limit, CHUNK):
        states, losses = _chunk(loop, where.menu, where.thetas, states)
        for a, accuracy in enumerate(accuracies):
            good = np.flatnonzero(where.reached(losses, accuracy))
            if found[a] is None and good.size and begun + good[0] < limit:
                found[a] = begun + int(good[0]) + 1
        if steady and not where.sane(losses[-1]):
            return [None] * len(accuracies)
        if found[-1] is not None or not np.any(np.isfinite(losses[-1])):
            break
    return found


def tuned(where: Ground, method: Method) -> tuple[Loop, int | None]:
    """The choice of numbers that needs the fewest iterations to the highest accuracy.

    Where none gets there, the one with the least losses at the limit of iterations, in the median.
    """
    best, fewest = method.loops[0], None
    for loop in method.loops:
        needed = iterations_needed(where, loop, fewest or method.limit, ACCURACIES[-1:], True)[0]
        if needed is not None and (fewest is None or needed < fewest):
            best, fewest = loop, needed
    if fewest is None:
        best = min(method.loops, key=lambda loop: iterations_rank(where, loop, method.limit))
    return best, fewest


def iterations_rank(where: Ground, loop: Loop, limit: int) -> tuple[float, ...]:
    """Iterations to the accuracies, the highest first; infinite where one is not reached."""
    needed = iterations_needed(where, loop, limit, steady=True)
    return tuple(math.inf if one is None else one for one in reversed(needed))


def tolerances_needed(where: Ground, library: Library) -> list[float | None]:
    """The loosest tolerances with which enough instances are within each accuracy."""
    found: list[float | None] = [None] * len(ACCURACIES)
    instances = separate(where.thetas)
    for tolerance in library.tolerances:
        losses = where.losses(np.stack([library.solve(one, tolerance) for one in instances]))
        for a, accuracy in enumerate(ACCURACIES):
            if found[a] is None and where.reached(losses, accuracy):
                found[a] = tolerance
        if found[-1] is not None:
            break
    return found
