"""Predictions for instances at hand, with the factor that is certified for them."""

import dataclasses

import numpy as np
from jaxtyping import Float

from surestep.base.errors import ConfigurationError
from surestep.certify import Certificate, Difficulty, Statement, part_features, with_start
from surestep.problem import Goal, Problem, Theta, count, thresholds
from surestep.storage.records import from_plain

STATEMENT = "outcome over prediction"
"""The certificate's statement about predictions."""

_START = Goal(scale=1.0, exponent=1.0)


@dataclasses.dataclass(frozen=True)
class Prediction:
    """What is predicted of instances before they are solved, and how far it may be off.

    **Example:**

    ```python
    prediction = solver.predict(thetas)
    print(prediction.what, prediction.expected)
    late = solver.solve(thetas).iterations > prediction.most
    print(prediction.share, late)  # certified: true on so few of new instances in the long run
    ```
    """

    what: str
    """What is predicted, in words."""
    expected: Float[np.ndarray, " instance"]
    """What is expected of every instance; nothing is certified of it."""
    share: float
    """The share of new instances whose outcome is at most `most`, with the certificate's
    confidence. It is said of new instances together, never of the one at hand."""
    factor: float
    """By which factor an outcome may be worse than expected."""

    @property
    def most(self) -> Float[np.ndarray, " instance"]:
        """What the outcome of such a share of new instances is at most."""
        return self.factor * self.expected


def predict(
    certificate: Certificate | None,
    problem: Problem,
    goal: Goal,
    thetas: Theta,
    share: float | None,
    block: int,
) -> Prediction:
    """Predictions for stacked instances of the problem's form."""
    details = _statement(certificate).details
    factors: dict[str, float | None] = details["factors"]
    share = float(details["share"]) if share is None else share
    factor = factors.get(f"{share:g}")
    if factor is None:
        known = ", ".join(name for name, one in factors.items() if one is not None)
        raise ConfigurationError(
            f"no factor is certified for a share of {share:g} of new instances; there is one for "
            f"{known or 'none'}"
        )
    difficulty = from_plain(Difficulty, details["predictor"], "predictor")
    size = min(block, count(thetas))
    starts, goals = (
        np.asarray(thresholds(one, problem, thetas, size), np.float64) for one in (_START, goal)
    )
    features = with_start(part_features(thetas), starts, goals)
    return Prediction(str(details["predicted"]), difficulty.predict(features), share, factor)


def _statement(certificate: Certificate | None) -> Statement:
    statements = () if certificate is None else certificate.statements
    for statement in statements:
        if statement.name == STATEMENT:
            return statement
    raise ConfigurationError(
        "nothing is certified of predictions: outcomes on this family could not be predicted from "
        "its instances, or there were too few of them, or the solver has no certificate"
    )
