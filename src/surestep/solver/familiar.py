"""What instances of a family usually look like, in a few numbers of some hundred of them.

The numbers are the loss at the problem's start, the size of theta, and theta seen from a few
directions. Theta's entries are centred and scaled first, by the prior set; the numbers themselves
are those of other instances, so that new ones are exchangeable with them. None of it depends on
the learned rule.
"""

import dataclasses
from typing import Self

import jax
import numpy as np
from jaxtyping import Float

from surestep.problem import DataSet, Goal, Problem, Theta, count, instance, thresholds
from surestep.solver.instance_monitor import LEAST, InstanceMonitor

SAMPLE = 500
"""Of how many instances the numbers are kept, at most."""

_DIRECTIONS = 3
FEATURES = 2 + _DIRECTIONS
"""How many numbers of an instance there are."""

_NUMBERS = 2_000_000  # of instances that are looked at at a time
_TOGETHER, _FEWEST = 50_000_000, 20  # those that theta is centred and scaled by
_START = Goal(scale=1.0, exponent=1.0)


@dataclasses.dataclass(frozen=True)
class Familiar:
    """How theta is centred and scaled, and the numbers of a reference sample."""

    centre: Float[np.ndarray, " d"]
    scale: Float[np.ndarray, " d"]
    sample: Float[np.ndarray, "instance feature"]

    @classmethod
    def of(cls, problem: Problem, prior: DataSet, data: DataSet, block: int) -> Self:
        """From the prior set, and from the first instances of another one."""
        width = _flat(prior.part(0, 1)).size
        known = _flat(prior.part(0, min(prior.size, SAMPLE, max(_FEWEST, _TOGETHER // width))))
        centre, spread = known.mean(axis=0), known.std(axis=0)
        scale = np.where(spread > 0, spread, 1.0)
        bare = cls(centre, scale, np.empty((0, FEATURES)))
        few = data.part(0, min(data.size, SAMPLE))
        return dataclasses.replace(bare, sample=bare.features(problem, few, block))

    def features(
        self, problem: Problem, thetas: Theta, block: int
    ) -> Float[np.ndarray, "instance feature"]:
        """The numbers of stacked instances."""
        starts = np.asarray(thresholds(_START, problem, thetas, block), np.float64)
        number, few = count(thetas), max(1, _NUMBERS // max(self.centre.size, 1))
        directions = _signs(self.centre.size) / np.sqrt(max(self.centre.size, 1))
        parts = []
        for first in range(0, number, few):
            some = instance(thetas, slice(first, min(first + few, number)))
            standard = (_flat(some) - self.centre) / self.scale
            sizes = np.sqrt(np.mean(standard**2, axis=1, keepdims=True))
            parts.append(np.concatenate([sizes, standard @ directions], axis=1))
        return np.concatenate([starts[:, None], np.concatenate(parts)], axis=1)

    @property
    def enough(self) -> bool:
        """Whether the sample is large enough to compare with."""
        return len(self.sample) >= LEAST

    def monitor(self, delta: float) -> InstanceMonitor:
        """A monitor that has seen nothing yet."""
        return InstanceMonitor.of(self.sample, delta)


def _flat(thetas: Theta) -> Float[np.ndarray, "instance d"]:
    """Every instance as one row of numbers."""
    leaves = [np.asarray(leaf, np.float64) for leaf in jax.tree.leaves(thetas)]
    return np.concatenate([leaf.reshape(len(leaf), -1) for leaf in leaves], axis=1)


def _signs(size: int) -> Float[np.ndarray, "d direction"]:
    """The same for ever: of a generator of random numbers only the raw bits are that."""
    raw = np.random.Philox(key=0).random_raw(size * _DIRECTIONS)
    return np.where(np.asarray(raw >> np.uint64(63), bool), 1.0, -1.0).reshape(size, _DIRECTIONS)
