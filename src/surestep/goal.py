"""The goal: what counts as success on an instance."""

import dataclasses

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Bool, Float, Scalar

from surestep.errors import ConfigurationError
from surestep.problem import Problem, Theta


@dataclasses.dataclass(frozen=True)
class Goal:
    """Success on an instance is `loss <= scale * (loss at the start) ** exponent`.

    This is the paper's sublevel set: `g(theta)` is the right-hand side. With an exponent of 0 it
    is the same constant for every instance.
    """

    scale: float
    """Factor in front."""
    exponent: float
    """Power of the loss at the start: 0 for a constant goal, 1 for a share of that loss."""

    def validate(self) -> None:
        """Refuse a goal that no loss could reach or that every loss reaches."""
        if not self.scale > 0:
            raise ConfigurationError(f"goal.scale must be positive, not {self.scale}")
        if not 0 <= self.exponent <= 1:
            raise ConfigurationError(
                f"goal.exponent must lie between 0 (a constant) and 1, not {self.exponent}"
            )

    def threshold(self, problem: Problem, theta: Theta) -> Scalar:
        """The largest loss that counts as success on an instance."""
        return self.scale * problem.loss(problem.start(theta), theta) ** self.exponent


@eqx.filter_jit
def thresholds(
    goal: Goal, problem: Problem, thetas: Theta, block: int
) -> Float[Array, " instance"]:
    """The thresholds of every instance of a stacked set, `block` of them side by side."""
    return jax.lax.map(lambda theta: goal.threshold(problem, theta), thetas, batch_size=block)


def reached(
    losses: Float[np.ndarray, "*rest instance"], threshold: Float[np.ndarray, " instance"]
) -> Bool[np.ndarray, "*rest instance"]:
    """Where a loss is good enough. A loss that is infinite or not a number never is."""
    return np.isfinite(losses) & np.less_equal(losses, threshold)
