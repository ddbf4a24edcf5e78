"""Evidence: what was observed on the train set, which is all that a certificate rests on."""

import dataclasses

import numpy as np
from jaxtyping import Float

from surestep.problem import fingerprint
from surestep.storage.run_folder import axes


@dataclasses.dataclass(frozen=True)
class Evidence:
    """What was observed on the train set, by sample, and what opponents did there."""

    losses: Float[np.ndarray, "sample instance iteration"] = dataclasses.field(
        metadata=axes("sample", "instance", "iteration")
    )
    thresholds: Float[np.ndarray, " instance"] = dataclasses.field(metadata=axes("instance"))
    """The goal on every instance."""
    hits: Float[np.ndarray, "sample instance tolerance"] = dataclasses.field(
        metadata=axes("sample", "instance", "tolerance")
    )
    """Gradient evaluations until a loss was first reached; infinity if it never was."""
    opponent_losses: Float[np.ndarray, "opponent instance"] = dataclasses.field(
        metadata=axes("opponent", "instance")
    )
    """Losses after the horizon's iterations."""
    opponent_hits: Float[np.ndarray, "opponent instance tolerance"] = dataclasses.field(
        metadata=axes("opponent", "instance", "tolerance")
    )
    statistics: Float[np.ndarray, "sample instance statistic"] = dataclasses.field(
        metadata=axes("sample", "instance", "statistic")
    )

    @property
    def final(self) -> Float[np.ndarray, "sample instance"]:
        """The losses at the horizon."""
        return self.losses[:, :, -1]

    @property
    def sha256(self) -> str:
        """A hash of every bit that was observed."""
        return fingerprint(vars(self))

    def of(self, samples: slice) -> "Evidence":
        """The evidence on some of the samples."""
        ours = {name: getattr(self, name)[samples] for name in ("losses", "hits", "statistics")}
        return dataclasses.replace(self, **ours)

    def on(self, instances: np.ndarray) -> "Evidence":
        """The evidence on some instances, in the order and as often as they are named."""
        first = {"thresholds": self.thresholds[instances]}
        names = ("losses", "hits", "opponent_losses", "opponent_hits", "statistics")
        return Evidence(**first, **{name: getattr(self, name)[:, instances] for name in names})
