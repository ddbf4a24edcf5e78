"""What rules around another rule have in common."""

import abc
import dataclasses
from typing import ClassVar, Self

import equinox as eqx
from jaxtyping import Scalar

from surestep.problem import Oracle, Vector
from surestep.rules.base import Need, Rule, State


class Wrapper(Rule):
    """A rule around another one, which may be prepared and made bare inside."""

    rule: eqx.AbstractVar[Rule]

    @property
    def needs(self) -> tuple[Need, ...]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """What the inner rule needs."""
        return self.rule.needs

    def prepare(self) -> Self:
        """With the inner rule in its fastest form."""
        return dataclasses.replace(self, rule=self.rule.prepare())

    def bare(self) -> Self:
        """With the inner rule as it is trained."""
        return dataclasses.replace(self, rule=self.rule.bare())


class StartsElsewhere(Wrapper):
    """A rule that begins at another point than the problem's start, and is the inner rule then.

    A rollout's first loss is the one at that point.
    """

    learns_start: ClassVar[bool] = True

    @abc.abstractmethod
    def start(self, oracle: Oracle, x: Vector) -> Vector:
        """Where a rollout begins, given the problem's start."""

    def init(self, oracle: Oracle, x: Vector) -> State:
        """The inner rule begins at its own start."""
        return self.rule.init(oracle, self.start(oracle, x))

    def resume(self, oracle: Oracle, x: Vector) -> State:
        """The inner rule begins where it is told to: only starts are moved."""
        return self.rule.resume(oracle, x)

    def step(self, oracle: Oracle, state: State) -> State:
        """A step of the inner rule."""
        return self.rule.step(oracle, state)

    def loss(self, oracle: Oracle, state: State) -> Scalar:
        """As the inner rule knows it."""
        return self.rule.loss(oracle, state)

    def relocate(self, oracle: Oracle, state: State, x: Vector) -> State:
        """Move the inner rule."""
        return self.rule.relocate(oracle, state, x)
