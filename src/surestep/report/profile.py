"""Performance profiles: who solves which share of the instances, and at what cost beside the best.

Dolan and Moré, "Benchmarking optimization software with performance profiles", 2002.
"""

import numpy as np
from jaxtyping import Float

from surestep.evaluate.evaluated import Evaluated
from surestep.report.figures import Figure, Line, Panel
from surestep.run.learned import Learned


def performance_ratios(
    costs: Float[np.ndarray, "solver instance"],
) -> Float[np.ndarray, "solver instance"]:
    """Every cost divided by the smallest on its instance; unsolved instances cost infinity.

    An instance that nobody solves has infinite ratios: it is in nobody's share.
    """
    best = costs.min(axis=0)
    with np.errstate(invalid="ignore"):
        return np.where(np.isfinite(costs), costs / best, np.inf)


def solved_within(
    ratios: Float[np.ndarray, " instance"], factors: Float[np.ndarray, " factor"]
) -> Float[np.ndarray, " factor"]:
    """The share of instances whose ratio is at most each factor."""
    return np.mean(ratios[:, None] <= factors, axis=0)


def profile(learned: Learned) -> Figure:
    """Performance profiles by gradient evaluations, one panel for each accuracy."""
    evaluation = learned.evaluation
    return Figure(
        name="profile",
        title=f"{learned.certificate.problem}: share of {evaluation.reach_gradients.shape[2]} test "
        "instances solved within a factor of the best solver's gradient evaluations",
        groups=list(evaluation.solvers),
        panels=[profile_panel(evaluation, a) for a in range(len(evaluation.accuracies))],
    )


def profile_panel(evaluation: Evaluated, accuracy: int) -> Panel:
    """The profiles of all solvers for one accuracy."""
    # A solver that finds the start good enough has asked for 0 or 1 gradients: both cost 1.
    costs = np.maximum(evaluation.gradients_needed()[:, accuracy], 1)
    ratios = performance_ratios(costs)
    finite = ratios[np.isfinite(ratios)]
    end = 1.1 * float(finite.max(initial=1.0))
    counted = f" above {evaluation.above}" if evaluation.above else ""
    return Panel(
        title=f"To {evaluation.accuracy_names()[accuracy]}{counted}",
        x_label="factor of the fewest gradient evaluations on the instance",
        y_label="share of instances solved",
        x_scale="log",
        lines=[_steps(name, ratios[s], end) for s, name in enumerate(evaluation.solvers)],
        notes=_unsolved(ratios),
    )


def _steps(name: str, ratios: Float[np.ndarray, " instance"], end: float) -> Line:
    """A share as a line that rises in steps: each factor twice, before and after."""
    factors = np.unique(np.concatenate([[1.0], ratios[np.isfinite(ratios)], [end]]))
    shares = solved_within(ratios, factors)
    before = np.concatenate([[0.0], shares[:-1]])
    return Line(
        name,
        name,
        np.repeat(factors, 2).tolist(),
        np.stack([before, shares], axis=1).ravel().tolist(),
    )


def _unsolved(ratios: Float[np.ndarray, "solver instance"]) -> list[str]:
    number = int(np.sum(np.all(np.isinf(ratios), axis=0)))
    return [f"{number} instances were solved by nobody"] if number else []
