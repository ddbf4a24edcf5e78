"""The lasso's minimiser, exactly: a search over the signs of its entries.

Among points with given signs the loss is a quadratic function, whose minimiser is known from a
factorisation. A step goes there, or to the best point on the way at which an entry becomes 0; where
the minimiser has its signs, the entry whose slope says that it should not be 0 joins. No step
makes the loss larger and no signs come twice, so the search ends. (Lee, Battle, Raina and Ng,
*Efficient sparse coding algorithms*, call it feature-sign search.)
"""

import numpy as np
from jaxtyping import Float

from surestep.base.lazy import slow_import

_DEPENDENT = 1e-11  # a diagonal entry of R this much smaller than the largest: dependent columns
_REFINEMENTS = 2  # of the solution of the equations; each divides what rounding has left
_STEPS = 20  # for each row of the matrix: a search takes two or three


def minimiser(
    matrix: Float[np.ndarray, "m n"],
    target: Float[np.ndarray, " m"],
    weight: float,
    start: Float[np.ndarray, " n"],
) -> Float[np.ndarray, " n"]:
    """The minimiser of `0.5 norm(A x - b)^2 + weight * norm1(x)`, searched for from a start."""
    x, signs = start.copy(), np.sign(start)
    for _ in range(_STEPS * len(target)):
        settled = _step(matrix, target, weight, x, signs)
        if not settled:
            continue
        slopes = matrix.T @ (target - matrix @ x)
        outside = np.where(signs == 0, np.abs(slopes), 0.0)
        joins = int(outside.argmax())
        if outside[joins] <= weight * (1 + 1e-13):
            break
        signs[joins] = np.sign(slopes[joins])
    return x


def _step(
    matrix: Float[np.ndarray, "m n"],
    target: Float[np.ndarray, " m"],
    weight: float,
    x: Float[np.ndarray, " n"],
    signs: Float[np.ndarray, " n"],
) -> bool:
    """Move towards the minimiser of these signs, in place; whether it was reached."""
    active = np.flatnonzero(signs)
    if not active.size:
        return True
    part, here, wanted = matrix[:, active], x[active], signs[active]
    found = _minimiser_of_signs(part, target, weight, wanted)
    # Where columns are dependent, the loss falls along a ray, but for entries that become 0.
    there, ends = (here + _ray(part, wanted), np.inf) if found is None else (found, 1.0)
    towards = there - here
    with np.errstate(divide="ignore", invalid="ignore"):
        zeros = np.where(towards != 0, -here / towards, np.inf)
    # An entry that has just joined is 0 itself; it may only go where its sign says.
    zeros = np.where(here == 0, np.where(towards * wanted < 0, 0.0, np.inf), zeros)
    crossings = np.unique(zeros[(zeros >= 0) & (zeros < ends)])
    if not crossings.size:
        x[active] = there
        return True
    places = np.append(crossings, 1.0) if ends == 1.0 else crossings
    points = here + places[:, None] * towards
    points[zeros[None, :] == places[:, None]] = 0.0
    left = target - points @ part.T
    losses = 0.5 * np.sum(left * left, axis=1) + weight * np.abs(points).sum(axis=1)
    best = points[int(losses.argmin())]
    x[active], signs[active] = best, np.sign(best)
    return False


def _minimiser_of_signs(
    part: Float[np.ndarray, "m k"],
    target: Float[np.ndarray, " m"],
    weight: float,
    signs: Float[np.ndarray, " k"],
) -> Float[np.ndarray, " k"] | None:
    """Where the slope of the squares is the weight times the signs; none if columns depend."""
    rows, columns = part.shape
    if columns > rows:
        return None
    orthogonal, upper = np.linalg.qr(part)
    diagonal = np.abs(np.diag(upper))
    if diagonal.min() <= _DEPENDENT * diagonal.max():
        return None
    solve = slow_import("scipy.linalg").solve_triangular
    found = solve(upper, orthogonal.T @ target - weight * solve(upper, signs, trans="T"))
    for _ in range(_REFINEMENTS):
        wrong = part.T @ (target - part @ found) - weight * signs
        found = found + solve(upper, solve(upper, wrong, trans="T"))
    return found


def _ray(part: Float[np.ndarray, "m k"], signs: Float[np.ndarray, " k"]) -> Float[np.ndarray, " k"]:
    """A direction that changes no residual and lowers the penalty."""
    _, singular, right = np.linalg.svd(part)
    rank = int(np.sum(singular > _DEPENDENT * singular[0]))
    null = right[rank:]
    return -(null.T @ (null @ signs))
