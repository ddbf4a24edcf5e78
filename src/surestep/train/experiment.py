"""An experiment: a problem with its learned rule, its teacher and its opponents."""

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol, runtime_checkable

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from surestep.base.errors import ConfigurationError, unknown
from surestep.base.keys import named_key
from surestep.problem import DataSet, Point, PriorSet, Problem, Theta, count, working_precision
from surestep.rollout.loop import Measure
from surestep.rollout.observe import Statistic
from surestep.rules.base import Rule, hyper_of, with_hyper
from surestep.rules.optax_rule import parse_rule
from surestep.train.references import references_by, require_some


@dataclasses.dataclass(frozen=True)
class Accuracies:
    """What counts as solved when solvers are timed: so close to a reference, or below a loss.

    **Example:**

    ```python
    accuracies = ss.Accuracies((1e-2, 1e-4))  # losses below these
    percent = ss.Accuracies(
        (0.01,), reference=lambda thetas: np.ones(6), above="the minimum", relative=True
    )
    ```
    """

    values: tuple[float, ...]
    """The accuracies, positive numbers."""
    reference: Callable[[Theta], Float[np.ndarray, " instance"]] | None = None
    """Losses of stacked instances that accuracies are counted from; without it, from 0."""
    above: str = ""
    """What the reference is, in words: "the minimum"."""
    relative: bool = False
    """Whether accuracies are shares of the reference: 0.01 is one percent above it."""

    def references(self, thetas: Theta, size: int) -> Float[np.ndarray, " instance"]:
        """The loss that every instance's accuracies are counted from.

        Minus infinity where it could not be found: such an instance counts as one that nobody has
        solved.
        """
        if self.reference is None:
            return np.zeros(size)
        return references_by(self.reference, thetas)

    def require_some(
        self, found: Float[np.ndarray, " instance"], thetas: Theta
    ) -> Float[np.ndarray, " instance"]:
        """The references that were found, or the reason why there are none at all."""
        return found if self.reference is None else require_some(found, self.reference, thetas)

    def targets(
        self, references: Float[np.ndarray, " instance"]
    ) -> Float[np.ndarray, "accuracy instance"]:
        """The losses that count as accurate, for every instance's reference."""
        unit = references if self.relative else np.ones_like(references)
        return references + np.asarray(self.values)[:, None] * unit


@runtime_checkable
class External(Protocol):
    """A solver of another library, which is not a rule: it is called once and stops by itself.

    **Example:**

    ```python
    def by_lstsq(theta, target, accuracy):
        return np.linalg.lstsq(np.diag(theta.diagonal), theta.target, rcond=None)[0]


    experiment = dataclasses.replace(experiment, external={"NumPy": by_lstsq})
    ```
    """

    def __call__(self, theta: Theta, target: float, accuracy: float) -> Point:
        """Bring the loss of an instance below a target.

        **Arguments:**

        - `theta`: the instance, as NumPy arrays.
        - `target`: the loss to be below.
        - `accuracy`: how far the target is above the instance's reference. Solvers that bound
          their distance to the minimum stop by that, others by the loss itself.

        **Returns:** the point.
        """
        ...


@dataclasses.dataclass(frozen=True)
class Experiment:
    """All that a run needs beside numbers.

    `plan_fit(problem).experiment` is one for a problem of your own, `paper.build(config)` one of
    the paper's.

    **Example:**

    ```python
    mine = ss.Experiment(
        problem,
        create_rule=lambda key: ss.rules.Coordinatewise.create(key),
        teacher=None,
        baselines={"heavy ball": ss.rules.HeavyBall(step_size=1e-3, momentum=0.9)},
        accuracies=ss.Accuracies((1e-2, 1e-4)),
    )
    mine.validate()
    ```
    """

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
    minima: Callable[[Theta], Float[np.ndarray, " instance"]] | None = None
    """The least losses of stacked instances, by a solver that can be trusted; for training."""
    informed: Callable[[Rule], Mapping[str, Rule]] | None = None
    """Classical rules that are given what was learned (a start, a metric), from the deployed
    rule; they are evaluated beside the baselines."""
    external: Mapping[str, External] = dataclasses.field(default_factory=dict)
    """Solvers of other libraries that are timed beside the rules, by name."""
    shifts: Mapping[str, Problem] = dataclasses.field(default_factory=dict)
    """Other distributions to show the learned rule on, by name; only their `sample` is used."""
    pool: str = ""
    """What instances are made from, if they are drawn from a data set; certificates say."""
    goal_second_moment: float | None = None
    """A bound on the second moment of the goal's threshold, if one is known for sure."""

    race: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """How the rule was chosen, in plain values, where candidates were compared; runs note it."""

    def rule(self, seed: int, member: int = 0) -> Rule:
        """The rule that a run with this seed begins with; a population has further members."""
        names = ("rule", member) if member else ("rule",)
        with working_precision(self.problem):
            return self.create_rule(named_key(seed, *names))

    def rule_at(self, seed: int, hyper: Float[np.ndarray, " d"]) -> Rule:
        """The same rule with a stored hyper, in the rule's precision."""
        rule = self.rule(seed)
        with working_precision(self.problem):
            return with_hyper(rule, jnp.asarray(hyper, hyper_of(rule).dtype))

    def references(self, data: DataSet) -> Float[np.ndarray, " instance"]:
        """The losses that accuracies on a set are counted from.

        The minima of a prior set may be known already, because training counts from them.
        """
        known = data.minima if isinstance(data, PriorSet) else None
        if known is not None and self.accuracies.reference is self.minima:
            return np.asarray(known, np.float64)
        found = [self.accuracies.references(part, count(part)) for part in data.parts()]
        return self.accuracies.require_some(np.concatenate(found), next(iter(data.parts())))

    def chosen(self, names: Iterable[str]) -> dict[str, Rule]:
        """The baselines of these names.

        **Arguments:**

        - `names`: keys of `baselines`, or Optax's optimizers: `optax:adam(learning_rate=0.01)`.

        **Returns:** the rules, by name.

        **Raises:** `surestep.errors.ConfigurationError` if there is no such baseline.

        **Example:**

        ```python
        print(experiment.chosen(["heavy ball", "optax:adam(learning_rate=0.01)"]))
        ```
        """
        return {name: self._baseline(name) for name in names}

    def _baseline(self, name: str) -> Rule:
        if name in self.baselines:
            return self.baselines[name]
        if name.startswith("optax:"):
            return parse_rule(name)
        raise ConfigurationError(unknown("baseline", name, tuple(self.baselines)))

    def validate(self) -> None:
        """Refuse accuracies that no loss could be below, and two solvers of one name.

        **Raises:** `surestep.errors.ConfigurationError`.
        """
        values = self.accuracies.values
        if not values or not all(value > 0 and math.isfinite(value) for value in values):
            raise ConfigurationError(
                f"an experiment needs at least one accuracy, and positive ones, not {values}"
            )
        for name in self.external:
            if name in self.baselines:
                raise ConfigurationError(
                    f"a baseline and an external solver are both called {name!r}: rename one"
                )
