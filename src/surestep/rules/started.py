"""A learned first move around any rule."""

from typing import ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Float

from surestep.problem.oracle import Oracle, Vector
from surestep.rules.base import Need, Rule, State


class Started(Rule):
    """A rule that begins at a learned distance from the problem's start.

    What instances have in common (a fixed start far from all minima, weights that suit a whole
    family of fits) is learned once instead of being found again on every instance. A shift of 0
    gives exactly the inner rule. A rollout's first loss is the one at the shifted start.
    """

    learns_start: ClassVar[bool] = True

    rule: Rule
    shift: Float[Array, " n"]

    @classmethod
    def around(cls, rule: Rule, dimension: int) -> "Started":
        """The rule as it is: no shift."""
        return cls(rule, jnp.zeros(dimension))

    @property
    def needs(self) -> tuple[Need, ...]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """What the inner rule needs."""
        return self.rule.needs

    def init(self, oracle: Oracle, x: Vector) -> State:
        """The inner rule begins at the shifted point."""
        return self.rule.init(oracle, x + self.shift)

    def resume(self, oracle: Oracle, x: Vector) -> State:
        """The inner rule begins where it is told to: only starts are shifted."""
        return self.rule.resume(oracle, x)

    def step(self, oracle: Oracle, state: State) -> State:
        """A step of the inner rule."""
        return self.rule.step(oracle, state)

    def relocate(self, oracle: Oracle, state: State, x: Vector) -> State:
        """Move the inner rule."""
        return self.rule.relocate(oracle, state, x)

    def prepare(self) -> "Started":
        """With the inner rule in its fastest form."""
        return Started(self.rule.prepare(), self.shift)

    def bare(self) -> "Started":
        """With the inner rule as it is trained."""
        return Started(self.rule.bare(), self.shift)
