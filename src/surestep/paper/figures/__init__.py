"""The paper's small figures, each made by the code that learns, not by code of their own."""

from collections.abc import Callable, Mapping

from surestep.base.progress import Reporter
from surestep.paper.figures.choices import design_choices
from surestep.paper.figures.estimation import estimation
from surestep.paper.figures.sampling import constrained_sampling
from surestep.report.figures import Figure

FIGURES: Mapping[str, Callable[[int, Reporter], Figure]] = {
    "estimation": estimation,
    "sampling": constrained_sampling,
    "choices": design_choices,
}
"""Figures that need nothing but a seed, by name."""
