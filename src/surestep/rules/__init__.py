"""Rules: the learned architectures and the classical algorithms."""

from surestep.rules.barzilai_borwein import BarzilaiBorwein
from surestep.rules.base import Fixed
from surestep.rules.blended import Blended
from surestep.rules.checked import Checked
from surestep.rules.classical import (
    Adam,
    Fista,
    FistaWithRestart,
    GradientDescent,
    HeavyBall,
    Nesterov,
    NesterovPerInstance,
    ProximalGradient,
    ScaledFista,
)
from surestep.rules.convolutional import Convolutional
from surestep.rules.coordinatewise import Coordinatewise
from surestep.rules.cosine import CosineQuasiNewton
from surestep.rules.curvature import (
    LBFGS,
    ConjugateGradients,
    MetricConjugateGradients,
    PreconditionedConjugateGradients,
)
from surestep.rules.front_splitting import FrontADMM
from surestep.rules.gauss_newton import GaussNewton
from surestep.rules.learned_fista import LearnedFista
from surestep.rules.learned_heavy_ball import LearnedHeavyBall
from surestep.rules.learned_primal_dual import LearnedPrimalDual
from surestep.rules.learned_splitting import LearnedSplitting
from surestep.rules.network_start import NetworkStart
from surestep.rules.newton import Newton, NewtonCG
from surestep.rules.preconditioned import Preconditioned
from surestep.rules.predicted import Predicted
from surestep.rules.programme_splitting import ProgrammeADMM
from surestep.rules.proximal import Proximal
from surestep.rules.quasi_newton import (
    MetricQuasiNewton,
    QuasiNewton,
    SinglePrecisionQuasiNewton,
)
from surestep.rules.residual import Residual
from surestep.rules.safeguarded import Safeguarded, SafeguardSettings
from surestep.rules.scaled import Scaled
from surestep.rules.shared_splitting import SharedADMM
from surestep.rules.splitting import ADMM, PrimalDual
from surestep.rules.started import Started
from surestep.rules.wrapper import Frozen

__all__ = [
    "ADMM",
    "LBFGS",
    "Adam",
    "BarzilaiBorwein",
    "Blended",
    "Checked",
    "ConjugateGradients",
    "Convolutional",
    "Coordinatewise",
    "CosineQuasiNewton",
    "Fista",
    "FistaWithRestart",
    "Fixed",
    "FrontADMM",
    "Frozen",
    "GaussNewton",
    "GradientDescent",
    "HeavyBall",
    "LearnedFista",
    "LearnedHeavyBall",
    "LearnedPrimalDual",
    "LearnedSplitting",
    "MetricConjugateGradients",
    "MetricQuasiNewton",
    "Nesterov",
    "NesterovPerInstance",
    "NetworkStart",
    "Newton",
    "NewtonCG",
    "Preconditioned",
    "PreconditionedConjugateGradients",
    "Predicted",
    "PrimalDual",
    "ProgrammeADMM",
    "Proximal",
    "ProximalGradient",
    "QuasiNewton",
    "Residual",
    "SafeguardSettings",
    "Safeguarded",
    "Scaled",
    "ScaledFista",
    "SharedADMM",
    "SinglePrecisionQuasiNewton",
    "Started",
]
