"""Losses as a certificate counts them: from the minimum, where that is known."""

from typing import Literal

import numpy as np
from jaxtyping import Float

from surestep.certify import Statement
from surestep.run.learned import Learned

STATEMENT = "losses over iterations"


def statement_of(learned: Learned, name: str) -> Statement:
    """The certificate's statement of a name, which must be there."""
    return next(s for s in learned.certificate.statements if s.name == name)


def counted_from(learned: Learned) -> str:
    """What certified losses are counted from, in words; nothing where that is 0."""
    details = statement_of(learned, STATEMENT).details
    return learned.evaluation.above if details["counted"] == "above" else ""


def counted_losses(
    learned: Learned, losses: Float[np.ndarray, "instance ..."]
) -> Float[np.ndarray, "counted ..."]:
    """Losses of test instances as the certificate counts them, where that is known."""
    if not counted_from(learned):
        return losses
    evaluation = learned.evaluation
    known = evaluation.known
    references = evaluation.references[known].reshape(-1, *[1] * (losses.ndim - 1))
    return np.maximum(losses[known] - references, 0.0)


def counted_scale(learned: Learned) -> Literal["linear", "log"]:
    """The axis on which they are shown: what may be negative has no logarithm."""
    positive = learned.problem.nonnegative or bool(counted_from(learned))
    return "log" if positive else "linear"
