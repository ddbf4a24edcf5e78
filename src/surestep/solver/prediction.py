"""Predictions for instances at hand, with the factor that is certified for them."""

import dataclasses
from typing import Protocol

import numpy as np
from jaxtyping import Float

from surestep.base.errors import ConfigurationError
from surestep.certify import Certificate, Difficulty, Statement, part_features, with_start
from surestep.problem import (
    Goal,
    Instances,
    Problem,
    Theta,
    count,
    theta_form,
    thresholds,
    working_precision,
)
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
    print(prediction.most)  # certified: the outcome of at least this share of new instances
    print(prediction.share)
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


class Predicts(Protocol):
    """What a solver has that predictions are made with."""

    @property
    def problem(self) -> Problem:
        """The family."""
        ...

    @property
    def goal(self) -> Goal:
        """What counts as success."""
        ...

    @property
    def block(self) -> int:
        """How many instances are a batch."""
        ...

    @property
    def certificate(self) -> Certificate | None:
        """What is certified, if anything is."""
        ...


def predict(self: Predicts, thetas: Theta, share: float | None = None) -> Prediction:
    """What to expect of stacked instances before they are solved, predicted by the prior set.

    For a share of new instances it is certified by which factor it may be worse.

    **Arguments:**

    - `thetas`: the instances, as for `solve`.
    - `share`: of new instances; by default the one that the certificate's sentence is about.

    **Returns:** a `Prediction`.

    **Raises:** `surestep.errors.ConfigurationError` if no factor is certified for the share.

    **Example:**

    ```python
    prediction = solver.predict(thetas)
    print(f"{prediction.what}: {prediction.expected}, certified {prediction.most}")
    ```
    """
    details = _statement(self.certificate).details
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
    problem = self.problem
    with working_precision(problem):
        thetas = Instances.of(problem, theta_form(problem), thetas).thetas
        size = min(self.block, count(thetas))
        starts, goals = (
            np.asarray(thresholds(one, problem, thetas, size), np.float64)
            for one in (_START, self.goal)
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
