"""The goal: what counts as success on an instance."""

import dataclasses
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, Scalar

from surestep.base.errors import ConfigurationError
from surestep.problem.base import Problem, Theta


@dataclasses.dataclass(frozen=True)
class Goal:
    """Success on an instance is `loss <= scale * (loss at the start) ** exponent`.

    This is the paper's sublevel set: `g(theta)` is the right-hand side. With an exponent of 0 it
    is the same constant for every instance.

    Where losses may be negative a share of them says nothing. The kind `decrease` counts from the
    start instead: success is `loss <= loss at the start - scale * norm(gradient there) **
    exponent`, for any loss.

    **Example:**

    ```python
    goal = ss.Goal(scale=0.01, exponent=1.0)  # one percent of the loss at the start
    theta = jax.tree.map(lambda leaf: leaf[0], thetas)
    with jax.enable_x64(True):  # the problem computes in float64
        print(goal.threshold(problem, theta))
    ```
    """

    scale: float
    """Factor in front."""
    exponent: float
    """Power of the loss at the start: 0 for a constant goal, 1 for a share of that loss. Of a
    decrease: power of the gradient's norm at the start, 0 for a constant decrease."""
    kind: Literal["share", "decrease"] = "share"
    """Whether the loss at the start is multiplied, or something taken off it."""

    def validate(self) -> None:
        """Refuse a goal that no loss could reach or that every loss reaches.

        **Raises:** `surestep.errors.ConfigurationError`.
        """
        constant = self.kind == "share" and self.exponent == 0
        if not self.scale > 0 and not constant:
            raise ConfigurationError(f"goal.scale must be positive, not {self.scale}")
        most = 2 if self.kind == "decrease" else 1
        if not 0 <= self.exponent <= most:
            raise ConfigurationError(
                f"goal.exponent must lie between 0 (a constant) and {most}, not {self.exponent}"
            )

    def require_fit(self, problem: Problem) -> None:
        """Refuse a goal that makes no sense for the problem's losses.

        **Arguments:**

        - `problem`: the problem whose losses the goal is for.

        **Raises:** `surestep.errors.ConfigurationError`.
        """
        if problem.nonnegative:
            if self.kind == "decrease":
                raise ConfigurationError(
                    "a decrease is a goal for losses that may be negative: where they are at "
                    "least 0, take a share of the loss at the start (--goal.kind share)"
                )
            if not self.scale > 0:
                raise ConfigurationError(
                    f"goal.scale must be positive, not {self.scale}: losses are at least 0"
                )
        elif self.kind == "share" and self.exponent > 0:
            raise ConfigurationError(
                "a share of the loss at the start is no goal where losses may be negative: take a "
                "decrease (--goal.kind decrease) or a constant (--goal.exponent 0)"
            )

    def threshold(self, problem: Problem, theta: Theta) -> Scalar:
        """The largest loss that counts as success on an instance.

        **Arguments:**

        - `problem`: the problem.
        - `theta`: the instance.

        **Returns:** the right-hand side of the goal's inequality.
        """
        if self.kind == "decrease":
            value, steepness = at_start(problem, theta)
            return value - self.scale * steepness**self.exponent
        value = problem.loss(problem.start(theta), theta)
        # A power of 1 that is not taken is no trouble for a negative loss.
        return self.scale * (value if self.exponent == 1 else value**self.exponent)


def at_start(problem: Problem, theta: Theta) -> tuple[Scalar, Scalar]:
    """The loss at an instance's start, and the norm of its gradient there."""
    start, unravel = ravel_pytree(problem.start(theta))
    value, gradient = jax.value_and_grad(lambda x: problem.loss(unravel(x), theta))(start)
    return value, jnp.linalg.norm(gradient)


@eqx.filter_jit
def thresholds(
    goal: Goal, problem: Problem, thetas: Theta, block: int
) -> Float[Array, " instance"]:
    """The thresholds of every instance of a stacked set, computed in batches of `block`."""
    return jax.lax.map(lambda theta: goal.threshold(problem, theta), thetas, batch_size=block)


def reached(
    losses: Float[np.ndarray, "*rest instance"], threshold: Float[np.ndarray, "... instance"]
) -> Bool[np.ndarray, "*rest instance"]:
    """Where a loss is good enough. A loss that is infinite or not a number never is."""
    return np.isfinite(losses) & np.less_equal(losses, threshold)
