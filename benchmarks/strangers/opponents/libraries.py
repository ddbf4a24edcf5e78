"""Solvers that practitioners call, one instance at a time, each with a tolerance to choose.

A solver whose package is not installed is left out.
"""

import dataclasses
import importlib
import importlib.util
import warnings
from collections.abc import Callable
from typing import Any, cast

import jax
import numpy as np
from scipy import optimize, sparse
from sklearn import linear_model

from benchmarks.strangers.opponents.loop import Smooth, Theta

TOLERANCES = tuple(10.0 ** (-k / 2) for k in range(25))
"""From loose to tight: the first that is good enough is taken."""
MANY = 20_000


@dataclasses.dataclass(frozen=True)
class Library:
    """A solver of a library: from an instance and a tolerance to a flat point."""

    name: str
    solve: Callable[[Theta, float], np.ndarray]
    tolerances: tuple[float, ...] = TOLERANCES


def installed(package: str) -> bool:
    """Whether it can be imported."""
    return importlib.util.find_spec(package) is not None


def _quiet(solve: Callable[[Theta, float], np.ndarray]) -> Callable[[Theta, float], np.ndarray]:
    """Without warnings: a loose tolerance is tried on purpose."""

    def silent(theta: Theta, tolerance: float) -> np.ndarray:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return solve(theta, tolerance)

    return silent


def scipy_lbfgs(family: Smooth, memory: int = 10) -> Library:
    """`minimize(method="L-BFGS-B")`; the tolerance is a share of the first gradient."""
    start, both = jax.jit(family.start), jax.jit(family.both)

    def solve(theta: Theta, tolerance: float) -> np.ndarray:
        def evaluate(x: np.ndarray) -> tuple[float, np.ndarray]:
            value, gradient = both(x, theta)
            return float(value), np.asarray(gradient)

        x = np.asarray(start(theta))
        size = float(np.abs(np.asarray(both(x, theta)[1])).max())
        options = {"maxcor": memory, "ftol": 0.0, "gtol": tolerance * size, "maxiter": MANY}
        return optimize.minimize(evaluate, x, jac=True, method="L-BFGS-B", options=options).x

    return Library("L-BFGS-B (SciPy)", solve)


def scipy_newton(
    family: Smooth, method: str = "trust-exact", hessian: Callable | None = None
) -> Library:
    """SciPy's Newton methods: with Hessians, or with their products (`trust-krylov`)."""
    start, both = jax.jit(family.start), jax.jit(family.both)
    full = jax.jit(hessian or jax.jacfwd(family.gradient))
    product = jax.jit(lambda x, p, t: jax.jvp(lambda x: family.gradient(x, t), (x,), (p,))[1])
    second: dict[str, Any] = {}

    def solve(theta: Theta, tolerance: float) -> np.ndarray:
        def evaluate(x: np.ndarray) -> tuple[float, np.ndarray]:
            value, gradient = both(x, theta)
            return float(value), np.asarray(gradient)

        x = np.asarray(start(theta))
        size = float(np.linalg.norm(np.asarray(both(x, theta)[1])))
        if method == "trust-exact":
            second["hess"] = lambda x: np.asarray(full(x, theta))
        else:
            second["hessp"] = lambda x, p: np.asarray(product(x, p, theta))
        options = {"gtol": tolerance * size, "maxiter": 500}
        return optimize.minimize(
            evaluate, x, jac=True, method=method, options=options, **second
        ).x  # fmt: skip

    return Library(f"{method} (SciPy)", _quiet(solve))


def scipy_least_squares(start: Callable, residual: Callable) -> Library:
    """`scipy.optimize.least_squares(method="lm")` with the compiled Jacobian."""
    first, rest, turned = jax.jit(start), jax.jit(residual), jax.jit(jax.jacfwd(residual))

    def solve(theta: Theta, tolerance: float) -> np.ndarray:
        return optimize.least_squares(
            lambda x: np.asarray(rest(x, theta)),
            np.asarray(first(theta)),
            jac=cast(Any, lambda x: np.asarray(turned(x, theta))),
            method="lm",
            ftol=tolerance,
            xtol=1e-15,
            gtol=1e-15,
        ).x

    return Library("Levenberg-Marquardt (SciPy)", solve)


def lasso_libraries(D: np.ndarray, weight: float) -> list[Library]:
    """scikit-learn, celer and skglm; all of them divide the misfit by the number of rows."""
    rows = D.shape[0]
    alpha, gram, columns = weight / rows, np.ascontiguousarray(D.T @ D), np.asfortranarray(D)
    found = []

    def estimator(name: str, make: Callable[[float], Any]) -> None:
        def solve(theta: Theta, tolerance: float) -> np.ndarray:
            return make(tolerance).fit(columns, theta).coef_

        found.append(Library(name, _quiet(solve)))

    def lars(theta: Theta, tolerance: float) -> np.ndarray:
        del tolerance
        return linear_model.lars_path_gram(
            D.T @ theta, gram, n_samples=rows, alpha_min=alpha, method="lasso", return_path=False
        )[2]

    common: dict[str, Any] = {"fit_intercept": False, "max_iter": MANY}
    estimator(
        "coordinate descent, Gram (scikit-learn)",
        lambda tol: linear_model.Lasso(alpha, precompute=cast(Any, gram), tol=tol, **common),
    )
    estimator(
        "coordinate descent (scikit-learn)",
        lambda tol: linear_model.Lasso(alpha, tol=tol, **common),
    )
    found.append(Library("LARS (scikit-learn)", _quiet(lars), (0.0,)))
    if installed("celer"):
        celer = importlib.import_module("celer")

        estimator("celer", lambda tol: celer.Lasso(alpha, tol=tol, fit_intercept=False))
    if installed("skglm"):
        skglm = importlib.import_module("skglm")

        estimator("skglm", lambda tol: skglm.Lasso(alpha, tol=tol, fit_intercept=False))
    return found


def simplex_libraries(H: np.ndarray) -> list[Library]:
    """SLSQP of SciPy, and quadprog and OSQP, for `x H x / 2 - theta x` on the simplex."""
    size = H.shape[0]
    start = np.full(size, 1 / size)
    found = []

    def slsqp(theta: Theta, tolerance: float) -> np.ndarray:
        def evaluate(x: np.ndarray) -> tuple[float, np.ndarray]:
            product = H @ x
            return float(0.5 * x @ product - theta @ x), product - theta

        one = {"type": "eq", "fun": lambda x: np.sum(x) - 1, "jac": lambda x: np.ones(size)}
        return _feasible(
            optimize.minimize(
                evaluate, start, jac=True, method="SLSQP", bounds=[(0, None)] * size,
                constraints=[one], options={"ftol": tolerance, "maxiter": 500},
            ).x
        )  # fmt: skip

    found.append(Library("SLSQP (SciPy)", _quiet(slsqp)))
    if installed("quadprog"):
        quadprog = importlib.import_module("quadprog")

        rows = np.hstack([np.ones((size, 1)), np.eye(size)])
        bounds = np.concatenate([[1.0], np.zeros(size)])
        # The inverse of the factor of a fixed matrix is handed over ready.
        factor = np.linalg.inv(np.linalg.cholesky(H)).T.copy()

        def dual_active_set(theta: Theta, tolerance: float) -> np.ndarray:
            del tolerance
            solved = quadprog.solve_qp(factor.copy(), np.asarray(theta), rows, bounds, 1, True)
            return _feasible(solved[0])

        found.append(Library("quadprog", dual_active_set, (0.0,)))
    if installed("osqp"):
        found.append(_osqp(H))
    return found


def _osqp(H: np.ndarray) -> Library:
    """One factorisation for all instances, as its manual advises."""
    osqp = importlib.import_module("osqp")

    size = H.shape[0]
    rows = sparse.vstack([sparse.csc_matrix(np.ones((1, size))), sparse.eye(size)], format="csc")
    low = np.concatenate([[1.0], np.zeros(size)])
    high = np.concatenate([[1.0], np.full(size, np.inf)])
    ready: dict[float, Any] = {}

    def solve(theta: Theta, tolerance: float) -> np.ndarray:
        if tolerance not in ready:
            ready[tolerance] = osqp.OSQP()
            ready[tolerance].setup(
                sparse.csc_matrix(np.triu(H)), -np.asarray(theta), rows, low, high, verbose=False,
                eps_abs=tolerance, eps_rel=tolerance, max_iter=MANY, warm_starting=False,
            )  # fmt: skip
        ready[tolerance].update(q=-np.asarray(theta))
        return _feasible(ready[tolerance].solve().x)

    return Library("OSQP", _quiet(solve))


def _feasible(x: np.ndarray) -> np.ndarray:
    """Rounding errors and small violations of the constraints are taken away."""
    positive = np.maximum(x, 0.0)
    return positive / positive.sum()


def logistic_libraries(ridge: float, points: int) -> list[Library]:
    """scikit-learn's `LogisticRegression`; instances hold `features` and `labels` (one-hot)."""

    def solver(name: str) -> Library:
        def solve(theta: Theta, tolerance: float) -> np.ndarray:
            classes = np.argmax(theta["labels"], axis=1)
            fitted = linear_model.LogisticRegression(
                C=1 / (points * ridge), fit_intercept=False, tol=tolerance, solver=name,
                max_iter=MANY,
            ).fit(theta["features"], classes)  # fmt: skip
            weights = np.zeros((theta["features"].shape[1], theta["labels"].shape[1]))
            weights[:, fitted.classes_] = fitted.coef_.T
            return weights.ravel()

        return Library(f"LogisticRegression {name} (scikit-learn)", _quiet(solve))

    return [solver(name) for name in ("lbfgs", "newton-cholesky", "newton-cg")]


def gamma_libraries(ridge: float) -> list[Library]:
    """scikit-learn's `GammaRegressor`; instances hold `features` and `outcomes`."""

    def solver(name: str) -> Library:
        def solve(theta: Theta, tolerance: float) -> np.ndarray:
            fitted = linear_model.GammaRegressor(
                alpha=ridge, fit_intercept=False, tol=tolerance, solver=name, max_iter=MANY
            ).fit(theta["features"], theta["outcomes"])
            return fitted.coef_

        return Library(f"GammaRegressor {name} (scikit-learn)", _quiet(solve))

    return [solver(name) for name in ("lbfgs", "newton-cholesky")]
