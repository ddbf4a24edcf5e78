"""What a user brings: a problem, its instances, what counts as success."""

from surestep.problem import from_functions

__all__ = ["from_functions"]
