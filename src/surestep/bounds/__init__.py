"""Pure mathematics of bounds: arrays in, numbers out, float64, no input or output."""

from surestep.bounds.family import Family, Minimum, geometric_lambdas, normalised
from surestep.bounds.special_cases import (
    catoni_family,
    constant_goal_bound,
    convex_bound,
    optimised_sublevel_bound,
    sublevel_family,
    worst_case_family,
)

__all__ = [
    "Family",
    "Minimum",
    "catoni_family",
    "constant_goal_bound",
    "convex_bound",
    "geometric_lambdas",
    "normalised",
    "optimised_sublevel_bound",
    "sublevel_family",
    "worst_case_family",
]
