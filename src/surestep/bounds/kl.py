"""Bounds for means of values in [0, 1]: binary relative entropy, PAC-Bayes-kl, exact binomial.

Everything here errs on the safe side in floating point too: an upper bound is never below the
exact one, because the search ends on the far side of the root, beyond the rounding error.
"""

import numpy as np
from jaxtyping import Bool, Float, Real
from scipy import special

from surestep.base.errors import ConfigurationError
from surestep.bounds.logarithms import log_sum_exp

# Larger than the rounding error of `binary_kl`, relative and absolute.
RELATIVE, ABSOLUTE = 1e-12, 1e-15

Numbers = Float[np.ndarray, "..."]
Counts = Real[np.ndarray, "..."] | np.integer | float
"""Whole numbers; as floats too, where they were computed."""


def binary_kl(q: Numbers | float, p: Numbers | float) -> Numbers | np.float64:
    """The relative entropy of a coin with probability `q` to one with probability `p`."""
    q, p = np.asarray(q, np.float64), np.asarray(p, np.float64)
    return special.rel_entr(q, p) + special.rel_entr(1 - q, 1 - p)


def kl_upper(mean: Numbers | float, radius: Numbers | float) -> Numbers:
    """The largest `p` with `binary_kl(mean, p) <= radius`, rounded up."""
    mean, radius = np.broadcast_arrays(np.asarray(mean, np.float64), np.asarray(radius, np.float64))
    _require(np.all((mean >= 0) & (mean <= 1)), "means must lie in [0, 1]")
    _require(np.all(radius >= 0), "a radius must not be negative")

    def beyond(p: Numbers | float) -> Bool[np.ndarray, "..."] | np.bool_:
        return binary_kl(mean, p) * (1 - RELATIVE) - ABSOLUTE >= radius

    inside, outside = mean.copy(), np.ones_like(mean)
    # Around a good guess the search is short, but the guess itself proves nothing.
    width = _near_kl_upper(mean, radius) - mean
    for factor in (1 - 1e-11, 1 + 1e-11):
        near = np.clip(mean + factor * width, mean, 1.0)
        far = beyond(near)
        outside = np.where(far, np.minimum(near, outside), outside)
        inside = np.where(far, inside, np.maximum(near, inside))
    # Halving ends between neighbouring floats; near 0 that takes up to 1100 halvings.
    for _ in range(1100):
        middle = 0.5 * (inside + outside)
        if np.all((middle <= inside) | (middle >= outside)):
            break
        far = beyond(middle)
        outside = np.where(far, middle, outside)
        inside = np.where(far, inside, middle)
    return outside


def _near_kl_upper(mean: Numbers, radius: Numbers) -> Numbers:
    """Newton's method from Pinsker's bound: the relative entropy is convex and rises there."""
    p = np.minimum(mean + np.sqrt(0.5 * radius), 1 - 1e-16)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        for _ in range(12):
            p = p - (binary_kl(mean, p) - radius) * p * (1 - p) / (p - mean)
        guess = np.where(mean > 0, p, -np.expm1(-radius))
    return np.where((guess > mean) & (guess < 1), guess, 1.0)


def kl_lower(mean: Numbers | float, radius: Numbers | float) -> Numbers | np.float64:
    """The smallest `p` with `binary_kl(mean, p) <= radius`, rounded down."""
    return 1 - kl_upper(1 - np.asarray(mean, np.float64), radius)


def mean_upper(mean: Numbers | float, size: int, level: Numbers | float) -> Numbers:
    """An upper bound for the mean of values in [0, 1] that fails with probability `level`.

    Chernoff's bound in its relative-entropy form: independent values, nothing else.
    """
    _require_level(level)
    return kl_upper(mean, -np.log(level) / _sized(size))


def binomial_upper(successes: Counts, trials: int, level: Numbers | float) -> Numbers:
    """The exact (Clopper-Pearson) upper bound for a probability; fails with at most `level`."""
    _require_level(level)
    k = np.asarray(successes, np.float64)
    _require(np.all((k >= 0) & (k <= _sized(trials))), "successes must lie in [0, trials]")
    rest = np.maximum(trials - k, 0.5)
    bound = np.minimum(special.betainccinv(k + 1, rest, level) * (1 + RELATIVE), 1.0)
    # The library's inverse fails at extreme levels: where going forward does not confirm it,
    # Chernoff's bound, which is never below the exact one, takes its place.
    confirmed = special.betaincc(k + 1, rest, bound) <= np.asarray(level)
    if not np.all(confirmed | (k == trials)):
        chernoff = kl_upper(np.minimum(k / trials, 1.0), -np.log(level) / trials)
        bound = np.where(confirmed, bound, chernoff)
    return np.where(k == trials, 1.0, bound)


def binomial_tail(successes: Counts, trials: int, probability: float) -> Numbers:
    """The probability of so many successes or fewer in so many trials, rounded up."""
    _require(0 <= probability <= 1, "a probability must lie in [0, 1]")
    k = np.asarray(successes, np.float64)
    _require(np.all((k >= 0) & (k <= _sized(trials))), "successes must lie in [0, trials]")
    tail = special.betaincc(k + 1, np.maximum(trials - k, 0.5), probability)
    # Far above the library's error, far below anything that decides; underflow proves nothing.
    return np.where(k == trials, 1.0, np.minimum(np.maximum(tail, 1e-290) * (1 + 1e-9), 1.0))


def binomial_lower(successes: Counts, trials: int, level: Numbers | float) -> Numbers | np.float64:
    """The exact (Clopper-Pearson) lower bound for a probability; fails with at most `level`."""
    return 1 - binomial_upper(trials - np.asarray(successes), trials, level)


def log_kl_moment(size: int) -> float:
    """The logarithm of `sum_k C(N, k) (k/N)^k (1 - k/N)^(N - k)`, rounded up.

    No distribution of N independent values in [0, 1] makes the expectation of
    `exp(N binary_kl(empirical mean, mean))` larger; it lies between sqrt(N) and 2 sqrt(N).
    """
    n = _sized(size)
    k = np.arange(n + 1, dtype=np.float64)
    choose = special.gammaln(n + 1) - special.gammaln(k + 1) - special.gammaln(n - k + 1)
    terms = choose + special.xlogy(k, k / n) + special.xlogy(n - k, 1 - k / n)
    # gammaln's rounding grows with its value.
    return float(log_sum_exp(terms) + 1e-12 * max(1.0, special.gammaln(n + 1)))


def pac_bayes_kl(
    posterior_mean: Numbers | float, divergence: Numbers | float, size: int, level: float
) -> Numbers:
    """PAC-Bayes-kl: an upper bound for the posterior's mean, for all posteriors at once.

    `posterior_mean` is the posterior's average of empirical means of values in [0, 1],
    `divergence` its relative entropy to the prior.
    """
    _require_level(level)
    divergence = np.asarray(divergence, np.float64)
    _require(np.all(divergence >= 0), "a divergence must not be negative")
    return kl_upper(posterior_mean, (divergence + log_kl_moment(size) - np.log(level)) / size)


def divergence(log_posterior: Numbers, log_prior: Numbers) -> float:
    """The relative entropy of one finite distribution to another, both given by log-weights."""
    log_posterior, log_prior = np.asarray(log_posterior), np.asarray(log_prior)
    held = log_posterior > -np.inf
    terms = np.exp(log_posterior[held]) * (log_posterior[held] - log_prior[held])
    return max(float(np.sum(terms)), 0.0)


def _sized(size: int) -> int:
    _require(size >= 1, f"at least one instance is needed, not {size}")
    return size


def _require_level(level: Numbers | float) -> None:
    _require(
        np.all((np.asarray(level) > 0) & (np.asarray(level) < 1)),
        "a confidence level must lie strictly between 0 and 1",
    )


def _require(condition: object, message: str) -> None:
    if not condition:
        raise ConfigurationError(message)
