"""Traits: numbers that an instance has before it is solved, functions of theta alone.

The plan names them, from the prior set. On the train set they are computed beside the evidence, so
what is certified of instances with a trait holds whatever their traits turn out to be.
"""

import dataclasses
from typing import Literal

import jax
import numpy as np
from jaxtyping import Float

from surestep.base.errors import ConfigurationError
from surestep.certify.evidence import Evidence, reached_in
from surestep.certify.targets import ITERATIONS
from surestep.problem import DataSet, Problem, Theta, working_precision

_ROWS = 256  # instances that are looked at at a time: copies of all could be too large
_FEW = 8  # numbers of an array that are looked at one by one
_LARGEST = 1e140  # that numbers are taken for: its square is a number


@dataclasses.dataclass(frozen=True)
class Difficulty:
    """How hard an instance is, predicted from its features: a ridge regression of logarithms."""

    outcome: Literal["iterations", "loss"]
    """What is predicted: the iterations until a target is reached for good, or the loss at the
    horizon above the reference."""
    target: int
    """Which of the plan's targets."""
    floor: float
    """Losses that are smaller count as this."""
    centre: tuple[float, ...]
    """What each feature is counted from."""
    weights: tuple[float, ...]
    """What a unit of each feature adds to the logarithm, to base 2."""
    bias: float
    low: float
    """The smallest logarithm that is predicted."""
    high: float
    kind: Literal["difficulty"] = "difficulty"

    def predict(
        self, features: Float[np.ndarray, "instance feature"]
    ) -> Float[np.ndarray, " instance"]:
        """The outcome that is expected of every instance."""
        if features.shape[1] != len(self.weights):
            raise ConfigurationError(
                f"difficulty is predicted from {len(self.weights)} features, not "
                f"{features.shape[1]}: these are instances of another form"
            )
        # Row by row, so that an instance's bits do not depend on those beside it.
        logs = self.bias + np.sum((features - self.centre) * np.array(self.weights), axis=1)
        return np.exp2(np.clip(logs, self.low, self.high))

    def seen(self, evidence: Evidence) -> Float[np.ndarray, "sample instance"]:
        """The outcome that was observed."""
        if self.outcome == "iterations":
            return reached_in(evidence.reach, ITERATIONS, self.target)
        return np.maximum(evidence.above(evidence.final), self.floor)


@dataclasses.dataclass(frozen=True)
class Label:
    """The kind of an instance, by the problem's own division."""

    names: tuple[str, ...]
    """What the kinds are called."""
    kind: Literal["label"] = "label"


AnyTrait = Difficulty | Label


def traits_on(
    traits: tuple[AnyTrait, ...],
    problem: Problem,
    data: DataSet,
    starts: Float[np.ndarray, " instance"],
    thresholds: Float[np.ndarray, " instance"],
) -> Float[np.ndarray, "instance trait"]:
    """The traits of every instance of a set."""
    columns: list[np.ndarray] = []
    for trait in traits:
        if isinstance(trait, Label):
            columns.append(labels_of(problem, data).astype(np.float64))
        else:
            columns.append(trait.predict(features_of(data, starts, thresholds)))
    return np.stack(columns, axis=1) if columns else np.zeros((data.size, 0))


def labels_of(problem: Problem, data: DataSet) -> np.ndarray:
    """The number of every instance's kind."""
    strata = problem.strata
    assert strata is not None
    with working_precision(problem):
        return np.concatenate([strata.labels(part) for part in data.parts()])


def features_of(
    data: DataSet,
    starts: Float[np.ndarray, " instance"],
    thresholds: Float[np.ndarray, " instance"],
) -> Float[np.ndarray, "instance feature"]:
    """Numbers that may tell how hard an instance is: of its arrays, its start and its goal."""
    rows = [part_features(part) for part in data.parts()]
    return with_start(np.concatenate(rows), starts, thresholds)


def with_start(
    features: Float[np.ndarray, "instance feature"],
    starts: Float[np.ndarray, " instance"],
    thresholds: Float[np.ndarray, " instance"],
) -> Float[np.ndarray, "instance more"]:
    """Features of instances' arrays, with those of the start's loss and of the goal."""
    more = np.stack([_log(np.abs(starts)), _log(np.abs(starts - thresholds))], axis=1)
    return np.concatenate([features, more], axis=1)


def part_features(thetas: Theta) -> Float[np.ndarray, "instance feature"]:
    """The features of stacked instances' arrays: their numbers, if these are few, and their sizes.

    Whole numbers count where they are few; many are rather names of things.
    """
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(thetas)]
    rows = [
        _rows([leaf[first : first + _ROWS] for leaf in leaves])
        for first in range(0, len(leaves[0]), _ROWS)
    ]
    return np.concatenate(rows)


def _rows(leaves: list[np.ndarray]) -> Float[np.ndarray, "instance feature"]:
    found = [np.zeros((len(leaves[0]), 0))]
    for leaf in leaves:
        if leaf.dtype.kind not in "fiub":
            continue
        numbers = leaf.reshape(len(leaf), -1).astype(np.float64)
        if numbers.shape[1] <= _FEW:
            found.append(_tame(numbers))
        if leaf.dtype.kind == "f" and numbers.shape[1]:
            found.append(_sizes(numbers))
    return np.concatenate(found, axis=1)


def _sizes(numbers: Float[np.ndarray, "instance number"]) -> Float[np.ndarray, "instance size"]:
    """How large the numbers of an array are, how they spread, and which way they lean."""
    numbers = _tame(numbers)
    sizes = np.abs(numbers)
    root = np.sqrt(np.mean(sizes**2, axis=1))
    unit = np.where(root > 0, root, 1.0)
    return np.stack(
        [
            _log(root),
            _log(sizes.max(axis=1) / unit),
            _log(np.maximum(sizes.min(axis=1) / unit, 1e-6)),
            np.mean(numbers, axis=1) / unit,
        ],
        axis=1,
    )


def _tame(numbers: np.ndarray) -> np.ndarray:
    """Numbers whose squares are finite."""
    return np.clip(np.nan_to_num(numbers, posinf=0.0, neginf=0.0), -_LARGEST, _LARGEST)


def _log(values: np.ndarray) -> np.ndarray:
    """Logarithms to base 2 that stay finite."""
    return np.log2(np.clip(np.nan_to_num(values, nan=0.0), 1e-30, 1e30))
