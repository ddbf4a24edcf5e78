"""Solvers of other libraries that a user would try on a problem of one's own."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from scipy import optimize

from surestep.auto.outsiders_programme import programme_outsiders
from surestep.problem import (
    Box,
    CompositeFunctionProblem,
    Point,
    Problem,
    Programme,
    Theta,
    working_precision,
)
from surestep.train import External


def outsiders(problem: Problem) -> dict[str, External]:
    """SciPy's L-BFGS-B, where the constraint is a box; solvers of programmes for a programme."""
    if isinstance(problem, Programme):
        return programme_outsiders(problem)
    if not isinstance(problem, CompositeFunctionProblem) or not isinstance(problem.penalty, Box):
        return {}
    return {"L-BFGS-B (SciPy)": _BoxedQuasiNewton(problem, problem.penalty)}


class _BoxedQuasiNewton:
    def __init__(self, problem: CompositeFunctionProblem, box: Box) -> None:
        self.problem, self.box = problem, box

        @eqx.filter_jit
        def both(flat: Any, theta: Theta) -> Any:
            unravel = ravel_pytree(problem.start(theta))[1]
            return jax.value_and_grad(lambda x: problem.smooth(unravel(x), theta))(flat)

        self.both = both

    def __call__(self, theta: Theta, target: float, accuracy: float) -> Point:
        """Stop as soon as the loss is below the target."""
        del accuracy
        with working_precision(self.problem):
            start, unravel = ravel_pytree(self.problem.start(theta))
            low, high = (np.broadcast_to(bound, start.shape) for bound in self.box.bounds(theta))

            def evaluate(flat: np.ndarray) -> tuple[float, np.ndarray]:
                value, gradient = self.both(jnp.asarray(flat, start.dtype), theta)
                return float(value), np.asarray(gradient, np.float64)

            def stop(intermediate_result: optimize.OptimizeResult) -> None:
                if intermediate_result.fun < target:
                    raise StopIteration

            found = optimize.minimize(
                evaluate, np.clip(np.asarray(start, np.float64), low, high), jac=True,
                method="L-BFGS-B", bounds=list(zip(low, high, strict=True)), callback=stop,
                options={"ftol": 0.0, "gtol": 0.0, "maxiter": 10_000},
            )  # fmt: skip
            return unravel(jnp.asarray(found.x, start.dtype))
