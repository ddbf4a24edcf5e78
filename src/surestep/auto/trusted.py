"""The trusted solver: a classical rule that runs long on many instances, within a time.

Instances are solved in batches, side by side. Iterations are made in pieces that last about a
second, so that time can be kept and progress be told.
"""

import dataclasses
import math
import time

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from surestep.base.progress import Bar, Reporter, Silence
from surestep.problem import (
    CompositeProblem,
    Problem,
    Theta,
    count,
    instance,
    point_size,
    working_precision,
)
from surestep.rollout.batched import begin_each, continue_each
from surestep.rollout.loop import Underway
from surestep.rules import LBFGS, FistaWithRestart
from surestep.rules.base import Rule

_PATIENCE = {False: 500, True: 5_000}  # iterations of the solver, smooth or composite
_BATCH = 32  # instances side by side, at most
_FEWEST = 6  # instances side by side, if there are as many
_GRADIENTS = 2.0  # what an iteration is expected to take, in gradients
_LOOK = 50  # after so many iterations it is seen whether anything was gained
_PIECE = 1.0  # seconds that one call of a compiled program may take
_PIECES = 100  # a batch is so small that a time holds at least so many iterations
_AGAIN = 0.8  # the share of what the last batch took that must be left to begin another one
_UNCOMPILED = 1 / 3  # the share of the time that is for iterating, however long compiling took


@dataclasses.dataclass(frozen=True)
class Solved:
    """What the solver found on the first instances of a set, or on all."""

    points: Float[np.ndarray, "instance n"]
    losses: Float[np.ndarray, " instance"]
    starts: Float[np.ndarray, " instance"]
    """The losses that it began with."""
    pace: float
    """Seconds of an iteration on one instance, in a batch."""
    each: float
    """Seconds that the solver took for an instance, in a batch, until nothing was gained."""


def trusted_solver(composite: bool, smoothness: float) -> tuple[Rule, int]:
    """A classical rule that runs long, and how long."""
    rule = FistaWithRestart(1 / smoothness) if composite else LBFGS()
    return rule, _PATIENCE[composite]


def side_by_side(dimension: int, most: int) -> int:
    """How many instances are iterated at once: fewer where points are large, for memory's sake."""
    return max(1, min(most, 2_000_000 // dimension))


def solve_some(
    problem: Problem,
    smoothness: float,
    thetas: Theta,
    seconds: float = math.inf,
    report: Reporter | None = None,
) -> Solved:
    """Solve instances, the first ones first, until nothing is gained or the time is over.

    The first batch is always begun. Another one is if it can be iterated about as long as the last
    one was; those that are not begun are left out.

    **Arguments:**

    - `problem`, `smoothness`: what the solver needs to know.
    - `thetas`: the instances.
    - `seconds`: the time, with compiling.
    - `report`: where progress is told; by default nowhere.
    """
    told = (report or Silence()).stage("survey", count(thetas), "instances")
    with working_precision(problem), told as bar:
        batch = side_by_side(point_size(problem), _BATCH)
        solver = _Solver(problem, smoothness, thetas, batch, bar)
        deadline = time.monotonic() + seconds
        solver.settle(min(_PIECE, seconds / _PIECES))
        deadline = max(deadline, time.monotonic() + _UNCOMPILED * seconds)
        for number in range(solver.batches):
            began = time.monotonic()
            solver.solve(number, deadline)
            now = time.monotonic()
            if now + _AGAIN * (now - began) > deadline:
                break
        return solver.found()


def solve_all(
    problem: Problem, smoothness: float, thetas: Theta, most: int, batch: int = 0
) -> Float[np.ndarray, " instance"]:
    """The losses that the solver has once it gains nothing, after so many iterations at most.

    Each is a function of the instance alone: neither a clock nor the others of a batch decide.
    `batch` instances are solved side by side; 0: as many as usual.
    """
    with working_precision(problem), Silence().stage("minima", 1, "instances") as bar:
        batch = batch or side_by_side(point_size(problem), _BATCH)
        solver = _Solver(problem, smoothness, thetas, batch, bar)
        solver.most = min(solver.most, most)
        for number in range(solver.batches):
            solver.solve(number, math.inf)
        return solver.found().losses


class _Solver:
    """The solver at work on the batches of a set, one after the other."""

    def __init__(
        self, problem: Problem, smoothness: float, thetas: Theta, batch: int, bar: Bar
    ) -> None:
        composite = isinstance(problem, CompositeProblem)
        self.rule, self.most = trusted_solver(composite, smoothness)
        self.problem, self.thetas, self.batch, self.bar = problem, thetas, batch, bar
        self.ended: list[tuple[np.ndarray, ...]] = []
        self.pace = math.inf  # seconds of an iteration
        self.seconds = 0.0  # of all that was solved

    @property
    def batches(self) -> int:
        return math.ceil(count(self.thetas) / self.batch)

    def found(self) -> Solved:
        size = count(self.thetas)
        points, losses, starts = (
            np.concatenate(part)[:size] for part in zip(*self.ended, strict=True)
        )
        each = self.seconds / (self.batch * len(self.ended))
        return Solved(points, losses, starts, self.pace / self.batch, each)

    def settle(self, longest: float) -> None:
        """Take fewer instances side by side if an iteration would take too long, and compile."""
        thetas, took = self._instances(0), 0.0
        for _ in range(2):
            began = time.monotonic()
            jax.block_until_ready(self._begin(thetas))
            took = time.monotonic() - began
        fewer = int(self.batch * longest / (_GRADIENTS * took))
        self.batch = min(self.batch, max(_FEWEST, fewer))
        thetas = self._instances(0)
        underway = self._begin(thetas)
        for _ in range(2):
            began = time.monotonic()
            underway = self._continue(thetas, underway, 1)
            self.pace = time.monotonic() - began

    def solve(self, number: int, deadline: float) -> None:
        """Iterate on a batch until nothing is gained or the time is over."""
        thetas = self._instances(number)
        underway = self._begin(thetas)
        starts = before = np.asarray(underway.progress.value, np.float64)
        losses, left_over, entered = starts, np.ones(len(starts), bool), time.monotonic()
        made = looked = 0
        while made < self.most:
            left = min(_PIECE, deadline - time.monotonic())
            if made and left <= 0:
                break
            most = min(self.most, looked + _LOOK) - made
            # Before anything was timed one iteration shows how long they take.
            piece = int(np.clip(left / self.pace, 1, most))
            began = time.monotonic()
            underway = self._continue(thetas, underway, piece)
            made += piece
            self.pace = (time.monotonic() - began) / piece
            self.bar.advance(0, f"iteration {made} of at most {self.most}")
            if made == looked + _LOOK:
                looked, last = made, before
                before = np.asarray(underway.progress.value, np.float64)
                # Who has gained nothing once is done, whatever the others of the batch do.
                losses = np.where(left_over, before, losses)
                left_over = left_over & (last - before > 1e-13 * np.abs(last))
                if not left_over.any():
                    break
        progress = underway.progress
        losses = np.where(left_over, np.asarray(progress.value, np.float64), losses)
        self.seconds += time.monotonic() - entered
        ended = (progress.state.x, losses, starts)
        self.ended.append(tuple(np.asarray(one, np.float64) for one in ended))
        self.bar.advance(min(self.batch, count(self.thetas) - number * self.batch))

    def _instances(self, number: int) -> Theta:
        # The last batch is filled up, so that one compiled program serves for all sizes.
        first, size = number * self.batch, count(self.thetas)
        return instance(self.thetas, np.minimum(np.arange(first, first + self.batch), size - 1))

    def _begin(self, thetas: Theta) -> Underway:
        return begin_each(self.rule, self.problem, thetas, self.batch)

    def _continue(self, thetas: Theta, underway: Underway, more: int) -> Underway:
        # The number is an array, so that another one compiles nothing.
        piece = jnp.asarray(more, jnp.int32)
        moved = continue_each(self.rule, self.problem, thetas, underway, piece, self.batch)
        return jax.block_until_ready(moved)
