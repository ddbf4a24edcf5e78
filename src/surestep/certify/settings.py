"""What is certified, and how surely: the numbers of a run that its plan is made with."""

import dataclasses
from typing import Literal, get_args

from surestep.base.errors import ConfigurationError, unknown
from surestep.certify.claims import KINDS
from surestep.certify.claims.base import BoundedForm

BEST = "best"
"""The form that the prior set's forecast finds tightest."""


@dataclasses.dataclass(frozen=True)
class CertifySettings:
    """What is certified, and how surely."""

    epsilon: float = 0.05
    """The probability with which any of the certificate's rigorous statements may be false."""
    lambdas: int = 200
    """How many values of lambda the paper's bound is minimised over; it pays the logarithm."""
    lambda_ratio: float = 100.0
    """The set of lambda reaches from its centre divided by this to its centre times this."""
    iterations: int = 36
    """At about how many iterations up to the horizon the train losses are kept."""
    stake: float = 0.9
    """The prior weight bet on the sample that did best on the prior set."""
    form: Literal["best", "chernoff", "betting", "pac-bayes-kl"] = "best"
    """The bound for values between 0 and 1: for each claim the one that is forecast to be tightest,
    or the same for all. Values that are 0 or 1 get the exact one."""
    levels: int = 24
    """How many losses are certified to be reached, from the start's down to the smallest."""
    level_iterations: int = 4
    """At how many of the iterations they are certified."""
    opponents: tuple[str, ...] = ()
    """Baselines to certify the learned rule against; none named means the strongest on the prior
    set."""
    compared: bool = True
    """Whether it is certified against any."""
    closeness: bool = True
    """Whether it says how close solves come to the minima, or to what else accuracies are counted
    from. These are computed for the prior and the train set then."""
    shares: tuple[float, ...] = (1e-2, 1e-4, 1e-6)
    """How close, as shares of what lies between start and minimum."""
    pilot: int = 250
    """On how many prior instances the plan forecasts what a claim will say."""
    weights: tuple[tuple[str, float], ...] = ()
    """Which kinds of claims are given which part of epsilon, for example `goal 2 within 4`; what is
    not named has its usual weight."""

    def validate(self) -> None:
        """Refuse sizes that cannot work."""
        if not 0 < self.epsilon < 1:
            raise ConfigurationError(
                f"certify.epsilon must lie strictly between 0 and 1, not {self.epsilon}"
            )
        for name in ("lambdas", "iterations", "levels", "level_iterations", "pilot"):
            if getattr(self, name) < 1:
                raise ConfigurationError(f"certify.{name} must be at least 1")
        if not self.lambda_ratio > 1:
            raise ConfigurationError("certify.lambda_ratio must be above 1")
        if not 0 <= self.stake < 1:
            raise ConfigurationError(f"certify.stake must lie in [0, 1), not {self.stake}")
        if self.opponents and not self.compared:
            raise ConfigurationError(
                "certify.opponents names opponents, and certify.compared says that there are none"
            )
        if not all(0 < share < 1 for share in self.shares):
            raise ConfigurationError(
                f"certify.shares must lie strictly between 0 and 1, not {self.shares}"
            )
        for kind, weight in self.weights:
            if kind not in KINDS:
                raise ConfigurationError(unknown("kind of claim", kind, KINDS))
            if not weight > 0:
                raise ConfigurationError(
                    f"certify.weights must be positive, not {weight} for {kind!r}"
                )
        forms = (BEST, *get_args(BoundedForm))
        if self.form not in forms:
            raise ConfigurationError(unknown("certify.form", self.form, forms))
