"""Who competes on which family. Nothing here is timed: matrices are made ready once."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.strangers.opponents import composite, libraries
from benchmarks.strangers.opponents import smooth as descents
from benchmarks.strangers.opponents.libraries import Library
from benchmarks.strangers.opponents.loop import Array, Method, Smooth, Theta, from_zero
from benchmarks.strangers.opponents.smooth import positive_solve


class Menu(NamedTuple):
    """The opponents of a family, and two of them who know its minima."""

    loss: Callable[[Array, Theta], Array]
    """Of a flat point, penalty included."""
    start: Callable[[Theta], Array]
    methods: list[Method]
    libraries: list[Library]
    trusted: tuple[Method, int]
    """A loop whose first choice of numbers is trusted after so many iterations."""
    checker: Library
    """A library that must agree, with its tightest tolerance."""


def sparse(D: np.ndarray, weight: float) -> Menu:
    """Least squares with an L1 norm."""
    atoms = D.shape[1]
    gram = D.T @ D
    smoothness = float(np.linalg.eigvalsh(gram)[-1])
    start = from_zero(atoms)

    def loss(x: Array, theta: Theta) -> Array:
        return 0.5 * jnp.sum((D @ x - theta) ** 2) + weight * jnp.sum(jnp.abs(x))

    def prox(v: Array, step: Array) -> Array:
        return composite.shrunk(v, weight * step)

    def products(theta: Array, x: Array) -> Array:
        return D.T @ (D @ x - theta)

    def one_product(made: Array, x: Array) -> Array:
        return gram @ x - made

    first = jnp.zeros(atoms)
    by_products = (lambda theta: theta, products, prox, first, smoothness)
    by_gram = (lambda theta: D.T @ theta, one_product, prox, first, smoothness)
    admm = composite.lasso_admm(D, weight, tuple(np.geomspace(0.02, 2.0, 13)))
    others = libraries.lasso_libraries(D, weight)
    return Menu(
        loss,
        start,
        [
            composite.proximal_gradient(*by_products),
            composite.fista(*by_products),
            composite.fista(*by_gram, name="FISTA with restart, Gram"),
            *admm,
        ],
        others,
        (composite.lasso_admm(D, weight, (0.2,), (1.6,))[0], 4000),
        others[0],
    )


def simplex(H: np.ndarray) -> Menu:
    """A fixed quadratic and a linear part that differs, on the simplex."""
    size = H.shape[0]
    smoothness = float(np.linalg.eigvalsh(H)[-1])
    first = jnp.full(size, 1 / size)

    def loss(x: Array, theta: Theta) -> Array:
        return 0.5 * x @ (H @ x) - theta @ x

    def start(theta: Theta) -> Array:
        del theta
        return jnp.full(size, 1 / size)

    def gradient(theta: Array, x: Array) -> Array:
        return H @ x - theta

    def project(v: Array, step: Array) -> Array:
        del step
        return composite.on_simplex(v)

    given = (lambda theta: theta, gradient, project, first, smoothness)
    others = libraries.simplex_libraries(H)
    exact = [one for one in others if one.name == "quadprog"]
    return Menu(
        loss,
        start,
        [
            composite.proximal_gradient(*given, name="projected gradient"),
            composite.fista(*given),
            *composite.simplex_admm(H, tuple(np.geomspace(0.03, 3.0, 13))),
            composite.simplex_active_set(H),
        ],
        others,
        (composite.simplex_admm(H, (0.3,), (1.6,))[1], 4000),
        (exact or others)[0],
    )


def softmax(features: int, classes: int, points: int, ridge: float) -> Menu:
    """Mean cross entropy; instances hold `features` and `labels`."""
    start = from_zero(features * classes)

    def both(x: Array, theta: Theta) -> tuple[Array, Array]:
        weights = x.reshape(features, classes)
        scores = theta["features"] @ weights
        highest = jnp.max(scores, axis=1, keepdims=True)
        powers = jnp.exp(scores - highest)
        totals = jnp.sum(powers, axis=1, keepdims=True)
        logs = highest[:, 0] + jnp.log(totals[:, 0])
        value = jnp.mean(logs - jnp.sum(theta["labels"] * scores, axis=1))
        rest = powers / totals - theta["labels"]
        gradient = theta["features"].T @ rest / points + ridge * weights
        return value + 0.5 * ridge * jnp.sum(x**2), gradient.ravel()

    def loss(x: Array, theta: Theta) -> Array:
        return both(x, theta)[0]

    family = Smooth(start, both, lambda x, theta: both(x, theta)[1])

    def once(theta: Theta) -> Any:
        """Half of the features' second moments bound the Hessian (Boehning)."""
        moments = theta["features"].T @ theta["features"] / points
        return jax.scipy.linalg.cho_factor(0.5 * moments + ridge * jnp.eye(features))[0]

    def apply(made: Array, g: Array) -> Array:
        return jax.scipy.linalg.cho_solve((made, False), g.reshape(features, classes)).ravel()

    def truncated(inner: int) -> descents.Solve:
        def solve(x: Array, theta: Theta, g: Array) -> Array:
            data = theta["features"]
            shares = jax.nn.softmax(data @ x.reshape(features, classes), axis=1)

            def product(p: Array) -> Array:
                moved = data @ p.reshape(features, classes)
                moved = shares * (moved - jnp.sum(shares * moved, axis=1, keepdims=True))
                return (data.T @ moved / points).ravel() + ridge * p

            return descents.conjugate(product, g, inner)

        return solve

    steps = tuple(np.geomspace(0.3, 10.0, 8))
    others = libraries.logistic_libraries(ridge, points)
    return Menu(
        loss,
        start,
        [
            descents.gradient_descent(family, steps, 1500),
            descents.heavy_ball(family, steps, (0.9, 0.97), 1500),
            descents.nesterov(family, steps, limit=1500),
            descents.nesterov(
                family,
                (1.0, 2.0, 3.0, 4.5, 7.0),
                (once, apply),
                "Nesterov, Boehning's metric",
                1500,
            ),
            descents.lbfgs(family, (5, 10, 20)),
            descents.lbfgs(
                family, (5, 10, 20), (1.0, 2.0), (once, apply), "L-BFGS, Boehning's metric"
            ),
            *(
                descents.newton(family, truncated(inner), f"Newton with {inner} inner steps")
                for inner in (5, 10, 20)
            ),
        ],
        [
            libraries.scipy_lbfgs(family),
            libraries.scipy_newton(family, "trust-krylov"),
            *others,
        ],
        (descents.newton(family, truncated(40)), 80),
        libraries.scipy_lbfgs(family, 20),
    )


def control(
    A: np.ndarray, B: np.ndarray, horizon: int, bound: float, hardness: float, effort: float
) -> Menu:
    """All states at once: fixed matrices times the inputs and the first state."""
    size = horizon * B.shape[1]
    lead, reach = condensed(A, B, horizon)
    start = from_zero(size)
    quadratic = reach.T @ reach + effort * np.eye(size)
    inverse = np.linalg.inv(quadratic)
    smoothness = float(np.linalg.eigvalsh(quadratic)[-1])

    def both(x: Array, theta: Theta) -> tuple[Array, Array]:
        states = lead @ theta + reach @ x
        beyond = states - jnp.clip(states, -bound, bound)
        value = jnp.sum(states**2) + hardness * jnp.sum(beyond**2) + effort * jnp.sum(x**2)
        return 0.5 * value, reach.T @ (states + hardness * beyond) + effort * x

    def loss(x: Array, theta: Theta) -> Array:
        return both(x, theta)[0]

    feedback = -inverse @ (reach.T @ lead)

    def unbounded(theta: Theta) -> Array:
        """A better start: what would be best without bounds."""
        return feedback @ theta

    family = Smooth(unbounded, both, lambda x, theta: both(x, theta)[1])

    def solve(x: Array, theta: Theta, g: Array) -> Array:
        outside = jnp.abs(lead @ theta + reach @ x) > bound
        weights = jnp.where(outside, 1 + hardness, 1.0)
        return positive_solve((reach.T * weights) @ reach + effort * jnp.eye(size), g)

    def apply(made: Any, g: Array) -> Array:
        del made
        return inverse @ g

    fixed = (lambda theta: (), apply)
    steps = tuple(np.geomspace(0.02, 2.0, 10) / smoothness)
    return Menu(
        loss,
        start,
        [
            descents.gradient_descent(family, steps),
            descents.heavy_ball(family, steps),
            descents.nesterov(family, steps),
            descents.nesterov(
                family, tuple(np.geomspace(0.02, 1.0, 8)), fixed, "Nesterov, quadratic's metric"
            ),
            composite.hinge_admm(lead, reach, bound, hardness, effort),
            descents.lbfgs(family),
            descents.lbfgs(family, (5, 10, 20), (1.0,), fixed, "L-BFGS, quadratic's metric"),
            descents.newton(family, solve),
        ],
        [libraries.scipy_lbfgs(family), libraries.scipy_newton(family)],
        (descents.newton(family, solve), 100),
        libraries.scipy_lbfgs(family),
    )


def condensed(A: np.ndarray, B: np.ndarray, horizon: int) -> tuple[np.ndarray, np.ndarray]:
    """What the first state and the inputs do to all later states."""
    states, inputs = B.shape
    lead = np.zeros((horizon, states, states))
    reach = np.zeros((horizon, states, horizon, inputs))
    power = np.eye(states)
    for t in range(horizon):
        for later in range(t, horizon):
            reach[later, :, later - t] = power @ B
        power = A @ power
        lead[t] = power
    return lead.reshape(-1, states), reach.reshape(horizon * states, horizon * inputs)


def phase(A: np.ndarray, start: Callable[[Theta], Array]) -> Menu:
    """Mean squared misfit of squares, from a start that is good."""
    measured, size = A.shape

    def both(x: Array, theta: Theta) -> tuple[Array, Array]:
        seen = A @ x
        rest = seen**2 - theta
        return jnp.mean(rest**2), 4 / measured * (A.T @ (rest * seen))

    def loss(x: Array, theta: Theta) -> Array:
        return both(x, theta)[0]

    def residual(x: Array, theta: Theta) -> Array:
        return (A @ x) ** 2 - theta

    family = Smooth(start, both, lambda x, theta: both(x, theta)[1])

    def weighted(weigh: Callable[[Array, Array], Array]) -> descents.Solve:
        def solve(x: Array, theta: Theta, g: Array) -> Array:
            matrix = (A.T * (weigh((A @ x) ** 2, theta) / measured)) @ A
            return positive_solve(matrix + 1e-9 * jnp.eye(size), g)

        return solve

    gauss = weighted(lambda squares, theta: 8 * squares)
    full = weighted(lambda squares, theta: jnp.maximum(12 * squares - 4 * theta, 0.0))
    steps = tuple(np.geomspace(1e-4, 2e-2, 12))
    matching = libraries.scipy_least_squares(start, residual)
    return Menu(
        loss,
        start,
        [
            descents.gradient_descent(family, steps),
            descents.heavy_ball(family, steps, (0.5, 0.7, 0.9)),
            descents.nesterov(family, steps),
            descents.lbfgs(family, (5, 10, 20), (0.3, 1.0)),
            descents.newton(family, gauss, "Gauss-Newton"),
            descents.newton(family, full),
        ],
        [libraries.scipy_lbfgs(family), libraries.scipy_newton(family), matching],
        (descents.newton(family, gauss), 200),
        matching,
    )


def gamma(features: int, points: int, ridge: float) -> Menu:
    """Mean negative log-likelihood; instances hold `features` and `outcomes`."""
    start = from_zero(features)

    def both(x: Array, theta: Theta) -> tuple[Array, Array]:
        logs = theta["features"] @ x
        ratio = theta["outcomes"] * jnp.exp(-logs)
        gradient = theta["features"].T @ (1 - ratio) / points + ridge * x
        return jnp.mean(logs + ratio) + 0.5 * ridge * jnp.sum(x**2), gradient

    def loss(x: Array, theta: Theta) -> Array:
        return both(x, theta)[0]

    def level(theta: Theta) -> Array:
        """A better start: the best constant, which is the last weight."""
        return jnp.zeros(features).at[-1].set(jnp.log(jnp.mean(theta["outcomes"])))

    family = Smooth(level, both, lambda x, theta: both(x, theta)[1])

    def solve(x: Array, theta: Theta, g: Array) -> Array:
        data = theta["features"]
        weights = theta["outcomes"] * jnp.exp(-(data @ x)) / points
        return positive_solve((data.T * weights) @ data + ridge * jnp.eye(features), g)

    def once(theta: Theta) -> Any:
        """The expected Hessian does not depend on the weights."""
        moments = theta["features"].T @ theta["features"] / points
        return jax.scipy.linalg.cho_factor(moments + ridge * jnp.eye(features))[0]

    fisher = (once, lambda made, g: jax.scipy.linalg.cho_solve((made, False), g))
    steps = tuple(np.geomspace(5e-4, 0.5, 12))
    others = libraries.gamma_libraries(ridge)
    return Menu(
        loss,
        start,
        [
            descents.gradient_descent(family, steps),
            descents.heavy_ball(family, steps),
            descents.nesterov(family, steps),
            descents.nesterov(
                family, tuple(np.geomspace(0.1, 1.5, 8)), fisher, "Nesterov, Fisher's metric"
            ),
            descents.lbfgs(family),
            descents.lbfgs(family, (5, 10, 20), (1.0,), fisher, "L-BFGS, Fisher's metric"),
            descents.newton(family, solve, starts=(start,)),
        ],
        [libraries.scipy_lbfgs(family), libraries.scipy_newton(family), *others],
        (descents.newton(family, solve), 100),
        others[1],
    )
