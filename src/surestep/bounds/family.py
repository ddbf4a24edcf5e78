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
from surestep.base.lazy import slow_import
from surestep.bounds.logarithms import log_sum_exp

Vector = Float[np.ndarray, " sample"]
Natural = Callable[[float], Float[np.ndarray, " k"]]


def normalised(log_weights: Vector) -> Vector:
    """Log-weights whose exponentials add up to 1.

    Leaving this out is not a matter of taste: the bound takes an expectation over the prior.

    **Arguments:**

    - `log_weights`: logarithms of weights, one a sample; minus infinity for no weight.

    **Returns:** the log-weights minus the logarithm of their exponentials' sum.

    **Raises:** `surestep.errors.ConfigurationError` if no weight is positive, or one is infinite.

    **Example:**

    ```python
    print(np.exp(ss.bounds.normalised(np.log([1.0, 3.0]))))  # 0.25 and 0.75
    ```
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
    """A bound minimised over lambda.

    **Example:**

    ```python
    log_prior, risks = np.log([0.5, 0.5]), np.array([0.1, 0.3])
    family = ss.bounds.catoni_family(log_prior, risks, largest_loss=1.0, size=200)
    found = family.minimise_on_set(ss.bounds.geometric_lambdas(50.0, 10.0, 20), epsilon=0.05)
    print(found.value, found.lambda_, found.mode)
    ```
    """

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

    **Example:**

    ```python
    family = ss.bounds.Family(
        log_prior=np.log([0.5, 0.5]),
        statistics=np.array([[-0.1, 1 / 200], [-0.3, 1 / 200]]),
        natural=lambda lambda_: np.array([lambda_, -(lambda_**2) / 8]),
    )
    print(family.minimise_on_set(np.array([10.0, 30.0]), epsilon=0.05).value)
    ```
    """

    log_prior: Vector
    """The logarithms of the prior's weights."""
    statistics: Float[np.ndarray, "sample k"]
    """The paper's T-tilde, one row a sample: minus the empirical risk first, then the terms that
    do not hold the risk."""
    natural: Natural
    """The natural parameters at a lambda: as many entries, the first positive."""

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
        """The smallest bound over a finite set, which pays the logarithm of its size.

        **Arguments:**

        - `lambdas`: the set, fixed before the data are seen.
        - `epsilon`: the probability with which the bound is false.

        **Returns:** a `Minimum`.

        **Raises:** `surestep.errors.ConfigurationError` if epsilon does not lie in (0, 1).
        """
        price = np.log(len(lambdas) / checked_epsilon(epsilon))
        values = self.bounds(lambdas, price)
        return self._minimum(float(lambdas[np.argmin(values)]), price, values)

    def minimise_on_interval(
        self, low: float, high: float, lipschitz: float, epsilon: float, pieces: int | None = None
    ) -> Minimum:
        """The smallest bound over an interval, found on a grid and refined by descent.

        **Arguments:**

        - `low`, `high`: the ends of the interval, fixed before the data are seen.
        - `lipschitz`: a bound for the slope of the *true* log-partition (with the true risk) on
          the interval, for every data set.
        - `epsilon`: the probability with which the bound is false.
        - `pieces`: by how many pieces of equal length the interval is covered; by default as many
          as make the price smallest.

        **Returns:** a `Minimum`.

        **Raises:** `surestep.errors.ConfigurationError` if there is no such interval.
        """
        optimize = slow_import("scipy.optimize")
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

        **Arguments:**

        - `log_posterior`: the logarithms of the posterior's weights.
        - `lambdas`: the set, fixed before the data are seen.
        - `epsilon`: the probability with which the bound is false.

        **Returns:** the bound, infinite where the posterior holds a sample whose statistics are.
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

        **Arguments:**

        - `sample`: the sample's number.
        - `lambdas`, `epsilon`: as for `posterior_bound`.

        **Returns:** the bound.
        """
        mass = np.full(len(self.log_prior), -np.inf)
        mass[sample] = 0.0
        return self.posterior_bound(mass, lambdas, epsilon)

    def _minimum(
        self, lambda_: float, price: float, values: Float[np.ndarray, " lambda"]
    ) -> Minimum:
        return Minimum(self.bound(lambda_, price), lambda_, self.log_posterior(lambda_), values)


def geometric_lambdas(centre: float, ratio: float, number: int) -> Float[np.ndarray, " lambda"]:
    """Lambdas in geometric progression from `centre / ratio` to `centre * ratio`.

    **Arguments:**

    - `centre`: the middle; the only member of a set of one.
    - `ratio`: the largest member divided by the centre.
    - `number`: how many.

    **Returns:** the set, in ascending order.

    **Raises:** `surestep.errors.ConfigurationError` if an argument is out of its range.

    **Example:**

    ```python
    print(ss.bounds.geometric_lambdas(10.0, 100.0, 3))  # 0.1, 10 and 1000
    ```
    """
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
