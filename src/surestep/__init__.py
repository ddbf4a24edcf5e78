"""Learn an optimization algorithm for your own family of problems, with a certificate."""

from surestep.__about__ import VERSION as __version__
from surestep.certificate import Certificate, Statement
from surestep.config import RunConfig
from surestep.constraint import Constraint, SuccessEstimate
from surestep.experiment import Accuracies, Experiment
from surestep.goal import Goal
from surestep.learn import Learned, learn
from surestep.problem import CompositeProblem, LeastSquares, Problem
from surestep.rule import GradientRule, Rule
from surestep.split import PriorSet, Split, SplitSizes, TestSet, TrainSet, ValidationSet
from surestep.store import RunFolder

__all__ = [
    "Accuracies",
    "Certificate",
    "CompositeProblem",
    "Constraint",
    "Experiment",
    "Goal",
    "GradientRule",
    "LeastSquares",
    "Learned",
    "PriorSet",
    "Problem",
    "Rule",
    "RunConfig",
    "RunFolder",
    "Split",
    "SplitSizes",
    "Statement",
    "SuccessEstimate",
    "TestSet",
    "TrainSet",
    "ValidationSet",
    "__version__",
    "learn",
]
