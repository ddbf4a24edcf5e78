"""A rule that fits without study: picked from a problem's structure, and from its prior set.

Every piece is a classical method that was given what the family's instances have in common, inside
a safeguard, so training starts from something good: a predictor of solutions for the start, the
inverse of the mean Hessian for the metric. Opponents are given the same where they can use it.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array
from scipy import optimize

from surestep.auto.survey import Survey, quasi_newton_in, solve_minima, survey, surveyed_instances
from surestep.auto.trusted import Work
from surestep.base.errors import ConfigurationError
from surestep.base.progress import Reporter
from surestep.problem import (
    Box,
    CompositeFunctionProblem,
    Goal,
    Point,
    PriorSet,
    Problem,
    ProximableSmooth,
    Theta,
    point_form,
    theta_form,
    working_precision,
)
from surestep.rules import (
    ADMM,
    LBFGS,
    FistaWithRestart,
    GradientDescent,
    LearnedFista,
    LearnedSplitting,
    Nesterov,
    Predicted,
    ProximalGradient,
    SafeguardSettings,
)
from surestep.rules.base import Rule
from surestep.train import Accuracies, Experiment, External

SURVEYED = 256
"""At most so many instances of the prior set are surveyed."""

_SOLVED = (
    "on some instance the start is a solution already (its loss cannot be lowered): choose another "
    "x0, or a goal of your own (--goal.scale, --goal.exponent)"
)


@dataclasses.dataclass(frozen=True)
class Picked:
    """The rule that was picked, in words and as a thing."""

    words: str
    rule: Rule
    fallback: Rule


def survey_of(
    problem: Problem,
    prior_size: int,
    seed: int,
    seconds: float = math.inf,
    report: Reporter | None = None,
    again: Work | None = None,
) -> Survey:
    """The survey that a run with this seed is built on; the rest is as in `survey`."""
    with working_precision(problem):
        size = start_size(problem)
    most = surveyed_instances(size, min(prior_size, SURVEYED))
    data = PriorSet.draw(problem, most, seed)
    return survey(problem, data, seconds=seconds, report=report, again=again)


def start_size(problem: Problem) -> int:
    """How many numbers x has; nothing is drawn."""
    form = point_form(problem, theta_form(problem))
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(form))


def pick(problem: Problem, found: Survey, guard: SafeguardSettings) -> Picked:
    """The rule for a problem, and what it is."""
    with working_precision(problem):
        step = 1 / found.smoothness
        fallback: Rule
        if isinstance(problem, ProximableSmooth) and found.composite:
            inner: Rule = LearnedSplitting.around(ADMM(found.smoothness / 10))
            fallback = ProximalGradient(step)
            words = "ADMM with learned penalties and relaxations"
        elif found.composite:
            inner = LearnedFista.around(FistaWithRestart(step))
            fallback = ProximalGradient(step)
            words = "FISTA with restart and learned steps"
        else:
            root = jnp.asarray(found.root, problem.precision)
            inner = quasi_newton_in(root, found.shape, 10 * found.unit * found.dimension**0.5)
            fallback = GradientDescent(step)
            words = f"L-BFGS's direction in a learned metric ({_kind(found)})"
        rule = Predicted(
            guard.around(inner, fallback),
            jnp.asarray(found.bias, problem.precision),
            jnp.asarray(found.weights, problem.precision),
            jnp.asarray(found.exponents, jnp.int32),
            found.unit,
            step,
        )
        from_what = (
            f"predicted from the instance's {found.exponents.size} numbers"
            if found.exponents.size
            else "learned, one for all instances"
        )
        words = f"{words}, inside a safeguard, from a start that is {from_what}"
        return Picked(words, rule, fallback)


def _kind(found: Survey) -> str:
    """What the metric is."""
    if found.shape:
        shape = " x ".join(map(str, found.shape))
        return f"a diagonal for the cosines of pictures of {shape}"
    if found.root.ndim == 2:
        return "a matrix"
    return f"a diagonal, because a matrix of {found.dimension} numbers squared would be too large"


def experiment_for(
    problem: Problem, found: Survey, guard: SafeguardSettings, accuracies: tuple[float, ...]
) -> Experiment:
    """The experiment of a problem with the rule that is picked for it."""
    picked = pick(problem, found, guard)
    step = 1 / found.smoothness

    def minima(thetas: Theta) -> np.ndarray:
        return solve_minima(problem, found, thetas)

    def create_rule(key: Array) -> Rule:
        del key  # it begins as what the survey has found, whatever the seed
        return picked.rule

    def informed(deployed: Rule) -> Mapping[str, Rule]:
        assert isinstance(deployed, Predicted)
        given = "FISTA with restart" if found.composite else "L-BFGS"
        inner = FistaWithRestart(step) if found.composite else LBFGS()
        rest = (deployed.bias, deployed.weights, deployed.exponents, deployed.unit)
        return {f"{given}, learned start": Predicted(inner, *rest, deployed.prox_step)}

    baselines: dict[str, Rule]
    if found.composite:
        baselines = {
            "proximal gradient": ProximalGradient(step),
            "FISTA with restart": FistaWithRestart(step),
        }
    else:
        baselines = {
            "gradient descent": GradientDescent(step),
            "Nesterov": Nesterov(step),
            "L-BFGS": LBFGS(),
        }
    return Experiment(
        problem=problem,
        create_rule=create_rule,
        teacher=None,
        baselines=baselines,
        accuracies=Accuracies(accuracies, minima, above="the least loss found by a long run"),
        minima=minima,
        informed=informed,
        external=_outsiders(problem),
    )


def _outsiders(problem: Problem) -> dict[str, External]:
    """SciPy's L-BFGS-B, where the constraint is a box."""
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


def goal_for(problem: Problem, found: Survey) -> Goal:
    """A goal that every surveyed minimum meets."""
    if not problem.nonnegative:
        return decrease_goal(found)
    return Goal(scale=float(f"{goal_scale(found):.3g}"), exponent=1.0)


def decrease_goal(found: Survey, share: float = 0.01) -> Goal:
    """A decrease from the start that is possible on every surveyed instance.

    It asks for all but `share` of what there is to gain, on the instance where that is hardest,
    and takes the power of the gradient's norm with which it asks for most on the others.
    """
    gaps = found.starts - found.minima
    best, most = Goal(0.0, 0.0, "decrease"), 0.0
    for exponent in (0.0, 1.0, 2.0):
        with np.errstate(divide="ignore", invalid="ignore"):
            allowed = (1 - share) * gaps / found.slopes**exponent
        scale = float(f"{np.nan_to_num(np.min(allowed)) / 1.02:.3g}")
        with np.errstate(divide="ignore", invalid="ignore"):
            asked = float(np.median(scale * found.slopes**exponent / gaps))
        if asked > most:
            best, most = Goal(scale, exponent, "decrease"), asked
    if not best.scale > 0:
        raise ConfigurationError(_SOLVED)
    return best


def goal_scale(found: Survey, share: float = 0.01) -> float:
    """A goal, as a share of the start's loss, that every surveyed minimum meets.

    It asks for all but `share` of what there is to gain, on the instance where that is hardest.
    """
    starts = np.where(found.starts > 0, found.starts, np.inf)
    wanted = (found.minima + share * (found.starts - found.minima)) / starts
    scale = 1.02 * float(np.max(wanted))
    if not scale < 1:
        raise ConfigurationError(_SOLVED)
    return scale
