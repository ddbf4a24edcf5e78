"""What the paper's smooth rules have in common: they look one iteration back."""

from typing import ClassVar

import equinox as eqx
from jaxtyping import Scalar

from surestep.problem import Vector
from surestep.rules.base import GradientRule, Need


class Previous(eqx.Module):
    """The point and the loss one iteration ago."""

    x: Vector
    value: Scalar


class LooksBack(GradientRule):
    """A rule whose memory is the previous point and its loss.

    The paper's rules look at the logarithms of both losses.
    """

    needs: ClassVar[tuple[Need, ...]] = ("nonnegative",)

    def remember(self, x: Vector, value: Scalar, gradient: Vector) -> Previous:
        """The start is its own predecessor."""
        return Previous(x, value)
