"""Learn an optimization algorithm for your own family of problems, with a certificate."""

import importlib
from typing import TYPE_CHECKING, Any

from surestep.__about__ import __version__

if TYPE_CHECKING:
    from surestep.certificate import Certificate, Statement
    from surestep.config import RunConfig
    from surestep.constraint import Constraint, SuccessEstimate
    from surestep.experiment import Accuracies, Experiment, External
    from surestep.goal import Goal
    from surestep.learning import Learned, learn
    from surestep.own.fit import fit
    from surestep.problem import CompositeProblem, LeastSquares, PenalisedProblem, Problem
    from surestep.report import summary, write_report
    from surestep.rule import GradientRule, Rule
    from surestep.solution import Solution
    from surestep.solver import Solver, load
    from surestep.split import PriorSet, Split, SplitSizes, TestSet, TrainSet, ValidationSet
    from surestep.store import RunFolder

# Public names and the modules that define them. They are imported when first used, so that the
# command line can answer without loading JAX.
_HOMES = {
    "Accuracies": "experiment",
    "Certificate": "certificate",
    "CompositeProblem": "problem",
    "Constraint": "constraint",
    "Experiment": "experiment",
    "External": "experiment",
    "Goal": "goal",
    "GradientRule": "rule",
    "LeastSquares": "problem",
    "Learned": "learning",
    "PenalisedProblem": "problem",
    "PriorSet": "split",
    "Problem": "problem",
    "Rule": "rule",
    "RunConfig": "config",
    "RunFolder": "store",
    "Solution": "solution",
    "Solver": "solver",
    "Split": "split",
    "SplitSizes": "split",
    "Statement": "certificate",
    "SuccessEstimate": "constraint",
    "TestSet": "split",
    "TrainSet": "split",
    "ValidationSet": "split",
    "fit": "own.fit",
    "learn": "learning",
    "load": "solver",
    "summary": "report",
    "write_report": "report",
}

__all__ = [
    "Accuracies",
    "Certificate",
    "CompositeProblem",
    "Constraint",
    "Experiment",
    "External",
    "Goal",
    "GradientRule",
    "Learned",
    "LeastSquares",
    "PenalisedProblem",
    "PriorSet",
    "Problem",
    "Rule",
    "RunConfig",
    "RunFolder",
    "Solution",
    "Solver",
    "Split",
    "SplitSizes",
    "Statement",
    "SuccessEstimate",
    "TestSet",
    "TrainSet",
    "ValidationSet",
    "__version__",
    "fit",
    "learn",
    "load",
    "summary",
    "write_report",
]


def __getattr__(name: str) -> Any:
    if name == "proxes":
        return importlib.import_module("surestep.proxes")
    if name not in _HOMES:
        raise AttributeError(f"module 'surestep' has no attribute {name!r}")
    return getattr(importlib.import_module(f"surestep.{_HOMES[name]}"), name)
