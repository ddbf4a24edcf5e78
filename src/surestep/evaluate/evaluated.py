"""What an evaluation has found: every solver on every test instance."""

import dataclasses

import numpy as np
from jaxtyping import Bool, Float, Int

from surestep.rollout.loop import Status
from surestep.storage.run_folder import axes
from surestep.train import SuccessEstimate

LEARNED = "learned"


@dataclasses.dataclass(frozen=True)
class Evaluated:
    """What every solver did on every test instance."""

    losses: np.ndarray = dataclasses.field(metadata=axes("solver", "instance", "iteration"))
    gradients: np.ndarray = dataclasses.field(metadata=axes("solver", "instance", "iteration"))
    measures: np.ndarray = dataclasses.field(
        metadata=axes("solver", "measure", "instance", "iteration")
    )
    thresholds: np.ndarray = dataclasses.field(metadata=axes("instance"))
    starts: np.ndarray = dataclasses.field(metadata=axes("instance"))
    """The losses at the problem's start, wherever learned starts move rules from there."""
    references: np.ndarray = dataclasses.field(metadata=axes("instance"))
    """The losses that accuracies are counted from; minus infinity where they are unknown."""
    targets: np.ndarray = dataclasses.field(metadata=axes("accuracy", "instance"))
    """The losses that count as accurate."""
    reach_iterations: np.ndarray = dataclasses.field(metadata=axes("solver", "accuracy", "timed"))
    reach_gradients: np.ndarray = dataclasses.field(metadata=axes("solver", "accuracy", "timed"))
    reach_status: np.ndarray = dataclasses.field(metadata=axes("solver", "accuracy", "timed"))
    seconds: np.ndarray = dataclasses.field(metadata=axes("solver", "accuracy", "timed"))
    """Of a solve alone; not a number on instances that only the batch was timed on."""
    seconds_batch: np.ndarray = dataclasses.field(metadata=axes("solver", "accuracy"))
    solvers: list[str]
    accuracies: list[float]
    above: str
    """What the references are, in words."""
    relative: bool
    """Whether accuracies are shares of the references."""
    measured: list[str]
    """What the measures are."""
    success: SuccessEstimate
    external_losses: np.ndarray = dataclasses.field(metadata=axes("external", "accuracy", "timed"))
    """The losses that solvers of other libraries ended with; they solved the first ones alone."""
    external_seconds: np.ndarray = dataclasses.field(metadata=axes("external", "accuracy", "timed"))
    external: list[str]
    """Who they are."""
    notes: list[str] = dataclasses.field(default_factory=list)
    """Who could not be compared, and on how many instances no reference is known, in sentences."""

    @property
    def known(self) -> Bool[np.ndarray, " instance"]:
        """On which instances there is a reference to count from."""
        return np.isfinite(self.references)

    @property
    def counted(self) -> Bool[np.ndarray, " timed"]:
        """The same of the instances that solvers were timed on."""
        return self.known[: self.reach_status.shape[2]]

    def distances(self, losses: Float[np.ndarray, "*rest instance"]) -> Float[np.ndarray, "..."]:
        """How far losses are above the references, where these are known."""
        with np.errstate(invalid="ignore"):
            return losses[..., self.known] - self.references[self.known]

    def accuracy_names(self) -> list[str]:
        """The accuracies as tables and figures show them."""
        if self.relative:
            return [f"{100 * accuracy:g} %" for accuracy in self.accuracies]
        return [f"{accuracy:g}" for accuracy in self.accuracies]

    def gradients_needed(self) -> Float[np.ndarray, "solver accuracy counted"]:
        """Gradient evaluations to each accuracy; infinite on instances that were not solved."""
        needed = np.where(self.reach_status == Status.REACHED, self.reach_gradients, np.inf)
        return needed[:, :, self.counted]

    def gradient_quantile(self, share: float) -> Float[np.ndarray, "solver accuracy"]:
        """With how many gradients a share of the instances is solved, for each accuracy.

        Infinite where a solver does not solve so many.
        """
        return np.quantile(self.gradients_needed(), share, axis=2, method="inverted_cdf")

    def missed(self) -> Int[np.ndarray, "solver accuracy"]:
        """On how many instances a solver did not get below the target."""
        return np.sum((self.reach_status != Status.REACHED) & self.counted, axis=2)

    def external_missed(self) -> Int[np.ndarray, "external accuracy"]:
        """On how many instances an external solver's loss did not get below the target."""
        targets = self.targets[:, : self.external_losses.shape[2]]
        return np.sum(self._tried & ~(self.external_losses < targets), axis=2)

    def external_distances(self) -> Float[np.ndarray, "external accuracy"]:
        """How far above the references external solvers ended, in the median; NaN if untried."""
        references = self.references[: self.external_losses.shape[2]]
        with np.errstate(invalid="ignore"):
            ended = np.where(self._tried, self.external_losses - references, np.nan)
        medians = [np.median(row[~np.isnan(row)]) if np.any(~np.isnan(row)) else np.nan
                   for row in ended.reshape(-1, ended.shape[2])]  # fmt: skip
        return np.array(medians).reshape(ended.shape[:2])

    @property
    def _tried(self) -> Bool[np.ndarray, "external accuracy timed"]:
        """Which solves of external solvers there were, where there is something to count from."""
        return np.isfinite(self.external_seconds) & self.counted

    def missed_share(self) -> Float[np.ndarray, "solver accuracy"]:
        """The share of instances that were not solved, of all solvers and then of other libraries'.

        Other libraries solve fewer instances.
        """
        tried = np.maximum(np.sum(self._tried, axis=2), 1)
        shares = self.missed() / max(int(self.counted.sum()), 1), self.external_missed() / tried
        return np.concatenate(shares)

    def mean_seconds(self) -> Float[np.ndarray, "solver accuracy"]:
        """The mean time of a solve alone, of all solvers and then of those of other libraries."""
        every = np.concatenate([self.seconds, self.external_seconds])
        tried = np.isfinite(every)
        # A solver of another library may have been tried on none.
        return np.where(tried, every, 0.0).sum(axis=2) / np.where(
            tried.any(axis=2), tried.sum(axis=2), np.nan
        )

    @property
    def alone(self) -> int:
        """How many instances everybody was timed on one by one: the first ones."""
        every = np.concatenate([self.seconds, self.external_seconds])
        return int(np.sum(np.all(np.isfinite(every), axis=(0, 1))))
