"""What a user brings: a problem, its instances, what counts as success.

What other rooms use is listed here.
"""

from surestep.problem.base import (
    ROLES,
    Point,
    Problem,
    StockedProblem,
    Theta,
    count,
    instance,
    name_of,
)
from surestep.problem.commitment import Commitment, require_word, sha256_of
from surestep.problem.constraint_set import ConstraintSet
from surestep.problem.contract import check_problem
from surestep.problem.datasets import SealedSplit, SealedTrainSet, Split, SplitSizes
from surestep.problem.draw import DrawnInChunks, working_precision
from surestep.problem.form import (
    Part,
    as_instances,
    named_leaves,
    parts,
    point_form,
    point_size,
    theta_form,
)
from surestep.problem.from_coefficients import (
    FunctionProgramme,
    StockedFunctionProgramme,
    make_programme,
)
from surestep.problem.from_functions import CompositeFunctionProblem, make_problem
from surestep.problem.front import AffineFront
from surestep.problem.front_program import FrontProgram, front_program
from surestep.problem.given import as_arrays, stacked_instances
from surestep.problem.goal import Goal, at_start, reached, thresholds
from surestep.problem.instance_files import fresh_instances, read_arrays_of
from surestep.problem.instances import Instances, as_points
from surestep.problem.kinds import (
    CompositeProblem,
    DualisedProblem,
    KnownSmoothness,
    LeastSquares,
    PenalisedProblem,
    ProximableSmooth,
)
from surestep.problem.oracle import Evaluations, Oracle, Parts, Vector
from surestep.problem.penalties import Box
from surestep.problem.programme import Coefficients, Programme
from surestep.problem.quadratic import constant_term, linear_term
from surestep.problem.sets import (
    DataSet,
    PriorSet,
    StreamedTrainSet,
    TestSet,
    TrainSet,
    ValidationSet,
    fingerprint,
)
from surestep.problem.strata import MOST_STRATA, Strata
from surestep.problem.structure import Convolution, Structure, find_structure

__all__ = [
    "MOST_STRATA",
    "ROLES",
    "AffineFront",
    "Box",
    "Coefficients",
    "Commitment",
    "CompositeFunctionProblem",
    "CompositeProblem",
    "ConstraintSet",
    "Convolution",
    "DataSet",
    "DrawnInChunks",
    "DualisedProblem",
    "Evaluations",
    "FrontProgram",
    "FunctionProgramme",
    "Goal",
    "Instances",
    "KnownSmoothness",
    "LeastSquares",
    "Oracle",
    "Part",
    "Parts",
    "PenalisedProblem",
    "Point",
    "PriorSet",
    "Problem",
    "Programme",
    "ProximableSmooth",
    "SealedSplit",
    "SealedTrainSet",
    "Split",
    "SplitSizes",
    "StockedFunctionProgramme",
    "StockedProblem",
    "Strata",
    "StreamedTrainSet",
    "Structure",
    "TestSet",
    "Theta",
    "TrainSet",
    "ValidationSet",
    "Vector",
    "as_arrays",
    "as_instances",
    "as_points",
    "at_start",
    "check_problem",
    "constant_term",
    "count",
    "find_structure",
    "fingerprint",
    "fresh_instances",
    "front_program",
    "instance",
    "linear_term",
    "make_problem",
    "make_programme",
    "name_of",
    "named_leaves",
    "parts",
    "point_form",
    "point_size",
    "reached",
    "read_arrays_of",
    "require_word",
    "sha256_of",
    "stacked_instances",
    "theta_form",
    "thresholds",
    "working_precision",
]
