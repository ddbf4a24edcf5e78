"""Bets that begin again and again: the wealth of a monitor.

Bets that run from the beginning lose nearly all while all is well, and would need as much evidence
to win it back. So only a part of the wealth is bet from the beginning, and before each further
outcome a part of the rest, which has lost nothing. The parts add up to 1, and decrease so slowly
that what changes late is noticed about as soon as what is wrong at once.
"""

from typing import Any

import numpy as np
from jaxtyping import Float


def log_rest(time: Any) -> Any:
    """The logarithm of the wealth that is not bet yet before the outcome of this number."""
    return -np.log(np.log2(np.asarray(time, np.float64) + 2))


def log_new(time: Any, number: int) -> Any:
    """The logarithm of what each of so many bets gets, before this outcome, from the rest."""
    now, next_ = log_rest(time), log_rest(np.asarray(time) + 1)
    return now + np.log(-np.expm1(next_ - now)) - np.log(number)


def at_first(number: int) -> tuple[float, ...]:
    """What is on each of so many bets before the first outcome."""
    return (float(log_new(0, number)),) * number


def played(
    log_bets: tuple[float, ...], seen: int, gains: Float[np.ndarray, "bet outcome"]
) -> tuple[tuple[float, ...], float]:
    """What is on each bet after some outcomes, and the logarithm of the largest wealth on the way.

    `gains` are the logarithms of what each outcome multiplies each bet with.
    """
    won = np.cumsum(gains, axis=1)
    times = seen + 1 + np.arange(gains.shape[1])
    # What is added before an outcome wins with the outcomes from then on.
    fresh = log_new(times, len(log_bets)) - won
    path = np.logaddexp.accumulate(
        np.concatenate([np.array(log_bets)[:, None], fresh], axis=1), axis=1
    )
    ended, before_next = path[:, :-1] + won, path[:, 1:] + won
    together = np.logaddexp(np.logaddexp.reduce(ended, axis=0), log_rest(times))
    return tuple(float(v) for v in before_next[:, -1]), float(together.max())
