"""Pure mathematics of bounds: arrays in, numbers out, float64, no input or output."""

from surestep.bounds.family import (
    GridBound,
    geometric_lambdas,
    grid_bound,
    normalised,
    sublevel_bound,
)

__all__ = ["GridBound", "geometric_lambdas", "grid_bound", "normalised", "sublevel_bound"]
