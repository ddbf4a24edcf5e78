"""Predictions for instances at hand, with the factor that is certified for them."""

import dataclasses

import numpy as np
from jaxtyping import Float

from surestep.base.errors import ConfigurationError
from surestep.certify import Certificate, Difficulty, Statement, part_features, with_start
from surestep.problem import Goal, Instances, Problem, Theta, count, thresholds, working_precision
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


@dataclasses.dataclass(frozen=True)
class _Told:
    """What the statement tells of predictions."""

    predicted: str
    predictor: Difficulty
    share: float
    factors: dict[str, float | None]


def predict(
    certificate: Certificate | None,
    problem: Problem,
    goal: Goal,
    form: Theta,
    block: int,
    thetas: Theta,
    share: float | None,
) -> Prediction:
    """Predictions for stacked instances; `form` has the shapes and dtypes of one."""
    details = _statement(certificate).details
    # A certificate may come from a stranger's file.
    known = {field.name: details.get(field.name) for field in dataclasses.fields(_Told)}
    told = from_plain(_Told, known, STATEMENT)
    share = told.share if share is None else share
    factor = told.factors.get(f"{share:g}")
    if factor is None:
        some = ", ".join(name for name, one in told.factors.items() if one is not None)
        raise ConfigurationError(
            f"no factor is certified for a share of {share:g} of new instances; there is one for "
            f"{some or 'none'}"
        )
    with working_precision(problem):
        thetas = Instances.of(problem, form, thetas).thetas
        size = min(block, count(thetas))
        starts, goals = (
            np.asarray(thresholds(one, problem, thetas, size), np.float64) for one in (_START, goal)
        )
    features = with_start(part_features(thetas), starts, goals)
    return Prediction(told.predicted, told.predictor.predict(features), share, factor)


def _statement(certificate: Certificate | None) -> Statement:
    statements = () if certificate is None else certificate.statements
    for statement in statements:
        if statement.name == STATEMENT:
            return statement
    raise ConfigurationError(
        "nothing is certified of predictions: outcomes on this family could not be predicted from "
        "its instances, or there were too few of them, or the solver has no certificate"
    )
