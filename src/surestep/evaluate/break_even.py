"""What a learned rule is worth: after how many solves its training has paid for itself."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Float

from surestep.evaluate.evaluated import Evaluated
from surestep.storage.records import from_plain

TRAINING = ("race", "minima", "imitate", "population", "locate", "sample")
"""The stages whose time is the price of a rule; certifying comes on top, if it is wanted."""


@dataclasses.dataclass(frozen=True)
class BreakEven:
    """The learned rule beside the fastest other solver, for one accuracy, one solve at a time."""

    accuracy: float
    opponent: str
    """The fastest of the solvers that miss the fewest instances; empty if there is no other."""
    learned_seconds: float
    """Mean time of a solve."""
    opponent_seconds: float
    missed: int
    """On how many instances the learned rule misses the accuracy and the opponent does not."""
    solves: float
    """After so many solves training has paid for itself; infinite means never."""

    @property
    def saved(self) -> float:
        """Seconds that a solve with the learned rule saves; negative if it takes longer."""
        return self.opponent_seconds - self.learned_seconds


def training_seconds(status: Mapping[str, Any]) -> float:
    """What training took, from the status of a run.

    A stage that was interrupted notes the time since it was last resumed, so this is a lower bound
    then; a stage that noted no time counts as 0.
    """
    noted = [status.get(stage, {}).get("seconds", 0.0) for stage in TRAINING]
    return sum(from_plain(float, seconds, "status.seconds") for seconds in noted)


def break_even(evaluation: Evaluated, seconds: float) -> list[BreakEven]:
    """For every accuracy, after how many solves so many seconds of training have paid off."""
    names = [*evaluation.solvers, *evaluation.external]
    times = evaluation.mean_seconds()
    # Other libraries solve fewer instances: shares of misses compare, numbers would not.
    missed = int(evaluation.counted.sum()) * evaluation.missed_share()
    return [
        _break_even(accuracy, names, times[:, a], missed[:, a], seconds)
        for a, accuracy in enumerate(evaluation.accuracies)
    ]


def _break_even(
    accuracy: float,
    names: list[str],
    times: Float[np.ndarray, " solver"],
    missed: Float[np.ndarray, " solver"],
    seconds: float,
) -> BreakEven:
    if len(names) == 1:
        return BreakEven(accuracy, "", float(times[0]), math.nan, 0, math.inf)
    # The fewest misses first: a solver that gives up early is not a fast one.
    best = min(range(1, len(names)), key=lambda s: (missed[s], times[s]))
    behind = max(0, math.ceil(missed[0] - missed[best]))
    saved = float(times[best] - times[0])
    solves = seconds / saved if saved > 0 and not behind else math.inf
    return BreakEven(accuracy, names[best], float(times[0]), float(times[best]), behind, solves)
