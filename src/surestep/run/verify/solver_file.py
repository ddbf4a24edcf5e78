"""The solver's file of a run: it holds the rule that was certified, and its certificate."""

import numpy as np

from surestep.base.errors import SurestepError
from surestep.base.progress import Silence
from surestep.problem import fingerprint
from surestep.rules.base import solver_fingerprint
from surestep.run.afterwards import familiar_with
from surestep.run.begun import probes_of
from surestep.run.delivered import solver_of
from surestep.run.verify.finished import Check, Finished, check, require_sample
from surestep.solver.file import Stored, read_solver
from surestep.solver.solver import Solver
from surestep.storage.records import to_json
from surestep.storage.run_folder import RunFolder

_NAME = "the solver's file"


def verify_solver(run: Finished, folder: RunFolder) -> list[Check]:
    """Rule, posterior, goal, embedded certificate and all else are those of the run."""
    require_sample(run.prior, run.found.deployed_sample)
    problem, rule = run.experiment.problem, run.rule(run.found.deployed_sample)
    try:
        stored = read_solver(folder.solver_path, problem, rule)
    except SurestepError as error:
        return [Check(f"{_NAME} can be used", False, str(error))]
    probes = probes_of(problem, run.sealed)
    familiar = familiar_with(run.task, run.sealed.prior, run.train, Silence())
    solver = solver_of(run.task, rule, run.issued, run.prior, run.found, probes, familiar)
    other = "is not what the run has found"
    return [
        check(f"{_NAME}: {words}", same, other)
        for words, same in _same(stored, solver, run).items()
    ]


def _same(stored: Stored, solver: Solver, run: Finished) -> dict[str, bool]:
    return {
        "the rule": solver_fingerprint(stored.rule) == solver_fingerprint(solver.rule),
        "horizon, goal and batch size": (stored.horizon, stored.goal, stored.block)
        == (solver.horizon, solver.goal, solver.block),
        "the certificate in it": to_json({"": stored.certificate})
        == to_json({"": solver.certificate}),
        "the posterior": _same_posterior(stored, solver),
        "the instances that it knows its problem by": _same_probes(stored, solver, run),
        "what its monitor is familiar with": _same_familiar(stored, solver, run),
    }


def _same_posterior(stored: Stored, solver: Solver) -> bool:
    one, other = stored.posterior, solver.posterior
    if one is None or other is None:
        return False
    return np.array_equal(one.hypers, other.hypers) and np.array_equal(
        one.log_weights, other.log_weights
    )


def _same_familiar(stored: Stored, solver: Solver, run: Finished) -> bool:
    """Elsewhere last bits are others."""
    one, other = stored.familiar, solver.familiar
    if one is None or other is None:
        return one is other
    return run.elsewhere or fingerprint(vars(one)) == fingerprint(vars(other))


def _same_probes(stored: Stored, solver: Solver, run: Finished) -> bool:
    """Elsewhere their last bits are others; that losses agree on them was seen when reading."""
    return run.elsewhere or fingerprint(stored.probes) == fingerprint(solver.probes)
