"""The theorem's special cases: families by name, and bounds in closed form."""

from collections.abc import Callable

import numpy as np

from surestep.base.errors import ConfigurationError
from surestep.bounds.family import Family, Natural, Vector, checked_epsilon


def quadratic(factor: float) -> Natural:
    """The natural parameters `(lambda, -factor * lambda^2)`."""
    return lambda lambda_: np.array([lambda_, -factor * lambda_**2])


def sublevel_family(log_prior: Vector, risks: Vector, second_moments: Vector, size: int) -> Family:
    """The paper's conditional boundedness: expected loss given that the goal is reached.

    A guarantee where `p` and `E[g^2]` are known or bounded, an estimate where they are estimated.

    **Arguments:**

    - `log_prior`: the logarithms of the prior's weights.
    - `risks`: empirical sublevel risks, `mean(loss * reached) / p` for every sample.
    - `second_moments`: `E[g^2 on the sublevel set] / p^2` for every sample.
    - `size`: the number of instances behind the risks.

    **Returns:** the `Family`.

    **Raises:** `surestep.errors.ConfigurationError` if there is no instance.

    **Example:**

    ```python
    log_prior, risks = np.log([0.5, 0.5]), np.array([0.1, 0.3])
    family = ss.bounds.sublevel_family(log_prior, risks, np.array([1.0, 1.2]), size=200)
    print(family.bound(20.0, price=np.log(1 / 0.05)))
    ```
    """
    return _with_moments(log_prior, risks, second_moments, size, 0.5)


def worst_case_family(
    log_prior: Vector, risks: Vector, factors: Vector, start_second_moment: float, size: int
) -> Family:
    """The paper's worst-case bound: every loss is at most a factor times the start's.

    **Arguments:**

    - `log_prior`: the logarithms of the prior's weights.
    - `risks`: empirical risks, one a sample.
    - `factors`: by what factor a loss may exceed the start's, one a sample.
    - `start_second_moment`: the second moment of the loss at the start.
    - `size`: the number of instances behind the risks.

    **Returns:** the `Family`.

    **Raises:** `surestep.errors.ConfigurationError` if there is no instance.

    **Example:**

    ```python
    log_prior, risks = np.log([0.5, 0.5]), np.array([0.1, 0.3])
    family = ss.bounds.worst_case_family(log_prior, risks, np.array([1.0, 2.0]), 4.0, size=200)
    print(family.point_bound(0, np.array([5.0, 20.0]), epsilon=0.05))
    ```
    """
    moments = np.asarray(factors) ** 2 * start_second_moment
    return _with_moments(log_prior, risks, moments, size, 0.5)


def catoni_family(log_prior: Vector, risks: Vector, largest_loss: float, size: int) -> Family:
    """Catoni's bound for bounded losses.

    **Arguments:**

    - `log_prior`: the logarithms of the prior's weights.
    - `risks`: empirical risks, one a sample.
    - `largest_loss`: losses lie between 0 and this.
    - `size`: the number of instances behind the risks.

    **Returns:** the `Family`.

    **Raises:** `surestep.errors.ConfigurationError` if there is no instance.

    **Example:**

    ```python
    log_prior, risks = np.log([0.5, 0.5]), np.array([0.1, 0.3])
    family = ss.bounds.catoni_family(log_prior, risks, largest_loss=1.0, size=200)
    print(np.exp(family.log_posterior(50.0)))
    ```
    """
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

    `best_lambda` must lie in the interval that is covered, which has `ratio` 1, or between the
    ends of a geometric set whose neighbours have this ratio: taking the nearer neighbour, which is
    off by the square root of the ratio at most, costs the factor in front of the root.

    **Arguments:**

    - `risk`: the posterior's average of the empirical risks.
    - `second_moment`: its average of the second moments.
    - `divergence`: its relative entropy to the prior.
    - `size`: the number of instances behind the risks.
    - `price`: `log(K / epsilon) + C`.
    - `ratio`: that of neighbouring lambdas, or 1 for an interval.

    **Returns:** the bound.

    **Raises:** `surestep.errors.ConfigurationError` if the ratio is below 1.

    **Example:**

    ```python
    price = np.log(20 / 0.05)
    print(ss.bounds.optimised_sublevel_bound(0.1, 1.0, 0.5, size=200, price=price, ratio=1.3))
    ```
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
    """The sublevel bound for a constant goal.

    **Arguments:**

    - `risk`: the posterior's average of the empirical risks.
    - `goal`: the loss that counts as success.
    - `success`: what success probabilities are at least.
    - `divergence`: the posterior's relative entropy to the prior.
    - `size`: the number of instances behind the risks.
    - `price`: `log(K / epsilon) + C`.
    - `ratio`: that of neighbouring lambdas, or 1 for an interval.

    **Returns:** the bound.

    **Raises:** `surestep.errors.ConfigurationError` if the ratio is below 1.

    **Example:**

    ```python
    price = np.log(20 / 0.05)
    print(ss.bounds.constant_goal_bound(0.1, 0.5, 0.95, 0.5, size=200, price=price, ratio=1.3))
    ```
    """
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

    **Arguments:**

    - `distance`: of a risk and the mean. It is convex and grows as the risk rises from the mean.
    - `log_moment`: a bound for `log E[exp(size * distance(risk, empirical risk))]`.
    - `mean`: the posterior's average of the empirical risks.
    - `divergence`: the posterior's relative entropy to the prior.
    - `size`: the number of instances behind the risks.
    - `epsilon`: the probability with which the bound is false.

    **Returns:** the bound, rounded up.

    **Raises:** `surestep.errors.ConfigurationError` if epsilon does not lie in (0, 1).

    **Example:**

    ```python
    def squared(risk, mean):
        return 2 * (risk - mean) ** 2


    print(ss.bounds.convex_bound(squared, np.log(2 * 200), 0.1, 0.5, size=200, epsilon=0.05))
    ```
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
