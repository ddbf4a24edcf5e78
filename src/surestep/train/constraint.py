"""The success constraint: is a rule's success probability inside an interval?

The probability is estimated as in the paper's algorithm for probabilistic constraints: a Beta
posterior is updated success by success until its quantiles are close together. Instances are
drawn without replacement from a validation set, so the set can be too small to tell, and then
the answer is "undecided".
"""

import dataclasses
from collections.abc import Iterable
from typing import Literal

import numpy as np
from jaxtyping import Bool, Float
from scipy import special

from surestep.base.errors import ConfigurationError

Verdict = Literal["inside", "outside", "undecided"]


@dataclasses.dataclass(frozen=True)
class Constraint:
    """Which success probabilities are acceptable, and how surely they must be known.

    **Example:**

    ```python
    constraint = ss.Constraint(lower=0.9, width=0.1)
    print(constraint.assess(successes=196, trials=200))
    config = dataclasses.replace(ss.paper.preset("quadratics", "quick"), constraint=constraint)
    ```
    """

    lower: float = 0.95
    """Smallest acceptable success probability."""
    upper: float = 1.0
    """Largest acceptable success probability."""
    quantile_lower: float = 0.01
    """Lower quantile of the Beta posterior."""
    quantile_upper: float = 0.99
    """Upper quantile of the Beta posterior."""
    width: float = 0.075
    """The estimate stands once the two quantiles are closer than this."""
    point: Literal["mean", "mode"] = "mean"
    """Which point of the Beta posterior is the estimate."""
    early_decision: float = 1e-4
    """Stop as well once the posterior probability of being inside, or outside, is below this."""

    def validate(self, available: int) -> None:
        """Refuse settings that contradict themselves or that cannot be met.

        **Arguments:**

        - `available`: how many validation instances there are.

        **Raises:** `surestep.errors.ConfigurationError`.
        """
        for name in ("lower", "upper", "quantile_lower", "quantile_upper", "early_decision"):
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigurationError(
                    f"constraint.{name} is a probability and must lie in [0, 1], "
                    f"not {getattr(self, name)}"
                )
        if not self.lower < self.upper:
            raise ConfigurationError(
                f"constraint.lower ({self.lower}) must be below constraint.upper ({self.upper})"
            )
        if not self.quantile_lower < self.quantile_upper:
            raise ConfigurationError(
                f"constraint.quantile_lower ({self.quantile_lower}) must be below "
                f"constraint.quantile_upper ({self.quantile_upper})"
            )
        if not 0 < self.width <= 1:
            raise ConfigurationError(f"constraint.width must lie in (0, 1], not {self.width}")
        if self.point == "mode" and self.lower == 0:
            raise ConfigurationError(
                "with constraint.point mode, constraint.lower must be above 0: risks are divided "
                "by the estimate"
            )
        needed = self.fewest_instances()
        if available < needed:
            raise ConfigurationError(
                f"{available} validation instances can never bring the quantiles of the success "
                f"probability within {self.width} of each other: at least {needed} are needed, "
                "even if a rule succeeds on all of them (sizes.validation, constraint.width)"
            )

    def fewest_instances(self, limit: int = 100_000) -> int:
        """The smallest set that can decide: one on which every rollout succeeds."""
        trials = np.arange(1, limit + 1)
        decided = _decided(self, trials, trials)
        return int(trials[np.argmax(decided)]) if decided.any() else limit

    def assess(self, successes: int, trials: int) -> "SuccessEstimate":
        """The estimate that so many successes in so many trials amount to.

        **Arguments:**

        - `successes`: how often the goal was reached.
        - `trials`: on how many instances.

        **Returns:** the estimated probability, its quantiles, and the verdict `"inside"`,
        `"outside"` or `"undecided"`.

        **Example:**

        ```python
        print(ss.Constraint(lower=0.9).assess(successes=10, trials=10).verdict)  # undecided
        ```
        """
        counts = np.array([successes]), np.array([trials])
        low, high = _quantiles(self, *counts)
        if self.point == "mode" and trials > 0:
            probability = successes / trials
        else:
            probability = (1 + successes) / (2 + trials)
        verdict: Verdict = "undecided"
        if trials > 0 and _decided(self, *counts)[0]:
            verdict = "inside" if self.lower <= probability <= self.upper else "outside"
        return SuccessEstimate(
            successes, trials, probability, float(low[0]), float(high[0]), verdict
        )


@dataclasses.dataclass(frozen=True)
class SuccessEstimate:
    """What is known of a success probability."""

    successes: int
    trials: int
    probability: float
    quantile_lower: float
    quantile_upper: float
    verdict: Verdict

    def density(self, x: Float[np.ndarray, " point"]) -> Float[np.ndarray, " point"]:
        """The Beta posterior's density, from the uniform distribution on."""
        good, bad = self.successes, self.trials - self.successes
        logarithm = special.xlogy(good, x) + special.xlog1py(bad, -x)
        return np.exp(logarithm - special.betaln(1 + good, 1 + bad))

    @property
    def inside(self) -> bool:
        """Whether the constraint is known to be met; undecided is not."""
        return self.verdict == "inside"

    def __str__(self) -> str:
        return (
            f"{self.probability:.3f} ({self.successes} of {self.trials} succeeded, quantiles "
            f"{self.quantile_lower:.3f} and {self.quantile_upper:.3f}: {self.verdict})"
        )


def estimate_success(
    outcomes: Iterable[Bool[np.ndarray, " block"]], constraint: Constraint
) -> SuccessEstimate:
    """Consume outcomes in order, one trial at a time, until the constraint is decided.

    Outcomes come in blocks because rollouts are made in blocks; what is left of a block once the
    estimate stands is not looked at, so the block size does not change the answer.
    """
    successes, trials = 0, 0
    for block in outcomes:
        trials_so_far = trials + np.arange(1, len(block) + 1)
        successes_so_far = successes + np.cumsum(block)
        decided = _decided(constraint, successes_so_far, trials_so_far)
        stop = int(np.argmax(decided)) if decided.any() else len(block) - 1
        successes, trials = int(successes_so_far[stop]), int(trials_so_far[stop])
        if decided[stop]:
            break
    return constraint.assess(successes, trials)


def _quantiles(
    constraint: Constraint, successes: np.ndarray, trials: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    # Beta(1, 1), the uniform distribution, is what is believed before the first trial.
    a, b = 1.0 + successes, 1.0 + trials - successes
    return (
        special.betaincinv(a, b, constraint.quantile_lower),
        special.betaincinv(a, b, constraint.quantile_upper),
    )


def _decided(constraint: Constraint, successes: np.ndarray, trials: np.ndarray) -> np.ndarray:
    low, high = _quantiles(constraint, successes, trials)
    a, b = 1.0 + successes, 1.0 + trials - successes
    inside = special.betainc(a, b, constraint.upper) - special.betainc(a, b, constraint.lower)
    clear = np.minimum(inside, 1 - inside) < constraint.early_decision
    return (high - low < constraint.width) | clear
