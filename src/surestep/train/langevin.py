"""Langevin proposals and the chain that keeps them inside a constraint.

The chain is the paper's probabilistically constrained sampling: a kernel proposes, an estimate of
the success probability accepts or rejects. Any kernel will do; `langevin_move` is the one the
paper uses (stochastic gradient Langevin dynamics).
"""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from surestep.base.errors import ConfigurationError
from surestep.train.constraint import SuccessEstimate


@dataclasses.dataclass(frozen=True)
class StepSizes:
    """Step sizes `initial * (1 + t / offset) ** -power` for proposals t = 0, 1, 2, ..."""

    initial: float = 1e-6
    """The first step size; also the variance of the first move's noise."""
    offset: float = 1.0
    """How many proposals pass before the decay sets in."""
    power: float = 1.0
    """How fast the steps shrink: 0 for not at all, 1 for the paper's 1/t."""

    def validate(self) -> None:
        """Refuse step sizes that are not positive or that grow."""
        if not (self.initial > 0 and self.offset > 0 and 0 <= self.power <= 1):
            raise ConfigurationError(
                "Langevin step sizes need initial > 0, offset > 0 and power in [0, 1], not "
                f"{self.initial}, {self.offset} and {self.power}"
            )

    def at(self, t: int) -> float:
        """The step size of proposal `t`."""
        return self.initial * (1 + t / self.offset) ** -self.power


def langevin_move(
    key: Array,
    position: Float[Array, " d"],
    gradient: Float[Array, " d"],
    step_size: float | Array,
) -> Float[Array, " d"]:
    """One Langevin step for the density `exp(-potential)`: half a gradient step, full noise."""
    noise = jax.random.normal(key, position.shape, position.dtype)
    return position - 0.5 * step_size * gradient + jnp.sqrt(step_size) * noise


Position = TypeVar("Position")


@dataclasses.dataclass(frozen=True)
class Move(Generic[Position]):
    """One proposal and what became of it; `position` is where the chain stands afterwards."""

    number: int
    position: Position
    proposal: Position
    estimate: SuccessEstimate
    accepted: bool
    feasible: bool


def constrained_chain(
    propose: Callable[[int, Position], Position],
    estimate: Callable[[int, Position], SuccessEstimate],
    position: Position,
    *,
    feasible: bool,
    number: int = 0,
) -> Iterator[Move[Position]]:
    """Propose for ever, keeping to the constraint once the chain is inside.

    - `propose(t, position)` draws proposal number `t`;
    - `estimate(t, proposal)` estimates the proposal's success probability.

    A chain that starts outside (`feasible=False`) accepts every proposal until one is inside.
    The numbers make the chain resumable: go on with the last move's position and `number + 1`.
    """
    while True:
        proposal = propose(number, position)
        outcome = estimate(number, proposal)
        accepted = outcome.inside or not feasible
        feasible = feasible or outcome.inside
        position = proposal if accepted else position
        yield Move(number, position, proposal, outcome, accepted, feasible)
        number += 1
