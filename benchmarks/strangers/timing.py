"""Times of all solvers, in rounds, alone and in a batch."""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import numpy as np

import surestep as ss
from benchmarks.measure import LEAST, spell
from benchmarks.strangers.counting import separate
from benchmarks.strangers.opponents.libraries import Library
from benchmarks.strangers.opponents.loop import Loop, alone, in_turn, together
from benchmarks.strangers.records import Timed

ROUNDS = 15
SOLVES = 500
"""How many single solves the percentiles of their times are taken from, at least."""
FAR = 5.0
"""Who is so many times slower than the fastest at first sight sits out the rounds."""
OURS, BARE = "surestep", "surestep, as a function"


@dataclasses.dataclass(frozen=True)
class Contender:
    """A solver that is ready to be timed."""

    solver: str
    kind: str
    chosen: str
    needed: float
    one_by_one: Callable[[], Any]
    """Solve all instances one at a time."""
    at_once: Callable[[], Any] | None
    """Solve them as a batch; None if a batch is the same as one at a time."""
    singles: Sequence[Callable[[], Any]] = ()
    """Single solves whose times are looked at one by one."""


def of_loop(name: str, loop: Loop, iterations: int, thetas: Any) -> Contender:
    """Two programs that make exactly so many iterations; the batch's is the quicker of two."""
    single, instances = alone(loop, iterations), separate(thetas)
    with jax.enable_x64(True):
        ways = [way(loop, iterations) for way in (together, in_turn)]
        many = min(ways, key=lambda way: _seconds(lambda: way(thetas)))

    def one_by_one() -> None:
        with jax.enable_x64(True):
            for theta in instances:
                np.asarray(single(theta))

    def at_once() -> None:
        with jax.enable_x64(True):
            np.asarray(many(thetas))

    return Contender(name, "loop", loop.chosen, iterations, one_by_one, at_once)


def _seconds(call: Callable[[], Any]) -> float:
    """The shorter of two calls, after one that compiles."""
    spell(call, 1)
    return min(spell(call, 1).seconds for _ in range(2))


def of_library(library: Library, tolerance: float, thetas: Any) -> Contender:
    """A call for every instance."""
    instances = separate(thetas)

    def one_by_one() -> None:
        with jax.enable_x64(True):
            for theta in instances:
                library.solve(theta, tolerance)

    chosen = f"tolerance {tolerance:.0e}" if tolerance else ""
    return Contender(library.name, "library", chosen, tolerance, one_by_one, None)


def of_ours(solver: ss.Solver, iterations: int, thetas: Any) -> Contender:
    """As a user calls it."""
    singles = [
        functools.partial(solver.solve_one, theta, iterations=iterations)
        for theta in separate(thetas)
    ]

    def one_by_one() -> None:
        for solve in singles:
            solve()

    def at_once() -> None:
        solver.solve(thetas, iterations=iterations)

    return Contender(OURS, "ours", "", iterations, one_by_one, at_once, singles)


def of_bare(single: Any, many: Any, iterations: int, thetas: Any) -> Contender:
    """Our function, compiled as the opponents' loops are."""
    instances = separate(thetas)

    def one_by_one() -> None:
        with jax.enable_x64(True):
            for theta in instances:
                np.asarray(jax.tree.leaves(single(theta))[0])

    def at_once() -> None:
        with jax.enable_x64(True):
            np.asarray(jax.tree.leaves(many(thetas))[0])

    return Contender(BARE, "ours", "", iterations, one_by_one, at_once)


def in_rounds(
    contenders: Iterable[Contender], instances: int, rounds: int = ROUNDS, far: float = FAR
) -> list[Timed]:
    """Time everyone once a round, alone and in a batch; every other round goes backwards."""
    entered = list(contenders)
    looks = [_look(one, instances) for one in entered]
    rivals = [look for one, look in zip(entered, looks, strict=True) if one.kind != "ours"]
    fastest = [min((look[mode] for look in rivals), default=math.inf) for mode in (0, 1)]
    times: dict[int, tuple[list[float], list[float]]] = {
        i: ([], [])
        for i, (one, look) in enumerate(zip(entered, looks, strict=True))
        if one.kind == "ours" or any(look[mode] <= far * fastest[mode] for mode in (0, 1))
    }
    for number in range(rounds):
        for i in list(times) if number % 2 == 0 else list(times)[::-1]:
            one, many = _timed(entered[i], instances, looks[i])
            times[i][0].append(one)
            times[i][1].append(many)
    nothing: tuple[list[float], list[float]] = ([], [])
    return [
        Timed(
            one.solver,
            one.kind,
            one.chosen,
            one.needed,
            *times.get(i, nothing),
            first_look=looks[i],
            latency=latency(one.singles) if one.singles else None,
        )
        for i, one in enumerate(entered)
    ]


def latency(singles: Sequence[Callable[[], Any]], solves: int = SOLVES) -> tuple[float, float]:
    """The 50th and the 99th percentile of the seconds of single solves, all instances in turn."""
    rounds = math.ceil(solves / len(singles))
    times = [spell(solve, 1).seconds for _ in range(rounds) for solve in singles]
    middle, high = np.quantile(times, [0.5, 0.99])
    return float(middle), float(high)


def _look(one: Contender, instances: int) -> tuple[float, float]:
    """Both times, after everything is compiled."""
    one.one_by_one()
    if one.at_once is not None:
        one.at_once()
    return _timed(one, instances, (LEAST, LEAST))


def _timed(one: Contender, instances: int, last: tuple[float, float]) -> tuple[float, float]:
    """Mean seconds of a solve alone, and seconds of the batch; short pieces are repeated."""
    single = spell(one.one_by_one, math.ceil(LEAST / (last[0] * instances))).seconds
    if one.at_once is None:
        return single / instances, single
    return single / instances, spell(one.at_once, math.ceil(LEAST / last[1])).seconds
