"""Coordinate descent for the lasso, through scikit-learn, with a duality gap of our own.

It is what a user would otherwise call, and it finds the minima that accuracies are counted from.
"""

import dataclasses
import warnings
from typing import Any, Self

import numpy as np
from jaxtyping import Float

from surestep.base.errors import ProblemError
from surestep.base.machine import require
from surestep.paper.active_set import minimiser

RELATIVE_GAP = 1e-10
"""How close minima are: the duality gap divided by the loss."""

_ROUGH = (1e-3, 1e-8, 0.0)
"""Gaps, as shares of the loss, from which the exact search begins, in this order; 0: from 0."""


def primal_and_dual(
    matrix: Float[np.ndarray, "m n"],
    target: Float[np.ndarray, " m"],
    weight: float,
    x: Float[np.ndarray, " n"],
) -> tuple[float, float]:
    """The lasso's loss at `x`, and the best lower bound of the minimum that its residual gives.

    Every `v` with `max |A' v| <= weight` shows that the minimum is at least
    `0.5 norm(b)^2 - 0.5 norm(b - v)^2`; `v` is the multiple of the residual `b - A x` that
    makes this largest.
    """
    residual = target - matrix @ x
    primal = 0.5 * residual @ residual + weight * np.abs(x).sum()
    steepest = np.abs(matrix.T @ residual).max()
    squares = residual @ residual
    if squares == 0:
        return float(primal), 0.0
    limit = weight / steepest if steepest > 0 else np.inf
    scale = np.clip(target @ residual / squares, -limit, limit)
    apart = target - scale * residual
    return float(primal), float(0.5 * target @ target - 0.5 * apart @ apart)


@dataclasses.dataclass(frozen=True)
class CoordinateDescent:
    """scikit-learn's coordinate descent for one matrix; it starts from 0, as it does by default."""

    matrix: Float[np.ndarray, "m n"]
    lasso: Any
    """scikit-learn's class."""

    @classmethod
    def of(cls, matrix: Any) -> Self:
        """For a matrix; refused at once where scikit-learn is not installed."""
        module = require("sklearn.linear_model", "scikit-learn", "the lasso's reference solver")
        # The order of entries that scikit-learn works with: it need not copy them.
        return cls(np.asfortranarray(matrix, np.float64), module.Lasso)

    def solve(
        self, target: Float[np.ndarray, " m"], weight: float, gap: float, sweeps: int = 100_000
    ) -> Float[np.ndarray, " n"]:
        """A point whose duality gap, as scikit-learn sees it, is at most `gap`."""
        rows = len(target)
        model = self.lasso(
            alpha=weight / rows,
            fit_intercept=False,
            copy_X=False,
            tol=gap / float(target @ target),
            max_iter=sweeps,
        )
        with warnings.catch_warnings():
            # Whoever needs the gap checks it; a warning would not stop anybody.
            warnings.simplefilter("ignore")
            return model.fit(self.matrix, target).coef_

    def minima(
        self,
        targets: Float[np.ndarray, "instance m"],
        weights: Float[np.ndarray, " instance"],
        relative_gap: float = RELATIVE_GAP,
    ) -> Float[np.ndarray, " instance"]:
        """The minimum of every instance: the dual bound, so that no loss lies below it."""
        found = []
        pairs = zip(np.asarray(targets, np.float64), np.asarray(weights), strict=True)
        for i, (target, weight) in enumerate(pairs):
            loss, dual = self.bracketed(target, float(weight), relative_gap)
            if loss - dual > relative_gap * loss:
                raise ProblemError(
                    f"a duality gap of {loss - dual:.3g} is left at a loss of {loss:.6g} on "
                    f"instance {i}, and {relative_gap:g} of the loss is wanted"
                )
            found.append(dual)
        return np.array(found)

    def bracketed(
        self,
        target: Float[np.ndarray, " m"],
        weight: float,
        relative_gap: float = RELATIVE_GAP,
    ) -> tuple[float, float]:
        """A loss that is reached and a bound below all losses, this close if that can be had."""
        loss = dual = 0.5 * float(target @ target)
        for share in _ROUGH:
            # Descent is fast far from the minimum and slow near it, the search is the opposite.
            columns = self.matrix.shape[1]
            rough = self.solve(target, weight, share * loss) if share else np.zeros(columns)
            x = minimiser(self.matrix, target, weight, rough)
            loss, dual = primal_and_dual(self.matrix, target, weight, x)
            if loss - dual <= relative_gap * loss:
                break
        return loss, dual
