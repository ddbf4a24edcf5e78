"""What rules around another rule have in common."""

import abc
import dataclasses
from typing import Any, ClassVar, Self

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


class Delegating(Wrapper):
    """A rule that iterates as the inner rule does."""

    @property
    def watches_loss(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether the inner rule does."""
        return self.rule.watches_loss

    def init(self, oracle: Oracle, x: Vector) -> State:
        """The inner rule begins."""
        return self.rule.init(oracle, x)

    def resume(self, oracle: Oracle, x: Vector) -> State:
        """The inner rule begins where it is told to."""
        return self.rule.resume(oracle, x)

    def step(self, oracle: Oracle, state: Any) -> State:
        """A step of the inner rule."""
        return self.rule.step(oracle, state)

    def point(self, state: Any) -> Vector:
        """As the inner rule knows it."""
        return self.rule.point(state)

    def loss(self, oracle: Oracle, state: Any) -> Scalar:
        """As the inner rule knows it."""
        return self.rule.loss(oracle, state)

    def stationarity(
        self, oracle: Oracle, state: Any, step: float | Scalar
    ) -> tuple[Scalar, Vector]:
        """As the inner rule knows it."""
        return self.rule.stationarity(oracle, state, step)

    def relocate(self, oracle: Oracle, state: Any, x: Vector) -> State:
        """Move the inner rule."""
        return self.rule.relocate(oracle, state, x)


class StartsElsewhere(Delegating):
    """A rule that begins at another point than the problem's start, and is the inner rule then.

    A rollout's first loss is the one at that point. Only starts are moved: what is resumed begins
    where it is told to.
    """

    learns_start: ClassVar[bool] = True

    @abc.abstractmethod
    def start(self, oracle: Oracle, x: Vector) -> Vector:
        """Where a rollout begins, given the problem's start."""

    def init(self, oracle: Oracle, x: Vector) -> State:
        """The inner rule begins at its own start."""
        return self.rule.init(oracle, self.start(oracle, x))


class Frozen(Delegating):
    """A rule whose numbers are not learned, whatever they are.

    **Arguments:**

    - `rule`: the rule.

    ```python
    import jax.numpy as jnp
    import surestep as ss

    rule = ss.rules.Frozen(ss.rules.SharedADMM.of(jnp.eye(3), penalty=0.1))
    checked = ss.rules.Checked(ss.rules.GradientDescent(0.1), fallback=rule, at=20)
    ```
    """

    learns: ClassVar[bool] = False

    rule: Rule
