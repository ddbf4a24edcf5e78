"""Off the family: the deployed rule on instances from shifted distributions.

A certificate speaks about new instances of the family it was made for. What happens on others is
only shown, next to the paper's baseline and next to the family itself.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool

from surestep.base.errors import ConfigurationError
from surestep.base.keys import named_key
from surestep.base.progress import Reporter, Silence
from surestep.problem import DataSet, Problem, Theta, reached, working_precision
from surestep.problem.draw import draw
from surestep.rollout.batched import rollouts
from surestep.rules.base import Rule
from surestep.storage.run_folder import axes
from surestep.train import Task

UNSHIFTED = "the family itself"


@dataclasses.dataclass(frozen=True)
class Shifted:
    """What rules did on shifted instances, up to the horizon; the first shift is none."""

    losses: np.ndarray = dataclasses.field(metadata=axes("shift", "solver", "instance", "step"))
    thresholds: np.ndarray = dataclasses.field(metadata=axes("shift", "instance"))
    """The goal, as it is for these instances."""
    shifts: list[str]
    solvers: list[str]

    def successes(self) -> Bool[np.ndarray, "shift solver instance"]:
        """Where a solver reached the goal at the horizon."""
        return reached(self.losses[..., -1], self.thresholds[:, None])


class ShiftedSet(DataSet):
    """Instances of shifted distributions, one after the other; nothing depends on them."""


def evaluate_shifted(
    shifts: Mapping[str, Problem],
    task: Task,
    solvers: Mapping[str, Rule],
    number: int,
    seed: int,
    report: Reporter | None = None,
) -> Shifted:
    """Run every solver on `number` instances of the family and of each shift.

    Only the `sample` of a shifted problem is used: loss and start are those of the family, so an
    instance must have the family's form.
    """
    require_same_form(task.problem, shifts)
    report = report or Silence()
    problems = {UNSHIFTED: task.problem, **shifts}
    drawn = [draw(p, number, named_key(seed, "shifted", name)) for name, p in problems.items()]
    with working_precision(task.problem), report.stage("shifted", len(solvers), "runs") as bar:
        # All in one set: each solver is compiled once.
        together = ShiftedSet(jax.tree.map(lambda *parts: jnp.concatenate(parts), *drawn))
        found = []
        for name, solver in solvers.items():
            shown = rollouts(solver, task.problem, together.thetas, task.horizon, task.block)
            found.append(np.asarray(shown.losses, np.float64))
            bar.advance(1, name)
    losses = np.stack(found).reshape(len(found), len(problems), number, -1)
    return Shifted(
        losses=np.ascontiguousarray(losses.swapaxes(0, 1)),
        thresholds=task.thresholds(together).reshape(len(problems), number),
        shifts=list(problems),
        solvers=list(solvers),
    )


def require_same_form(problem: Problem, shifts: Mapping[str, Problem]) -> None:
    """Refuse shifts whose instances the family's loss could not take."""
    with working_precision(problem):
        wanted = _form(problem)
        for name, shifted in shifts.items():
            if name == UNSHIFTED:
                raise ConfigurationError(f"a shift may not be called {name!r}")
            if _form(shifted) != wanted:
                raise ConfigurationError(
                    f"instances of the shift {name!r} have another form than the family's"
                )


def _form(problem: Problem) -> Any:
    """Structure, shapes and types of an instance."""
    theta: Theta = jax.eval_shape(problem.sample, jax.random.key(0))
    leaves, structure = jax.tree.flatten(theta)
    return structure, [(leaf.shape, leaf.dtype) for leaf in leaves]
