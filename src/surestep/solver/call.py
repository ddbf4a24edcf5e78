"""One call of a solver that looks on the way, from pause to pause, and how instances ended."""

import math
from collections.abc import Callable

import jax
import numpy as np
from jaxtyping import Int

from surestep.base.errors import ConfigurationError
from surestep.problem import Point, Problem, count
from surestep.rollout.crowd import Crowd, Setting, Table
from surestep.rollout.loop import Status
from surestep.rollout.program import Program, Solved, split
from surestep.rollout.watched import Given
from surestep.rules import Checked
from surestep.rules.base import Rule

Callback = Callable[[int, np.ndarray, Point], bool | None]
"""Given the iterations made so far, the losses and the points; True asks to stop."""


def checked_steps(
    horizon: int,
    iterations: int | None,
    tolerance: float | None = None,
    every: int | None = None,
) -> int:
    """How many iterations a call makes, if its numbers can work."""
    steps = horizon if iterations is None else iterations
    if steps < 1:
        raise ConfigurationError(f"iterations must be at least 1, not {steps}")
    if every is not None and every < 1:
        raise ConfigurationError(f"every must be at least 1, not {every}")
    if tolerance is not None and not tolerance > 0:
        raise ConfigurationError(f"tolerance must be positive, not {tolerance}")
    return steps


class Call:
    """Instances under way, as far as somebody wants to look."""

    def __init__(
        self,
        program: Program,
        rule: Rule,
        problem: Problem,
        given: Given,
        target: float | None,
    ) -> None:
        """Instances with their starts and hypers, and the loss below which they are left alone."""
        self._program = program
        self._checked = rule if isinstance(rule, Checked) else None
        arrays, rest = program.arrays, program.rest
        if given.hypers is not None:
            # Drawn rules are prepared by themselves.
            arrays, rest = split((rule, problem))
        self._setting = Setting(arrays, rest, target, program.block)
        self._given = given
        everyone = np.arange(count(given.thetas))
        part = "whole" if self._checked is None else "before"
        self._crowd = Crowd(self._setting, part, given, everyone)
        self._late: tuple[np.ndarray, Crowd] | None = None
        """Who goes on after the check, with the fallback."""

    def go(
        self, steps: int, callback: Callback | None, every: int
    ) -> tuple[np.ndarray, Solved, bool]:
        """The losses at the start, where the instances end, and whether the callback stopped."""
        made, stopped = (steps, False) if callback is None else (0, False)
        table = self._until(made)
        while callback is not None:
            points = jax.tree.map(np.copy, table.x)
            stopped = bool(callback(made, np.copy(table.loss), points)) and made < steps
            if stopped or made == steps:
                break
            made = min(made + every, steps)
            table = self._until(made)
        ended = Solved(table.x, table.loss, table.iterations, table.gradients)
        return self.first(), ended, stopped

    def first(self) -> np.ndarray:
        """The losses at the start."""
        if self._crowd.first is None:
            self._crowd.until(0)
        assert self._crowd.first is not None
        return self._crowd.first

    def _until(self, bound: int) -> Table:
        """Make so many iterations in all; a rule with a check is checked on the way."""
        if self._checked is None:
            return self._crowd.until(bound)
        at = self._checked.at
        table = self._crowd.until(min(bound, at - 1))
        if bound < at:
            return table
        if self._late is None:
            self._late = self._check(table, at)
        places, late = self._late
        if bound == at or not places.size:
            return table
        later = late.until(bound).rows(places)
        now, before = table.copy(), table.rows(places)
        now.put(
            places,
            later._replace(
                # Those that were helped have made more than the clock says.
                iterations=later.iterations + before.iterations - at,
                gradients=later.gradients + before.gradients,
            ),
        )
        return now

    def _check(self, table: Table, at: int) -> tuple[np.ndarray, Crowd]:
        """The check on all who are left, and help; who goes on with the fallback, from there."""
        target = self._setting.target
        if self._crowd.batches:
            places, shown, passed = self._crowd.check()
            table.put(places, shown)
            found = Solved(table.x, table.loss, table.iterations, table.gradients)
            if not passed.all():
                found = self._program.helped(self._given.thetas, found, places[~passed])
            table.x, table.loss, table.iterations, table.gradients, _ = found
            if target is not None:
                table.settled[places] = table.loss[places] < target
        going_on = np.flatnonzero(~table.settled)
        given = Given(self._given.thetas, None, table.x, None)
        return going_on, Crowd(self._setting, "after", given, going_on, at)


_FINISHED, _LIMIT, _STOPPED, _DIVERGED = (
    int(status) for status in (Status.FINISHED, Status.LIMIT, Status.STOPPED, Status.DIVERGED)
)


def statuses(
    loss: np.ndarray, tolerance: float | None, stopped: bool
) -> Int[np.ndarray, " instance"]:
    """How every instance ended, as numbers of `Status`."""
    if tolerance is None and loss.size == 1 and not stopped:  # the shorter way
        return np.array([_FINISHED if math.isfinite(loss[0]) else _DIVERGED])
    end = _FINISHED if tolerance is None else _LIMIT
    status = np.full(loss.shape, _STOPPED if stopped else end)
    if tolerance is not None:
        status[loss < tolerance] = Status.REACHED
    # A loss that is infinite once stays so.
    lost = ~np.isfinite(loss)
    if lost.any():
        status[lost] = _DIVERGED
    return status
