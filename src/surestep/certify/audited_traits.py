"""Traits of the audit's families: predictions, and kinds of which one is rare."""

import numpy as np
from jaxtyping import Float

from surestep.certify.claims import AnyClaim, Foretold, InStratum
from surestep.certify.traits import AnyTrait, Difficulty, Label


def known_traits(target: int) -> tuple[AnyTrait, ...]:
    """A prediction of the iterations to a target, and a kind; both stand in the family's table."""
    difficulty = Difficulty("iterations", target, 0.0, (), (), 0.0, 0.0, 0.0)
    return difficulty, Label(("even", "odd", "rare"))


def made_traits(
    needed: Float[np.ndarray, " kind"], horizon: int
) -> Float[np.ndarray, "kind trait"]:
    """Predictions of what is needed that are right to a factor of about two, and kinds."""
    random, size = np.random.default_rng(2), len(needed)
    guesses = np.clip(needed, 1.0, 2.0 * horizon) * np.exp(0.5 * random.normal(size=size))
    kinds = np.where(random.random(size) < 0.02, 2, np.arange(size) % 2)
    return np.stack([guesses, kinds], axis=1)


def claims_by_trait(target: int, edge: float, shares: tuple[float, ...]) -> tuple[AnyClaim, ...]:
    """About predictions, and about kinds; the prediction `edge` divides easy from hard ones."""
    return (
        Foretold("outcome over prediction", 0, shares, shares[-1]),
        InStratum("easy", 0, None, edge, "easy", target, shares),
        InStratum("hard", 0, edge, None, "hard", target, shares),
        InStratum("odd", 1, 0.5, 1.5, "odd", target, shares),
        InStratum("rare", 1, 1.5, 2.5, "rare", target, shares),
    )
