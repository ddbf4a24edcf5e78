"""One epsilon, spent by name: the probability with which anything in a certificate is false."""

import dataclasses
import math

from surestep.base.errors import ConfigurationError


@dataclasses.dataclass(frozen=True)
class Share:
    """A part of epsilon and what it pays for."""

    name: str
    epsilon: float


@dataclasses.dataclass(frozen=True)
class Ledger:
    """What has been spent of an epsilon. The statements hold jointly with `1 - epsilon`."""

    epsilon: float
    shares: tuple[Share, ...] = ()

    @property
    def spent(self) -> float:
        """The sum of all shares."""
        return math.fsum(share.epsilon for share in self.shares)

    @property
    def left(self) -> float:
        """What may still be spent."""
        return max(self.epsilon - self.spent, 0.0)

    def spend(self, name: str, epsilon: float) -> "Ledger":
        """Pay for a statement; refused if the name is taken or the epsilon does not suffice."""
        if any(share.name == name for share in self.shares):
            raise ConfigurationError(f"{name!r} has been paid for already")
        if not 0 < epsilon < 1:
            raise ConfigurationError(
                f"a share of epsilon must lie strictly between 0 and 1, not {epsilon} ({name})"
            )
        spent = Ledger(self.epsilon, (*self.shares, Share(name, epsilon)))
        # Shares are rounded fractions of epsilon: their sum may be off by rounding, no more.
        if spent.spent > self.epsilon * (1 + 1e-12):
            raise ConfigurationError(
                f"{name!r} needs {epsilon:g} of epsilon {self.epsilon:g}, of which "
                f"{self.spent:g} is spent"
            )
        return spent

    def of(self, name: str) -> float:
        """The share that a name was given."""
        for share in self.shares:
            if share.name == name:
                return share.epsilon
        raise ConfigurationError(f"nothing was paid for {name!r}")


def divide(epsilon: float, weights: dict[str, float]) -> Ledger:
    """Spend all of epsilon on the named statements, in proportion to their weights."""
    total = math.fsum(weights.values())
    if not weights or min(weights.values()) <= 0:
        raise ConfigurationError("every statement needs a positive weight in the budget")
    ledger = Ledger(epsilon)
    for name, weight in weights.items():
        ledger = ledger.spend(name, epsilon * weight / total)
    return ledger
