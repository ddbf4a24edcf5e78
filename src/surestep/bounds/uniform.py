"""Upper bounds for the means of [0, 1]-values of all samples of a prior at once.

A sample's bound is spent its prior weight's share of epsilon, so all of them hold together with
probability `1 - epsilon`: for the sample that is deployed, whichever it is, and for every
posterior. Which form is used must be decided before the values are seen.
"""

import functools
from typing import Literal

import numpy as np
from jaxtyping import Float

from surestep.base.errors import ConfigurationError
from surestep.bounds.betting import Bet
from surestep.bounds.family import Vector, checked_epsilon, normalised
from surestep.bounds.kl import (
    binomial_tail,
    binomial_upper,
    divergence,
    kl_upper,
    log_kl_moment,
)

Form = Literal["binomial", "chernoff", "pac-bayes-kl"]
"""`binomial`: exact, for values 0 and 1. `chernoff`: relative entropy, each sample by itself.
`pac-bayes-kl`: relative entropy, posteriors by their divergence from the prior."""

Bound = Form | tuple[Bet, ...]
"""A form that needs no more than means, or bets, which are made on every value."""


def log_levels(log_prior: Vector, epsilon: float) -> Vector:
    """The logarithms of the levels at which the samples' bounds hold: they add up to epsilon."""
    return normalised(log_prior) + np.log(checked_epsilon(epsilon))


def sample_uppers(
    means: Float[np.ndarray, "*rest sample"],
    size: int,
    log_prior: Vector,
    epsilon: float,
    form: Form,
) -> Float[np.ndarray, "*rest sample"]:
    """An upper bound for every sample's true mean; jointly false with probability epsilon."""
    means = np.asarray(means, np.float64)
    cost = -log_levels(log_prior, epsilon)
    if form == "chernoff":
        return kl_upper(means, cost / size)
    if form == "pac-bayes-kl":
        return kl_upper(means, (cost + log_kl_moment(size)) / size)
    counts = means * size
    if np.any(np.abs(counts - np.round(counts)) > 1e-6):
        raise ConfigurationError("the binomial bound is for values that are 0 or 1")
    # A level that underflows would be refused; one that is larger than it asks for no proof.
    levels = np.exp(-cost)
    bounds = binomial_upper(np.round(counts), size, np.maximum(levels, 1e-100))
    return np.where(levels >= 1e-100, bounds, 1.0)


def posterior_upper(
    means: Float[np.ndarray, "*rest sample"],
    size: int,
    log_prior: Vector,
    log_posterior: Vector,
    epsilon: float,
    form: Form,
    uppers: Float[np.ndarray, "*rest sample"] | None = None,
) -> Float[np.ndarray, "*rest"]:
    """An upper bound for a posterior's true mean, on the same event as `sample_uppers`.

    Whose outcome, if it is at hand, is not computed again.
    """
    if form != "pac-bayes-kl":
        if uppers is None:
            uppers = sample_uppers(means, size, log_prior, epsilon, form)
        return drawn_upper(uppers, log_posterior)
    weights = np.exp(normalised(log_posterior))
    kl = divergence(normalised(log_posterior), normalised(log_prior))
    radius = (kl + log_kl_moment(size) - np.log(checked_epsilon(epsilon))) / size
    average = np.minimum(np.asarray(means, np.float64) @ weights, 1.0)
    return kl_upper(average, radius)


def drawn_upper(
    uppers: Float[np.ndarray, "*rest sample"], log_posterior: Vector
) -> Float[np.ndarray, "*rest"]:
    """What bounds that hold for all samples at once say of one that is drawn from a posterior."""
    return np.asarray(np.minimum(uppers @ np.exp(normalised(log_posterior)), 1.0))


def quantile_uppers(
    losses: Float[np.ndarray, "sample instance"], share: float, log_prior: Vector, epsilon: float
) -> Float[np.ndarray, " sample"]:
    """For every sample a loss that at least `share` of new instances are at or below.

    An order statistic: if fewer were, so many train losses below their quantile would have a
    binomial probability of at most the sample's part of epsilon. No loss need be named
    beforehand. Infinite where there are too few instances. Jointly false with epsilon.
    """
    samples, size = losses.shape
    levels = np.exp(log_levels(log_prior, epsilon))
    above = np.array(most_above(size, share, tuple(levels.tolist())))
    ranked = np.sort(losses, axis=1)
    found = ranked[np.arange(samples), size - 1 - np.maximum(above, 0)]
    return np.where(above >= 0, found, np.inf)


@functools.lru_cache(maxsize=1024)
def most_above(size: int, share: float, levels: tuple[float, ...]) -> tuple[int, ...]:
    """For every level, how many of `size` losses may lie above one that `share` are below.

    The largest count that is less probable than the level if fewer than `share` were below; -1
    where there is none. It rises with the count, so it is found by halving.
    """
    wanted = np.asarray(levels)
    fine, too_many = np.full(wanted.shape, -1), np.full(wanted.shape, size)
    while np.any(too_many - fine > 1):
        middle = np.maximum((fine + too_many) // 2, 0)
        good = (binomial_tail(middle, size, 1 - share) <= wanted) & (too_many - fine > 1)
        fine = np.where(good, middle, fine)
        too_many = np.where(good | (too_many - fine <= 1), too_many, middle)
    return tuple(int(count) for count in fine)


def bet(log_prior: Vector, favourite: int, stake: float) -> Vector:
    """A prior that puts `stake` on one sample and the rest on the others as they were weighted."""
    if not 0 <= stake < 1:
        raise ConfigurationError(f"a stake must lie in [0, 1), not {stake}")
    spread = normalised(log_prior) + np.log1p(-stake)
    if stake > 0:
        spread[favourite] = np.logaddexp(spread[favourite], np.log(stake))
    return normalised(spread)
