"""Learn an optimization algorithm for your own family of problems, with a certificate.

```python
import surestep as ss

problem = ss.make_problem(loss, x0, sample=sample)
learned = ss.fit(problem, budget="2m", out="runs/mine")
print(learned.certificate)
solution = learned.solve(thetas)
```

What this module lists is public: the names below and what the namespaces list in their `__all__`.
Everything else is private and may change.
"""

from typing import TYPE_CHECKING

from surestep.__about__ import __version__
from surestep.base.lazy import keep_function, lazy_attributes

if TYPE_CHECKING:
    from surestep import bounds, interop, paper, report, rules
    from surestep.auto.fit import FitPlan, fit, plan_fit
    from surestep.auto.outcomes import certify, plan_certificate
    from surestep.base import errors
    from surestep.certify.certificate import Certificate, Statement
    from surestep.paper.registry import open_problem
    from surestep.problem import datasets, penalties
    from surestep.problem.base import Problem
    from surestep.problem.constraint_set import ConstraintSet
    from surestep.problem.from_coefficients import make_programme
    from surestep.problem.from_functions import make_problem
    from surestep.problem.goal import Goal
    from surestep.problem.kinds import (
        CompositeProblem,
        DualisedProblem,
        KnownSmoothness,
        LeastSquares,
        PenalisedProblem,
        ProximableSmooth,
    )
    from surestep.problem.programme import Coefficients, Programme
    from surestep.problem.strata import Strata
    from surestep.rules.base import GradientRule, Rule
    from surestep.run.config import RunConfig
    from surestep.run.learned import Learned
    from surestep.run.pipeline import learn
    from surestep.run.until import certify_until
    from surestep.solver.instance_monitor import InstanceMonitor
    from surestep.solver.load import load
    from surestep.solver.monitor import Monitor
    from surestep.solver.prediction import Prediction
    from surestep.solver.solution import Coverage, Solution
    from surestep.solver.solver import Solver
    from surestep.storage.run_folder import RunFolder
    from surestep.train.constraint import Constraint
    from surestep.train.experiment import Accuracies, Experiment, External

# Public names and the modules that define them. They are imported when first used, so that the
# command line can answer without loading JAX.
_HOMES = {
    "Accuracies": "train.experiment",
    "Certificate": "certify.certificate",
    "Coefficients": "problem.programme",
    "CompositeProblem": "problem.kinds",
    "ConstraintSet": "problem.constraint_set",
    "DualisedProblem": "problem.kinds",
    "KnownSmoothness": "problem.kinds",
    "ProximableSmooth": "problem.kinds",
    "Constraint": "train.constraint",
    "Coverage": "solver.solution",
    "Experiment": "train.experiment",
    "External": "train.experiment",
    "FitPlan": "auto.fit",
    "Goal": "problem.goal",
    "GradientRule": "rules.base",
    "Learned": "run.learned",
    "LeastSquares": "problem.kinds",
    "InstanceMonitor": "solver.instance_monitor",
    "Monitor": "solver.monitor",
    "PenalisedProblem": "problem.kinds",
    "Prediction": "solver.prediction",
    "Problem": "problem.base",
    "Programme": "problem.programme",
    "Rule": "rules.base",
    "RunConfig": "run.config",
    "RunFolder": "storage.run_folder",
    "Solution": "solver.solution",
    "Solver": "solver.solver",
    "Statement": "certify.certificate",
    "Strata": "problem.strata",
    "certify": "auto.outcomes",
    "certify_until": "run.until",
    "fit": "auto.fit",
    "learn": "run.pipeline",
    "load": "solver.load",
    "make_problem": "problem.from_functions",
    "make_programme": "problem.from_coefficients",
    "open_problem": "paper.registry",
    "plan_certificate": "auto.outcomes",
    "plan_fit": "auto.fit",
}
_NAMESPACES = {
    "bounds": "bounds",
    "datasets": "problem.datasets",
    "errors": "base.errors",
    "interop": "interop",
    "paper": "paper",
    "penalties": "problem.penalties",
    "report": "report",
    "rules": "rules",
}

__all__ = [
    "Accuracies",
    "Certificate",
    "Coefficients",
    "CompositeProblem",
    "Constraint",
    "ConstraintSet",
    "Coverage",
    "DualisedProblem",
    "Experiment",
    "External",
    "FitPlan",
    "Goal",
    "GradientRule",
    "InstanceMonitor",
    "KnownSmoothness",
    "Learned",
    "LeastSquares",
    "Monitor",
    "PenalisedProblem",
    "Prediction",
    "Problem",
    "Programme",
    "ProximableSmooth",
    "Rule",
    "RunConfig",
    "RunFolder",
    "Solution",
    "Solver",
    "Statement",
    "Strata",
    "__version__",
    "bounds",
    "certify",
    "certify_until",
    "datasets",
    "errors",
    "fit",
    "interop",
    "learn",
    "load",
    "make_problem",
    "make_programme",
    "open_problem",
    "paper",
    "penalties",
    "plan_certificate",
    "plan_fit",
    "report",
    "rules",
]


__getattr__ = lazy_attributes(
    "surestep",
    {name: f"surestep.{module}:{name}" for name, module in _HOMES.items()}
    | {name: f"surestep.{module}" for name, module in _NAMESPACES.items()},
)
# There is a room of this name, too.
keep_function("surestep", "certify", __getattr__)


def __dir__() -> list[str]:
    return __all__
