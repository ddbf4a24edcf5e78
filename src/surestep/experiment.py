"""An experiment: a problem with its learned rule, its teacher and its opponents."""

import dataclasses
import math
from collections.abc import Callable, Mapping

from jaxtyping import Array

from surestep.errors import ConfigurationError
from surestep.problem import Problem
from surestep.rollout import Statistic
from surestep.rule import Rule


@dataclasses.dataclass(frozen=True)
class Accuracies:
    """The losses that count as solved when solvers are timed."""

    values: tuple[float, ...]


@dataclasses.dataclass(frozen=True)
class Experiment:
    """All that a run needs beside numbers."""

    problem: Problem
    create_rule: Callable[[Array], Rule]
    """Makes the rule to be learned, with random weights."""
    teacher: Rule | None
    """The classical rule that is imitated first, if the learned one needs that."""
    baselines: Mapping[str, Rule]
    """Classical rules to compare with, by name; the first is the paper's."""
    accuracies: Accuracies
    """When solvers are timed: how far."""
    statistics: Mapping[str, Statistic] = dataclasses.field(default_factory=dict)
    """Numbers between 0 and 1, computed from a rollout, whose means are certified too."""
    goal_second_moment: float | None = None
    """A bound on the second moment of the goal's threshold, if one is known for sure."""

    def validate(self) -> None:
        """Refuse accuracies that no loss could be below."""
        values = self.accuracies.values
        if not values or not all(value > 0 and math.isfinite(value) for value in values):
            raise ConfigurationError(
                f"an experiment needs at least one accuracy, and positive ones, not {values}"
            )
