"""Targets: losses of each instance's own, which solves are to reach."""

import dataclasses
from typing import Literal, get_args

import numpy as np
from jaxtyping import Float

from surestep.base.errors import ConfigurationError, unknown
from surestep.rollout.observe import REACHED
from surestep.train import Accuracies

Kind = Literal["loss", "reference", "start", "goal"]

ITERATIONS, GRADIENTS, FIRST = range(REACHED)
"""What is known of when a target is reached: the iterations until it is for good, the gradient
evaluations until then, and those until it was there for the first time."""


@dataclasses.dataclass(frozen=True)
class Target:
    """So close to an instance's reference, or its goal."""

    kind: Kind
    """In what `value` is counted: in losses, in shares of the reference, or in shares of what lies
    between the start and the reference."""
    value: float = 0.0

    def levels(
        self,
        references: Float[np.ndarray, " instance"],
        starts: Float[np.ndarray, " instance"],
        thresholds: Float[np.ndarray, " instance"],
    ) -> Float[np.ndarray, " instance"]:
        """The loss that every instance is to reach; none reaches what is near no reference."""
        known = np.isfinite(references)
        near = np.where(known, references, 0.0)
        match self.kind:
            case "loss":
                return references + self.value
            case "reference":
                return np.where(known, near + self.value * np.abs(near), references)
            case "start":
                gap = np.maximum(starts - near, 0.0)
                return np.where(known, near + self.value * gap, references)
            case "goal":
                return thresholds
            case _:
                # A certificate is a file, which anyone may have written.
                raise ConfigurationError(unknown("kind of target", self.kind, get_args(Kind)))

    def words(self, above: str) -> str:
        """What an instance that has reached it is or has; `above` is the reference in words."""
        if self.kind == "goal":
            return "are at the goal"
        if self.kind == "reference":
            return f"are within {100 * self.value:g} % of {above}"
        if self.kind == "loss":
            if above:
                return f"are within {self.value:g} of {above}"
            return f"have a loss of at most {self.value:g}"
        if above:
            return f"have closed all but {self.value:g} of the gap from the start's loss to {above}"
        return f"have a loss of at most {self.value:g} times the start's"


def targets_of(
    accuracies: Accuracies, shares: tuple[float, ...], closeness: bool
) -> tuple[Target, ...]:
    """The accuracies that an evaluation uses, and shares of what there is to gain.

    Without closeness only the goal is left.
    """
    if not closeness:
        return (Target("goal"),)
    kind = "reference" if accuracies.relative else "loss"
    near = tuple(Target(kind, value) for value in accuracies.values)
    return near + tuple(Target("start", share) for share in shares)
