"""Tuning: numbers that are chosen on the prior set.

An opponent's, so that the comparison is fair, and a safeguard's.
"""

import dataclasses
import logging
from collections.abc import Callable, Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Scalar

from surestep.base.errors import ConfigurationError
from surestep.problem import PriorSet, Problem, Theta, instance, working_precision
from surestep.rollout.batched import losses_at
from surestep.rules.base import Rule
from surestep.rules.safeguarded import SafeguardSettings
from surestep.train.steps import merit
from surestep.train.task import Task

log = logging.getLogger("surestep")

_CONTINUED = 3  # so often a range is continued

Family = Callable[[Scalar], Rule]
"""Rules that differ in one number: `Adam`, as a function of its learning rate, is one."""


GUARDS = tuple(
    SafeguardSettings(factor, patience)
    for patience in (100, 30, 10)
    for factor in (1000.0, 100.0, 10.0)
)
"""Safeguards to choose from, the most trusting first."""


@dataclasses.dataclass(frozen=True)
class TuningSettings:
    """Which values are tried for one number of a classical rule."""

    lowest: float = 1e-4
    """The smallest value."""
    highest: float = 1.0
    """The largest value."""
    values: int = 100
    """How many values are tried, in geometric progression."""
    instances: int = 64
    """How many instances, the first of the prior set, decide."""

    def validate(self, where: str) -> None:
        """Refuse a range without an inside; `where` is the settings' own name."""
        if not 0 < self.lowest < self.highest:
            raise ConfigurationError(
                f"{where}.lowest must be positive and below {where}.highest, not {self.lowest} "
                f"and {self.highest}"
            )
        if self.values < 3 or self.instances < 1:
            raise ConfigurationError(
                f"{where}.values must be at least 3 and {where}.instances at least 1, not "
                f"{self.values} and {self.instances}"
            )

    @property
    def grid(self) -> Float[np.ndarray, " value"]:
        """The values."""
        return np.geomspace(self.lowest, self.highest, self.values)


def tuned(
    where: str,
    settings: TuningSettings,
    family: Family,
    problem: Problem,
    data: PriorSet,
    horizon: int,
    block: int,
) -> float:
    """The value whose rule has the smallest mean loss at the horizon.

    A better value may lie beyond an end of the range. So where the best one is an end, or where all
    diverge, the range is continued there; `where` is the settings' name for messages.
    """
    settings.validate(where)

    def tried(values: Float[np.ndarray, " value"]) -> Float[np.ndarray, " value"]:
        return mean_losses(family, values, problem, data, settings.instances, horizon, block)

    grid = settings.grid
    losses, ratio = tried(grid), settings.highest / settings.lowest
    for _ in range(_CONTINUED):
        best = int(np.argmin(losses))
        if 0 < best < len(grid) - 1:
            break
        # Smaller values diverge less: where all do, the first one counts as the best.
        lower = best == 0
        ends = (grid[0] / ratio, grid[0]) if lower else (grid[-1], grid[-1] * ratio)
        more = np.geomspace(*ends, settings.values)
        more = more[:-1] if lower else more[1:]
        pair = ((more, grid), (tried(more), losses))
        grid, losses = (np.concatenate(two if lower else two[::-1]) for two in pair)
        log.warning(
            "%s: the best value is an end of the range, which is continued from %g to %g",
            *(where, grid[0], grid[-1]),
        )
    best = int(np.argmin(losses))
    if np.isfinite(losses[best]) and best in (0, len(grid) - 1):
        raise ConfigurationError(
            f"the best value after {horizon} iterations is {grid[best]:g}, an end of the range of "
            f"{where}, which was continued {_CONTINUED} times: is there a best one at all?"
        )
    if not np.isfinite(losses[best]):
        raise ConfigurationError(
            f"every value from {where}.lowest ({grid[0]:g}) to {where}.highest ({grid[-1]:g}) "
            "diverges: try smaller ones"
        )
    return float(grid[best])


def mean_losses(
    family: Family,
    values: Float[np.ndarray, " value"],
    problem: Problem,
    data: PriorSet,
    instances: int,
    horizon: int,
    block: int,
) -> Float[np.ndarray, " value"]:
    """The mean loss of every value's rule at the horizon; infinite where an instance diverges.

    One compiled program tries all values; `block` rollouts make a batch.
    """
    size = min(instances, data.size)
    with working_precision(problem):
        grid = jnp.asarray(values, jnp.result_type(float))
        thetas = instance(data.thetas, jnp.arange(size))
        together = max(1, block // size)
        means = _mean_losses(family, grid, problem, thetas, horizon, block, together)
        return np.asarray(means, np.float64)


def tuned_guard(
    rule: Rule,
    fallback: Rule,
    task: Task,
    data: PriorSet,
    choices: Sequence[SafeguardSettings] = GUARDS,
) -> SafeguardSettings:
    """The safeguard around a trained rule that does best on the prior set.

    Of equally good ones the first counts, which by default trusts the rule for the longest. Every
    choice is a program of its own, so this takes seconds. Build the run's rule with the outcome, or
    give it to the next run as `--guard.factor` and `--guard.patience`.
    """
    if not choices:
        raise ConfigurationError("there is no safeguard to choose from")
    for choice in choices:
        choice.validate()
    with working_precision(task.problem):
        merits = [merit(task, choice.around(rule, fallback), data) for choice in choices]
    return choices[int(np.argmin(merits))]


@eqx.filter_jit
def _mean_losses(
    family: Family,
    values: Array,
    problem: Problem,
    thetas: Theta,
    horizon: int,
    block: int,
    together: int,
) -> Array:
    def mean(value: Scalar) -> Scalar:
        final = losses_at(family(value), problem, thetas, (horizon,), block)
        return jnp.mean(jnp.where(jnp.isfinite(final), final, jnp.inf))

    return jax.lax.map(mean, values, batch_size=together)
