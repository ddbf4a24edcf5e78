"""Where candidates meet: instances of the prior set, and the time that an accuracy takes on them.

Part of the instances is for making and training candidates, the others for comparing them.
"""

import dataclasses
import math
import time
from collections.abc import Callable
from typing import Literal

import jax
import numpy as np
from jaxtyping import Float

from surestep.base.clock import Stopwatch
from surestep.problem import Problem, Theta, instance, working_precision
from surestep.rollout.program import Program
from surestep.rules.base import Rule

Use = Literal["single", "batch", "both"]
"""How a solver is going to be used: on one instance at a time, on many at once, or both ways."""

SHARE = 0.9
"""On which share of the instances an accuracy must be reached."""
HELD = 64
"""Instances that candidates are compared on."""
_ALONE = 5  # of these are timed one by one
_LONGEST = 20_000  # iterations of a candidate
_FINE, _COARSE = 20, 8  # iterations are found to one part of so many; if they take long, of fewer
_LONG = 0.05  # seconds of a call that is not repeated: what disturbs is small beside it


@dataclasses.dataclass(frozen=True)
class Entry:
    """A candidate in the race."""

    name: str
    trained: bool
    iterations: float
    """After how many iterations the accuracy is reached on nine of ten instances; infinite if it
    was not."""
    alone: float
    """Seconds of a solve, one at a time."""
    batch: float
    """Seconds of a solve in a batch."""

    def score(self, use: Use) -> float:
        """The time that counts: the geometric mean, where both uses do."""
        if use == "single":
            return self.alone
        return self.batch if use == "batch" else math.sqrt(self.alone * self.batch)


@dataclasses.dataclass(frozen=True)
class Arena:
    """The instances, and what counts as solved."""

    problem: Problem
    makers: Theta
    """Instances that candidates are made from and trained on."""
    minima: Float[np.ndarray, " maker"]
    gaps: Float[np.ndarray, " maker"]
    """How far above the minimum the start is."""
    held: Theta
    """Instances that they are compared on."""
    targets: Float[np.ndarray, " held"]
    """The losses to reach there."""
    seed: int = 0
    """Of the prior set that they all are from."""

    @classmethod
    def of(
        cls,
        problem: Problem,
        thetas: Theta,
        starts: np.ndarray,
        minima: np.ndarray,
        fitted: int,
        accuracy: float,
        seed: int = 0,
        most: int = HELD,
    ) -> "Arena":
        """From solved instances, of which the first `fitted` are for making candidates.

        At most so many of the others are for comparing them.
        """
        gaps = np.maximum(starts - minima, 0.0)
        with working_precision(problem):
            last = min(len(minima), fitted + most)
            held = jax.tree.map(np.asarray, instance(thetas, np.arange(fitted, last)))
            makers = jax.tree.map(np.asarray, instance(thetas, np.arange(fitted)))
        wanted = minima + accuracy * gaps
        # No loss is computed more finely than that.
        fine = 4 * np.finfo(problem.precision).eps * np.abs(minima)
        return cls(
            problem,
            makers,
            minima[:fitted],
            gaps[:fitted],
            held,
            (wanted + fine)[fitted:last],
            seed,
        )

    @property
    def size(self) -> int:
        """How many instances candidates are compared on."""
        return len(self.targets)

    def program(self, rule: Rule) -> Program:
        """A candidate's compiled programs; others of the same form share them."""
        with working_precision(self.problem):
            return Program.of(rule, self.problem, self.size)

    def solved(self, program: Program, iterations: int) -> float:
        """The share of instances that are solved after so many iterations."""
        with working_precision(self.problem):
            losses = program.solve(self.held, iterations, None).loss
        return float(np.mean(losses <= self.targets))

    def iterations(self, program: Program, seconds: float, rival: float = math.inf) -> float:
        """After how many iterations nine of ten instances are solved; infinite if never.

        The search gives up after so many seconds, or once a solve in a batch takes twice as long
        as a rival's. More iterations are taken to solve more instances.
        """
        watch, low, high = Stopwatch(), 0, 1
        while True:
            began = time.perf_counter()
            share = self.solved(program, high)
            took = (time.perf_counter() - began) / self.size
            if share >= SHARE:
                break
            behind = took > 2 * rival and self._again(program, high) > 2 * rival
            if watch.seconds > seconds or behind or high >= _LONGEST:
                return math.inf
            low, high = high, 2 * high
        return self._least(program, low, high, _COARSE if took > _LONG else _FINE)

    def _again(self, program: Program, iterations: int) -> float:
        """Seconds of a solve in a batch: a single look may have met a pause of the machine."""
        began = time.perf_counter()
        self.solved(program, iterations)
        return (time.perf_counter() - began) / self.size

    def fewer(self, program: Program, iterations: float) -> float:
        """The same for a variant: infinite unless it needs fewer than so many."""
        if not math.isfinite(iterations):
            return math.inf
        enough = int(0.97 * iterations) if iterations > 30 else int(iterations) - 1
        if enough < 1 or self.solved(program, enough) < SHARE:
            return math.inf
        low, high = enough // 2, enough
        while low and self.solved(program, low) >= SHARE:
            low, high = low // 2, low
        return self._least(program, low, high)

    def _least(self, program: Program, low: int, high: int, fine: int = _FINE) -> int:
        while high - low > max(1, high // fine):
            middle = (low + high) // 2
            low, high = (low, middle) if self.solved(program, middle) >= SHARE else (middle, high)
        return high

    def batch_seconds(self, program: Program, iterations: int) -> float:
        """Seconds of a solve in a batch."""
        with working_precision(self.problem):
            return _fastest(lambda: program.solve(self.held, iterations, None)) / self.size

    def alone_seconds(self, program: Program, iterations: int) -> float:
        """Seconds of a solve, one at a time."""
        with working_precision(self.problem):
            few = [instance(self.held, slice(i, i + 1)) for i in range(min(_ALONE, self.size))]
            program.solve(few[0], iterations, None)  # compiles
            return float(np.median([_fastest(_call(program, one, iterations)) for one in few]))


def _call(program: Program, thetas: Theta, iterations: int) -> Callable[[], object]:
    return lambda: program.solve(thetas, iterations, None)


def _fastest(call: Callable[[], object], least: float = 0.02) -> float:
    """Seconds of a call: the fastest of three, of more if they are short, of one if it is long."""
    best, spent, made = math.inf, 0.0, 0
    while made < 3 or (spent < least and made < 20):
        began = time.perf_counter()
        call()
        took = time.perf_counter() - began
        best, spent, made = min(best, took), spent + took, made + 1
        if took > _LONG:
            break
    return best
