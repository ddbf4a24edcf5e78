"""The PAC-Bayesian theorem for data-dependent exponential families, on a finite prior.

A finite prior puts weights on samples `j`. With natural parameters `eta(lambda)` and statistics
`T(j)`, the theorem needs `E[exp(<eta(lambda), T>)] <= 1` under prior and data for each lambda; it
then holds for all lambdas of a finite set of K and all posteriors at once, at the price `log K`.

Only the lambdas of the set are covered: a minimum between two of them is not a bound.
"""

import dataclasses

import numpy as np
from jaxtyping import Float
from scipy.special import logsumexp

from surestep.errors import ConfigurationError

Vector = Float[np.ndarray, " sample"]


def normalised(log_weights: Vector) -> Vector:
    """Log-weights whose exponentials add up to 1.

    Leaving this out is not a matter of taste: the bound takes an expectation over the prior.
    """
    log_weights = np.asarray(log_weights, np.float64)
    if log_weights.ndim != 1 or log_weights.size == 0:
        raise ConfigurationError("a prior needs one log-weight for each of at least one sample")
    total = logsumexp(log_weights)
    if not np.isfinite(total):
        raise ConfigurationError("a prior needs at least one positive weight, and finite ones")
    return log_weights - total


@dataclasses.dataclass(frozen=True)
class GridBound:
    """A bound minimised over a finite set of lambda."""

    value: float
    """The smallest bound."""
    lambda_: float
    """The lambda it was found at."""
    log_posterior: Vector
    """Normalised log-weights of the Gibbs posterior at that lambda."""
    values: Float[np.ndarray, " lambda"]
    """The bound at every lambda of the set."""

    @property
    def mode(self) -> int:
        """The sample that weighs most in the posterior."""
        return int(np.argmax(self.log_posterior))


def grid_bound(
    log_prior: Vector,
    statistics: Float[np.ndarray, "sample k"],
    natural: Float[np.ndarray, "lambda k"],
    lambdas: Float[np.ndarray, " lambda"],
    epsilon: float,
) -> GridBound:
    """Minimise the bound `F(lambda) = -(kappa(lambda) - log(K / epsilon)) / eta_1(lambda)`.

    `statistics` is the paper's T-tilde: minus the empirical risk first, then the terms that do
    not hold the risk. `kappa` is the logarithm of the prior's expectation of
    `exp(<eta(lambda), T-tilde>)`, and the posterior at the minimum is the Gibbs posterior.
    """
    if not 0 < epsilon < 1:
        raise ConfigurationError(f"epsilon must lie strictly between 0 and 1, not {epsilon}")
    if not np.all(natural[:, 0] > 0):
        raise ConfigurationError("the first natural parameter must be positive for every lambda")
    prior = normalised(log_prior)
    exponents = np.asarray(natural, np.float64) @ np.asarray(statistics, np.float64).T
    kappa = logsumexp(prior[None, :] + exponents, axis=1)
    values = -(kappa - np.log(len(lambdas) / epsilon)) / natural[:, 0]
    best = int(np.argmin(values))
    return GridBound(
        value=float(values[best]),
        lambda_=float(lambdas[best]),
        log_posterior=normalised(prior + exponents[best]),
        values=values,
    )


def sublevel_bound(
    log_prior: Vector,
    risks: Vector,
    second_moments: Vector,
    size: int,
    lambdas: Float[np.ndarray, " lambda"],
    epsilon: float,
) -> GridBound:
    """The paper's bound on the expected loss given that the goal is reached.

    - `risks`: empirical sublevel risks, `mean(loss * reached) / p` for every sample;
    - `second_moments`: `E[g^2 on the sublevel set] / p^2` for every sample;
    - `size`: the number of instances behind the risks.

    It is a guarantee where `p` and `E[g^2]` are known, and rests on estimates where they are not.
    """
    lambdas = np.asarray(lambdas, np.float64)
    statistics = np.stack([-np.asarray(risks), np.asarray(second_moments) / size], axis=1)
    natural = np.stack([lambdas, -0.5 * lambdas**2], axis=1)
    return grid_bound(log_prior, statistics, natural, lambdas, epsilon)


def geometric_lambdas(centre: float, ratio: float, number: int) -> Float[np.ndarray, " lambda"]:
    """`number` lambdas in geometric progression from `centre / ratio` to `centre * ratio`."""
    if not (np.isfinite(centre) and centre > 0 and ratio > 1 and number >= 1):
        raise ConfigurationError(
            "a set of lambdas needs a positive, finite centre, a ratio above 1 and at least one "
            f"member, not {centre}, {ratio} and {number}"
        )
    return centre * np.geomspace(1 / ratio, ratio, number) if number > 1 else np.array([centre])
