"""Rules: the learned architectures and the classical algorithms."""

from surestep.rules.blended import Blended
from surestep.rules.classical import (
    Adam,
    Fista,
    FistaWithRestart,
    GradientDescent,
    HeavyBall,
    Nesterov,
)
from surestep.rules.coordinatewise import Coordinatewise
from surestep.rules.curvature import LBFGS, ConjugateGradients

__all__ = [
    "LBFGS",
    "Adam",
    "Blended",
    "ConjugateGradients",
    "Coordinatewise",
    "Fista",
    "FistaWithRestart",
    "GradientDescent",
    "HeavyBall",
    "Nesterov",
]
