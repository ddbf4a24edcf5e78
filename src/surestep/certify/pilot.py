"""The pilot: what the train set is going to show, forecast on the prior set.

A plan is made from it: who the strongest opponent is, where losses are clipped, what is worth its
share of epsilon. All of this may depend on the prior set.
"""

import dataclasses
from collections.abc import Mapping
from typing import Self

import numpy as np
from jaxtyping import Float, Int

from surestep.certify.evidence import Evidence, reached_in
from surestep.certify.gather import observed_on
from surestep.certify.targets import FIRST, Target
from surestep.certify.traits import features_of, labels_of
from surestep.problem import PriorSet
from surestep.rollout.tiles import Cuts
from surestep.rules.base import Rule
from surestep.storage.run_folder import axes
from surestep.train import Task


@dataclasses.dataclass(frozen=True)
class Pilot:
    """What one sample, and the opponents, do on the prior set."""

    evidence: Evidence
    """Of this one sample."""
    opponents: tuple[str, ...]
    """Whose losses are in it."""
    features: Float[np.ndarray, "instance feature"] = dataclasses.field(
        default_factory=lambda: np.zeros((0, 0)), metadata=axes("pilot instance", "feature")
    )
    """Numbers that may tell how hard an instance is, if they are known."""
    labels: Int[np.ndarray, " labelled"] = dataclasses.field(
        default_factory=lambda: np.zeros(0, np.int64), metadata=axes("labelled instance")
    )
    """The kind of every instance, if the problem tells kinds apart."""
    names: tuple[str, ...] = ()
    """What these are called."""

    @property
    def size(self) -> int:
        """On how many instances."""
        return len(self.evidence.thresholds)

    def forecast(self, size: int) -> Evidence:
        """Evidence on so many instances, if they look like those of the pilot."""
        return self.evidence.on(np.arange(size) * self.size // size)

    def strongest_first(self, target: int, horizon: int) -> tuple[str, ...]:
        """The opponents in the order of the gradient evaluations that they take to a target."""
        return tuple(sorted(self.opponents, key=lambda name: self._cost(name, target, horizon)))

    def against(self, opponents: tuple[str, ...]) -> Self:
        """The same with some of the opponents."""
        chosen = [self.opponents.index(name) for name in opponents]
        evidence = self.evidence.against(chosen)
        return dataclasses.replace(self, evidence=evidence, opponents=opponents)

    def _cost(self, name: str, target: int, horizon: int) -> tuple[float, float]:
        """The mean logarithm of the gradient evaluations; then of the losses at the horizon."""
        number = self.opponents.index(name)
        needed = reached_in(self.evidence.opponent_reach[number], FIRST, target)
        ends = self.evidence.above(self.evidence.opponent_losses[number])
        return _mean_log(np.minimum(needed, 4.0 * horizon)), _mean_log(ends)


def _mean_log(values: Float[np.ndarray, " instance"]) -> float:
    return float(np.mean(np.log(np.clip(values, 1e-300, 1e300))))


def pilot_on(
    task: Task,
    rule: Rule,
    hyper: Float[np.ndarray, " d"],
    opponents: Mapping[str, Rule],
    targets: tuple[Target, ...],
    kept: tuple[int, ...],
    data: PriorSet,
    references: Float[np.ndarray, " instance"],
    samples: int,
    train_size: int,
) -> Pilot:
    """Roll a sample and the opponents out on the prior set, in the programs that certify uses.

    So many `samples` and instances (`train_size`) these are compiled for.
    """
    group = Cuts.even(samples, task.sample_block).length
    seen = observed_on(
        task,
        rule,
        np.repeat(hyper[None], group, axis=0),
        opponents,
        targets,
        kept,
        data,
        references,
        length=Cuts.of(train_size, task.block).length,
    )
    features = features_of(data, seen.starts, seen.thresholds)
    strata = task.problem.strata
    if strata is None:
        return Pilot(seen.of(slice(0, 1)), tuple(opponents), features)
    labels = labels_of(task.problem, data)
    return Pilot(seen.of(slice(0, 1)), tuple(opponents), features, labels, tuple(strata.names))
