"""What another kind of machine has computed, compared to what rounding can do to it here."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from surestep.problem import DataSet, StreamedTrainSet, TrainSet, working_precision
from surestep.rollout.rounding import PERTURBATIONS, Kind, Perturbed, losses_kind, perturbed_rule
from surestep.rules.base import AnyRule
from surestep.run.verify.finished import Finished

PRECISION = {"float64": 1e-6, "float32": 1e-3}
"""How far apart losses at least 0 may be below the goals."""


def perturbed(rule: AnyRule, data: DataSet) -> list[tuple[AnyRule, TrainSet]]:
    """A rule and instances as other machines may see them."""
    return [
        (perturbed_rule(rule, turn), StreamedTrainSet(Perturbed(data, turn)))
        for turn in range(PERTURBATIONS)
    ]


def kind_of_losses(run: Finished, goals: Float[np.ndarray, " instance"]) -> Kind:
    """How losses are compared."""
    return losses_kind(run.plan.bounded, PRECISION[run.experiment.problem.precision], goals)


def some_of(run: Finished, rows: Int[np.ndarray, " row"]) -> TrainSet:
    """Some instances of the train set."""
    with working_precision(run.experiment.problem):
        parts = [run.train.part(int(row), int(row) + 1) for row in rows]
        return TrainSet(jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *parts))
