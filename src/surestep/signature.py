"""A problem's signature: what a solver's file remembers of the problem it was learned for."""

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import equinox as eqx
import jax
import numpy as np

from surestep.errors import SolverFileError
from surestep.problem import Point, Problem, Theta, draw, instance, working_precision
from surestep.randomness import named_key
from surestep.rollout import rollouts
from surestep.rules import GradientDescent

_INSTANCES, _ITERATIONS = 4, 2
# Other machines and versions round in other places; another problem differs by much more.
_ROUNDING = {"float64": 1e-9, "float32": 1e-4}


@dataclasses.dataclass(frozen=True)
class Part:
    """One array of an instance or of a point."""

    name: str
    shape: list[int]
    dtype: str

    def __str__(self) -> str:
        return f"{self.name} {self.dtype} {tuple(self.shape)}"


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
    def of(cls, problem: Problem) -> "Signature":
        """Draw the few instances and compute the losses."""
        with working_precision(problem):
            thetas = draw(problem, _INSTANCES, named_key(0, "signature"))
            first = instance(thetas, 0)
            # As runs are fingerprinted: one compiled program serves both.
            probe = rollouts(GradientDescent(1e-3), problem, thetas, _ITERATIONS, _INSTANCES)
            losses = np.asarray(probe.losses, np.float64).tolist()
            return cls(
                type(problem).__name__,
                problem.precision,
                parts("theta", first),
                parts("x", eqx.filter_eval_shape(problem.start, first)),
                losses,
            )

    def require_same(self, found: "Signature", where: str) -> None:
        """Refuse another problem, and say in what it differs."""
        for difference in _differences(self, found):
            raise SolverFileError(f"{where} was made for another problem: {difference}")


def named_leaves(whole: str, tree: Theta | Point) -> dict[str, Any]:
    """The leaves of an instance or a point by name: what .npz files call them.

    A tree that is a single array has the name of the whole.
    """
    return {
        jax.tree_util.keystr(path, simple=True, separator=".") or whole: leaf
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    }


def parts(whole: str, tree: Theta | Point) -> list[Part]:
    """The form of an instance or of a point."""
    return [
        Part(name, list(leaf.shape), str(leaf.dtype))
        for name, leaf in named_leaves(whole, tree).items()
    ]


def _differences(wanted: Signature, found: Signature) -> Iterator[str]:
    for name in ("problem", "precision"):
        first, second = getattr(wanted, name), getattr(found, name)
        if first != second:
            yield f"{name}: wanted {first}, found {second}"
    for name in ("theta", "x"):
        first, second = getattr(wanted, name), getattr(found, name)
        if len(first) != len(second):
            yield f"{name}: wanted {_listed(first)}, found {_listed(second)}"
        for one, other in zip(first, second, strict=False):
            if one != other:
                yield f"{name}: wanted {one}, found {other}"
    if np.shape(wanted.losses) != np.shape(found.losses):
        yield f"losses: wanted {np.shape(wanted.losses)}, found {np.shape(found.losses)}"
        return
    pairs = zip(wanted.losses, found.losses, strict=True)
    for i, (row, other_row) in enumerate(pairs):
        for step, (one, other) in enumerate(zip(row, other_row, strict=True)):
            if not _close(one, other, max(abs(row[0]), abs(one)), _ROUNDING[wanted.precision]):
                when = f"after {step} gradient steps" if step else "at the start"
                yield f"loss of probe instance {i} {when}: wanted {one:.17g}, found {other:.17g}"


def _close(one: float, other: float, size: float, rounding: float) -> bool:
    if math.isfinite(one) and math.isfinite(other):
        return abs(one - other) <= rounding * size
    return one == other or (math.isnan(one) and math.isnan(other))


def _listed(found: list[Part]) -> str:
    return ", ".join(map(str, found)) or "nothing"
