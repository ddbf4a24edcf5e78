"""An experiment: a problem with its learned rule, its teacher and its opponents."""

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping

import numpy as np
from jaxtyping import Array, Float

from surestep.errors import ConfigurationError
from surestep.names import unknown
from surestep.problem import Problem, Theta
from surestep.rollout import Measure, Statistic
from surestep.rule import Rule


@dataclasses.dataclass(frozen=True)
class Accuracies:
    """What counts as solved when solvers are timed: so close to a reference, or below a loss."""

    values: tuple[float, ...]
    reference: Callable[[Theta], Float[np.ndarray, " instance"]] | None = None
    """Losses of stacked instances that accuracies are counted from; without it, from 0."""
    above: str = ""
    """What the reference is, in words: "the minimum"."""

    def references(self, thetas: Theta, size: int) -> Float[np.ndarray, " instance"]:
        """The loss that every instance's accuracies are counted from."""
        if self.reference is None:
            return np.zeros(size)
        return np.asarray(self.reference(thetas), np.float64)


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
    measures: Mapping[str, Measure] = dataclasses.field(default_factory=dict)
    """What else is shown over the iterations on the test set; the first is drawn."""
    pool: str = ""
    """What instances are made from, if they are drawn from a stock of data; certificates say."""
    goal_second_moment: float | None = None
    """A bound on the second moment of the goal's threshold, if one is known for sure."""

    def chosen(self, names: Iterable[str]) -> dict[str, Rule]:
        """The baselines of these names."""
        for name in names:
            if name not in self.baselines:
                raise ConfigurationError(unknown("baseline", name, tuple(self.baselines)))
        return {name: self.baselines[name] for name in names}

    def validate(self) -> None:
        """Refuse accuracies that no loss could be below."""
        values = self.accuracies.values
        if not values or not all(value > 0 and math.isfinite(value) for value in values):
            raise ConfigurationError(
                f"an experiment needs at least one accuracy, and positive ones, not {values}"
            )
