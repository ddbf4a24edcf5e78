"""A problem's signature: what a solver's file remembers of the problem it was learned for."""

import dataclasses
from typing import Any

import numpy as np

from surestep.base.errors import SolverFileError
from surestep.problem import Part, Problem, Theta, parts, point_form, theta_form, working_precision
from surestep.rollout.batched import rollouts
from surestep.rules import GradientDescent

PROBES, _ITERATIONS = 4, 2

# Other machines and versions round in other places; another problem differs by much more.
_ROUNDING = {"float64": 1e-9, "float32": 1e-4}


@dataclasses.dataclass(frozen=True)
class Signature:
    """By what a problem is recognised."""

    problem: str
    """The name of its class."""
    precision: str
    theta: list[Part]
    x: list[Part]
    losses: list[list[float]]
    """On a few instances: the loss at the start and after two short gradient steps."""

    @classmethod
    def of(cls, problem: Problem, probes: Theta) -> "Signature":
        """The signature of a problem, computed on a few stacked instances."""
        return cls(*_form(problem), _losses(problem, probes))

    def require_form(self, problem: Problem, where: str) -> None:
        """Refuse a problem of another class, precision or shape; nothing is computed for it."""
        wanted = (self.problem, self.precision, self.theta, self.x)
        names = ("class", "precision", "theta", "x")
        for name, one, other in zip(names, wanted, _form(problem), strict=True):
            if one != other:
                raise SolverFileError(
                    f"{where} was made for another problem: {name}: wanted {_shown(one)}, found "
                    f"{_shown(other)}"
                )

    def require_losses(self, problem: Problem, probes: Theta, where: str) -> None:
        """Refuse a problem that computes other losses on the same instances."""
        found = np.array(_losses(problem, probes))
        if [len(row) for row in self.losses] != [found.shape[1]] * len(found):
            raise SolverFileError(f"{where} has losses of another shape than {found.shape}")
        wanted = np.array(self.losses)
        size = np.maximum(np.abs(wanted[:, :1]), np.abs(wanted))
        with np.errstate(invalid="ignore"):
            close = np.abs(wanted - found) <= _ROUNDING[problem.precision] * size
        # Infinite and undefined losses are what they are.
        close = np.where(np.isfinite(wanted) & np.isfinite(found), close, False) | (
            (wanted == found) | (np.isnan(wanted) & np.isnan(found))
        )
        for i, step in np.argwhere(~close):
            when = f"after {step} gradient steps" if step else "at the start"
            raise SolverFileError(
                f"{where} was made for another problem: the loss of its probe instance {i} {when}: "
                f"wanted {wanted[i, step]:.17g}, found {found[i, step]:.17g}"
            )


def _form(problem: Problem) -> tuple[str, str, list[Part], list[Part]]:
    theta = theta_form(problem)
    x = point_form(problem, theta)
    return type(problem).__name__, problem.precision, parts("theta", theta), parts("x", x)


def _losses(problem: Problem, probes: Theta) -> list[list[float]]:
    with working_precision(problem):
        # As runs are fingerprinted: one compiled program serves both.
        probed = rollouts(GradientDescent(1e-3), problem, probes, _ITERATIONS, PROBES)
        return np.asarray(probed.losses, np.float64).tolist()


def _shown(value: Any) -> str:
    return str(value) if isinstance(value, str) else ", ".join(map(str, value)) or "nothing"
