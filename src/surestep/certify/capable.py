"""Which opponents can be rolled out at all: one that raises an error must not end a run."""

from collections.abc import Mapping

import numpy as np

from surestep.problem import DataSet, instance, working_precision
from surestep.rollout.batched import rollouts
from surestep.rules.base import Rule
from surestep.train import Task


def capable(task: Task, opponents: Mapping[str, Rule], data: DataSet) -> dict[str, Rule]:
    """The opponents that get through an iteration on the first instance of a set."""
    found: dict[str, Rule] = {}
    with working_precision(task.problem):
        few = instance(data.part(0, 1), np.arange(1))
        for name, rule in opponents.items():
            try:
                rollouts(rule, task.problem, few, 1, 1)
            except Exception:  # it may be anybody's code
                continue
            found[name] = rule
    return found
