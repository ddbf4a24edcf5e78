"""The paper's small figures, each made by the code that learns, not by code of their own."""

from collections.abc import Callable, Mapping

from surestep.gallery.choices import design_choices
from surestep.gallery.estimation import estimation
from surestep.gallery.sampling import constrained_sampling
from surestep.progress import Reporter
from surestep.report.figures import Figure

FIGURES: Mapping[str, Callable[[int, Reporter], Figure]] = {
    "estimation": estimation,
    "sampling": constrained_sampling,
    "choices": design_choices,
}
"""Figures that need nothing but a seed, by name."""
