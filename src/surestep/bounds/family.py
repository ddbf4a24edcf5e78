"""The PAC-Bayesian theorem for data-dependent exponential families, on a finite prior.

A finite prior puts weights on samples `j`. With natural parameters `eta(lambda)` and statistics
`T(j)`, the theorem needs `E[exp(<eta(lambda), T>)] <= 1` under prior and data for each lambda.
With probability `1 - epsilon` it then holds for all posteriors and all lambdas at once,

    Q[<eta(lambda), T>] <= KL(Q, prior) + log(K / epsilon) + C,

for a finite set of K lambdas (C = 0), or for an interval that K pieces cover, on each of which the
log-partition `kappa` varies by at most C whatever the data.

Where only a finite set is paid for, only its members are covered: a minimum between two of them is
not a bound.
"""

import dataclasses
from collections.abc import Callable

import numpy as np
from jaxtyping import Float

from surestep.base.errors import ConfigurationError
from surestep.bounds.logarithms import log_sum_exp

Vector = Float[np.ndarray, " sample"]
Natural = Callable[[float], Float[np.ndarray, " k"]]


def normalised(log_weights: Vector) -> Vector:
    """Log-weights whose exponentials add up to 1.

    Leaving this out is not a matter of taste: the bound takes an expectation over the prior.
    """
    log_weights = np.asarray(log_weights, np.float64)
    if log_weights.ndim != 1 or log_weights.size == 0:
        raise ConfigurationError("a prior needs one log-weight for each of at least one sample")
    total = log_sum_exp(log_weights)
    if not np.isfinite(total):
        raise ConfigurationError("a prior needs at least one positive weight, and finite ones")
    return log_weights - total


@dataclasses.dataclass(frozen=True)
class Minimum:
    """A bound minimised over lambda."""

    value: float
    """The smallest bound."""
    lambda_: float
    """The lambda it was found at."""
    log_posterior: Vector
    """Normalised log-weights of the Gibbs posterior at that lambda."""
    values: Float[np.ndarray, " lambda"]
    """The bound at every lambda of the set that was searched."""

    @property
    def mode(self) -> int:
        """The sample that weighs most in the posterior."""
        return int(np.argmax(self.log_posterior))


@dataclasses.dataclass(frozen=True)
class Family:
    """An exponential family over the samples of a finite prior.

    `statistics` is the paper's T-tilde, one row a sample: minus the empirical risk first, then the
    terms that do not hold the risk. `natural(lambda)` has as many entries, the first positive.
    """

    log_prior: Vector
    statistics: Float[np.ndarray, "sample k"]
    natural: Natural

    def exponents(self, lambda_: float) -> Vector:
        """`<eta(lambda), T(j)>` for every sample."""
        statistics = np.asarray(self.statistics, np.float64)
        if not np.all(np.isfinite(statistics)):
            return self.naturals(np.array([lambda_]))[1][:, 0]
        return statistics @ self.natural(lambda_)

    def naturals(
        self, lambdas: Float[np.ndarray, " lambda"]
    ) -> tuple[Float[np.ndarray, " lambda"], Float[np.ndarray, "sample lambda"]]:
        """For every lambda the first natural parameter, which must be positive, and exponents."""
        eta = np.stack([self.natural(float(lambda_)) for lambda_ in lambdas], axis=1)
        if not np.all(eta[0] > 0):
            raise ConfigurationError("the first natural parameter must be positive")
        # Not a matrix product: its kernels multiply padding, which infinite statistics spoil.
        with np.errstate(over="ignore"):
            terms = np.asarray(self.statistics, np.float64)[:, :, None] * eta
        return eta[0], np.sum(terms, axis=1)

    def log_partition(self, lambda_: float) -> float:
        """`kappa`: the logarithm of the prior's expectation of the exponentials."""
        return float(log_sum_exp(normalised(self.log_prior) + self.exponents(lambda_)))

    def log_posterior(self, lambda_: float) -> Vector:
        """The Gibbs posterior: no posterior has a smaller bound at this lambda.

        Where every sample's statistics are infinite, so are all bounds, and the prior is as good.
        """
        weighed = normalised(self.log_prior) + self.exponents(lambda_)
        return normalised(self.log_prior if np.all(weighed == -np.inf) else weighed)

    def bound(self, lambda_: float, price: float) -> float:
        """`F(lambda) = (price - kappa(lambda)) / eta_1(lambda)`, the Gibbs posterior's bound."""
        return float(self.bounds(np.array([lambda_]), price)[0])

    def bounds(
        self, lambdas: Float[np.ndarray, " lambda"], price: float
    ) -> Float[np.ndarray, " lambda"]:
        """`F` at several lambdas."""
        first, exponents = self.naturals(lambdas)
        kappa = log_sum_exp(normalised(self.log_prior)[:, None] + exponents)
        return (price - kappa) / first

    def minimise_on_set(self, lambdas: Float[np.ndarray, " lambda"], epsilon: float) -> Minimum:
        """The smallest bound over a finite set, which pays the logarithm of its size."""
        price = np.log(len(lambdas) / checked_epsilon(epsilon))
        values = self.bounds(lambdas, price)
        return self._minimum(float(lambdas[np.argmin(values)]), price, values)

    def minimise_on_interval(
        self, low: float, high: float, lipschitz: float, epsilon: float, pieces: int | None = None
    ) -> Minimum:
        """The smallest bound over an interval, found on a grid and refined by descent.

        `lipschitz` must bound the slope of the *true* log-partition (with the true risk) on the
        interval for every data set. The interval is covered by `pieces` of equal length, by
        default as many as make the price smallest.
        """
        from scipy import optimize  # noqa: PLC0415  (slow to import)

        if not (0 < low < high and np.isfinite(high) and lipschitz >= 0):
            raise ConfigurationError(
                "an interval of lambda needs 0 < low < high and a Lipschitz constant of at least 0"
            )
        pieces = pieces or max(1, round(lipschitz * (high - low)))
        price = np.log(pieces / checked_epsilon(epsilon)) + lipschitz * (high - low) / pieces
        grid = np.geomspace(low, high, 200)
        values = self.bounds(grid, price)
        best = int(np.argmin(values))
        around = grid[max(best - 1, 0)], grid[min(best + 1, 199)]
        refined = optimize.minimize_scalar(
            lambda lambda_: self.bound(float(lambda_), price),
            bounds=around,
            method="bounded",
            options={"xatol": 1e-10 * high},
        )
        lambda_ = float(refined.x) if refined.fun < values[best] else float(grid[best])
        return self._minimum(lambda_, price, values)

    def posterior_bound(
        self, log_posterior: Vector, lambdas: Float[np.ndarray, " lambda"], epsilon: float
    ) -> float:
        """The bound of any posterior, over a finite set of lambda: the theorem as it stands.

        Infinite where the posterior holds a sample whose statistics are.
        """
        log_q = normalised(log_posterior)
        # Weights that underflow are no weights: such samples are never drawn.
        held = np.exp(log_q) > 0
        weights = np.exp(log_q[held])
        prior = normalised(self.log_prior)[held]
        price = np.log(len(lambdas) / checked_epsilon(epsilon)) + float(
            weights @ (log_q[held] - prior)
        )
        first, exponents = self.naturals(lambdas)
        return float(np.min((price - weights @ exponents[held]) / first))

    def point_bound(
        self, sample: int, lambdas: Float[np.ndarray, " lambda"], epsilon: float
    ) -> float:
        """The bound of a point mass on one sample, over the same finite set of lambda.

        The theorem holds for all posteriors at once, so this costs nothing beside the other.
        """
        mass = np.full(len(self.log_prior), -np.inf)
        mass[sample] = 0.0
        return self.posterior_bound(mass, lambdas, epsilon)

    def _minimum(
        self, lambda_: float, price: float, values: Float[np.ndarray, " lambda"]
    ) -> Minimum:
        return Minimum(self.bound(lambda_, price), lambda_, self.log_posterior(lambda_), values)


def quadratic(factor: float) -> Natural:
    """The natural parameters `(lambda, -factor * lambda^2)`."""
    return lambda lambda_: np.array([lambda_, -factor * lambda_**2])


def sublevel_family(log_prior: Vector, risks: Vector, second_moments: Vector, size: int) -> Family:
    """The paper's conditional boundedness: expected loss given that the goal is reached.

    - `risks`: empirical sublevel risks, `mean(loss * reached) / p` for every sample;
    - `second_moments`: `E[g^2 on the sublevel set] / p^2` for every sample;
    - `size`: the number of instances behind the risks.

    A guarantee where `p` and `E[g^2]` are known or bounded, an estimate where they are estimated.
    """
    return _with_moments(log_prior, risks, second_moments, size, 0.5)


def worst_case_family(
    log_prior: Vector, risks: Vector, factors: Vector, start_second_moment: float, size: int
) -> Family:
    """The paper's worst-case bound: every loss is at most `factors[j]` times the start's."""
    moments = np.asarray(factors) ** 2 * start_second_moment
    return _with_moments(log_prior, risks, moments, size, 0.5)


def catoni_family(log_prior: Vector, risks: Vector, largest_loss: float, size: int) -> Family:
    """Catoni's bound for losses between 0 and `largest_loss`."""
    moments = np.full(len(risks), largest_loss**2)
    return _with_moments(log_prior, risks, moments, size, 1 / 8)


def _with_moments(
    log_prior: Vector, risks: Vector, moments: Vector, size: int, factor: float
) -> Family:
    if size < 1:
        raise ConfigurationError(f"at least one instance is needed, not {size}")
    statistics = np.stack([-np.asarray(risks), np.asarray(moments) / size], axis=1)
    return Family(np.asarray(log_prior), statistics, quadratic(factor))


def best_lambda(second_moment: float, divergence: float, size: int, price: float) -> float:
    """The lambda at which one posterior's sublevel bound is smallest."""
    return float(np.sqrt(2 * size * (divergence + price) / second_moment))


def optimised_sublevel_bound(
    risk: float, second_moment: float, divergence: float, size: int, price: float, ratio: float
) -> float:
    """The sublevel bound of one posterior at its best lambda, in closed form.

    `risk` and `second_moment` are the posterior's averages, `price` is `log(K / epsilon) + C`.
    `best_lambda` must lie in the interval that is covered, which has `ratio` 1, or between the
    ends of a geometric set whose neighbours have this ratio: taking the nearer neighbour, which is
    off by the square root of the ratio at most, costs the factor in front of the root.
    """
    if ratio < 1:
        raise ConfigurationError(f"a geometric set's ratio is at least 1, not {ratio}")
    detour = 0.5 * (ratio**0.5 + ratio**-0.5)
    return risk + detour * float(np.sqrt(2 * (divergence + price) * second_moment / size))


def constant_goal_bound(
    risk: float,
    goal: float,
    success: float,
    divergence: float,
    size: int,
    price: float,
    ratio: float,
) -> float:
    """The sublevel bound for a constant goal and success probabilities of at least `success`."""
    moment = (goal / success) ** 2
    return optimised_sublevel_bound(risk, moment, divergence, size, price, ratio)


def convex_bound(
    distance: Callable[[float, float], float],
    log_moment: float,
    mean: float,
    divergence: float,
    size: int,
    epsilon: float,
) -> float:
    """The bound through a convex function: the largest risk with a `distance` within the radius.

    `distance(risk, mean)` is convex and grows as the risk moves up from the mean; `log_moment`
    bounds `log E[exp(size * distance(risk, empirical risk))]`.
    """
    radius = (divergence + np.log(1 / checked_epsilon(epsilon)) + log_moment) / size
    inside, outside = mean, 1.0
    if distance(outside, mean) <= radius:
        return 1.0
    while True:
        middle = 0.5 * (inside + outside)
        if middle in (inside, outside):
            return outside
        if distance(middle, mean) > radius:
            outside = middle
        else:
            inside = middle


def geometric_lambdas(centre: float, ratio: float, number: int) -> Float[np.ndarray, " lambda"]:
    """`number` lambdas in geometric progression from `centre / ratio` to `centre * ratio`."""
    if not (np.isfinite(centre) and centre > 0 and ratio > 1 and number >= 1):
        raise ConfigurationError(
            "a set of lambdas needs a positive, finite centre, a ratio above 1 and at least one "
            f"member, not {centre}, {ratio} and {number}"
        )
    return centre * np.geomspace(1 / ratio, ratio, number) if number > 1 else np.array([centre])


def checked_epsilon(epsilon: float) -> float:
    """The epsilon itself, if it is one that can be spent."""
    if not 0 < epsilon < 1:
        raise ConfigurationError(f"epsilon must lie strictly between 0 and 1, not {epsilon}")
    return epsilon
