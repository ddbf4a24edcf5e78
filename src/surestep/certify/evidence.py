"""Evidence: what was observed on the train set, which is all that a certificate rests on."""

import dataclasses

import numpy as np
from jaxtyping import Float

from surestep.problem import fingerprint
from surestep.rollout.observe import REACHED
from surestep.storage.run_folder import axes


@dataclasses.dataclass(frozen=True)
class Evidence:
    """What was observed on the train set, by sample, and what opponents did there."""

    losses: Float[np.ndarray, "sample instance iteration"] = dataclasses.field(
        metadata=axes("sample", "instance", "iteration")
    )
    thresholds: Float[np.ndarray, " instance"] = dataclasses.field(metadata=axes("instance"))
    """The goal on every instance."""
    references: Float[np.ndarray, " instance"] = dataclasses.field(metadata=axes("instance"))
    """The loss that every instance's closeness is counted from, its minimum if that is known; minus
    infinity where it could not be found."""
    starts: Float[np.ndarray, " instance"] = dataclasses.field(metadata=axes("instance"))
    """The loss at the problem's start, wherever a learned start moves a rule from there."""
    reach: Float[np.ndarray, "sample instance entry"] = dataclasses.field(
        metadata=axes("sample", "instance", "entry")
    )
    """When targets were reached; infinity if they were not. See `reached_in`."""
    opponent_losses: Float[np.ndarray, "opponent instance"] = dataclasses.field(
        metadata=axes("opponent", "instance")
    )
    """Losses after the horizon's iterations."""
    opponent_reach: Float[np.ndarray, "opponent instance entry"] = dataclasses.field(
        metadata=axes("opponent", "instance", "entry")
    )
    statistics: Float[np.ndarray, "sample instance statistic"] = dataclasses.field(
        metadata=axes("sample", "instance", "statistic")
    )

    @property
    def final(self) -> Float[np.ndarray, "sample instance"]:
        """The losses at the horizon."""
        return self.losses[:, :, -1]

    def above(self, losses: Float[np.ndarray, "*rest instance"]) -> Float[np.ndarray, "..."]:
        """How far losses are above the references; at least 0."""
        return np.maximum(losses - self.references, 0.0)

    @property
    def sha256(self) -> str:
        """A hash of every bit that was observed."""
        return fingerprint(vars(self))

    def of(self, samples: slice) -> "Evidence":
        """The evidence on some of the samples."""
        ours = {name: getattr(self, name)[samples] for name in _SAMPLED}
        return dataclasses.replace(self, **ours)

    def against(self, opponents: list[int]) -> "Evidence":
        """The evidence about some of the opponents, in this order."""
        theirs = {name: getattr(self, name)[opponents] for name in _OPPONENTS}
        return dataclasses.replace(self, **theirs)

    def on(self, instances: np.ndarray) -> "Evidence":
        """The evidence on some instances, in the order and as often as they are named."""
        single = {name: getattr(self, name)[instances] for name in _SINGLE}
        tables = {name: getattr(self, name)[:, instances] for name in (*_SAMPLED, *_OPPONENTS)}
        return Evidence(**single, **tables)


_SINGLE = ("thresholds", "references", "starts")
_SAMPLED = ("losses", "reach", "statistics")
_OPPONENTS = ("opponent_losses", "opponent_reach")


def reached_in(
    reach: Float[np.ndarray, "*rest entry"], unit: int, target: int
) -> Float[np.ndarray, "*rest"]:
    """After how many iterations or gradients (the unit) a target is reached; see `targets`."""
    return reach[..., unit * (reach.shape[-1] // REACHED) + target]


def reach_of_paths(
    losses: Float[np.ndarray, "*rest instance iteration"],
    levels: Float[np.ndarray, "instance target"],
) -> Float[np.ndarray, "*rest instance entry"]:
    """When losses over all iterations reach every instance's targets, one gradient an iteration."""
    below = np.isfinite(losses)[..., None, :] & (losses[..., None, :] <= levels[:, :, None])
    first = np.where(below.any(axis=-1), below.argmax(axis=-1), np.inf)
    # The iteration after the last one that is above.
    above, length = np.flip(~below, axis=-1), losses.shape[-1]
    last = length - above.argmax(axis=-1)
    settled = np.where(above.any(axis=-1), last, 0)
    settled = np.where(settled < length, settled, np.inf)
    return np.concatenate([settled, settled, first], axis=-1)
