"""How time grows with size: the exponent of a power law, with its uncertainty."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy import stats

from surestep.base.errors import ConfigurationError


@dataclasses.dataclass(frozen=True)
class Exponent:
    """`time = constant * size ** value`, fitted on logarithms."""

    value: float
    margin: float
    """Half the width of the 95 % confidence interval of the exponent."""
    constant: float
    """The fitted time at size 1."""

    def __str__(self) -> str:
        # What rounds to zero has no sign.
        return f"{round(self.value, 2) + 0.0:.2f} ± {self.margin:.2f}"

    def at(self, size: float) -> float:
        """The fitted time at a size."""
        return self.constant * size**self.value


def fit_exponent(sizes: Sequence[float], times: Sequence[float]) -> Exponent:
    """Least squares on logarithms; at least three different sizes, so that there is a rest."""
    x, y = np.asarray(sizes, float), np.asarray(times, float)
    if x.shape != y.shape or x.ndim != 1:
        raise ConfigurationError("an exponent is fitted to as many times as sizes")
    if len(np.unique(x)) < 3:
        raise ConfigurationError("an exponent needs at least three different sizes")
    if not (np.all(np.isfinite(x) & (x > 0)) and np.all(np.isfinite(y) & (y > 0))):
        raise ConfigurationError("sizes and times must be positive and finite")
    line: Any = stats.linregress(np.log(x), np.log(y))
    margin = float(stats.t.ppf(0.975, len(x) - 2) * line.stderr)
    return Exponent(float(line.slope), margin, math.exp(float(line.intercept)))
