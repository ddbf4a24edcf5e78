"""One call of a solver: its rollouts, chunk by chunk, and how they ended."""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from surestep.base.errors import ConfigurationError
from surestep.problem import Point, Problem, Theta
from surestep.rollout.batched import Draws, begin_each, continue_each, points_of
from surestep.rollout.loop import Status, Underway
from surestep.rollout.program import Solved
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


@dataclasses.dataclass(frozen=True)
class Call:
    """What stays the same from chunk to chunk."""

    rule: Rule
    problem: Problem
    thetas: Theta
    targets: Float[Array, " instance"] | None
    """Losses below which instances are left alone."""
    draws: Draws | None
    block: int

    def go(
        self, starts: Point | None, steps: int, callback: Callback | None, every: int
    ) -> tuple[np.ndarray, Solved, bool]:
        """The losses at the start, where the rollouts end, and whether the callback stopped."""
        now = begin_each(self.rule, self.problem, self.thetas, starts, self.draws, self.block)
        first = np.asarray(now.progress.loss)
        last, stopped = self._followed(now, steps, callback, every)
        x, losses = jax.tree.map(np.asarray, points_of(self.problem, self.thetas, last))
        gradients = np.asarray(last.progress.evaluations.gradients)
        return first, Solved(x, losses, np.asarray(last.iterations), gradients), stopped

    def _followed(
        self, now: Underway, steps: int, callback: Callback | None, every: int
    ) -> tuple[Underway, bool]:
        if callback is None:
            return self._more(now, steps), False
        made = 0
        while True:
            x, losses = points_of(self.problem, self.thetas, now)
            asked = callback(made, np.asarray(losses), jax.tree.map(np.asarray, x))
            if asked or made == steps:
                return now, bool(asked) and made < steps
            chunk = min(every, steps - made)
            now, made = self._more(now, chunk), made + chunk

    def _more(self, now: Underway, steps: int) -> Underway:
        number = jnp.asarray(steps, jnp.int32)
        return continue_each(
            self.rule,
            self.problem,
            self.thetas,
            now,
            number,
            self.targets,
            self.draws,
            self.block,
        )


def statuses(
    loss: np.ndarray, tolerance: float | None, stopped: bool
) -> Int[np.ndarray, " instance"]:
    """How every instance ended, as numbers of `Status`."""
    end = Status.FINISHED if tolerance is None else Status.LIMIT
    status = np.full(loss.shape, int(Status.STOPPED if stopped else end))
    if tolerance is not None:
        status[loss < tolerance] = Status.REACHED
    # A loss that is infinite once stays so.
    status[~np.isfinite(loss)] = Status.DIVERGED
    return status
