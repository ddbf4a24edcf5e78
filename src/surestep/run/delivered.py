"""What a run delivers: the solver of a rule that is certified."""

import math

import jax

from surestep.certify import Certificate, Certified
from surestep.problem import Theta, point_form, theta_form, working_precision
from surestep.rollout.batched import BLOCK
from surestep.rules.base import Rule
from surestep.solver.familiar import Familiar
from surestep.solver.posterior import Posterior
from surestep.solver.solver import Solver
from surestep.train import Sampled, Task

_NUMBERS = 2_000_000  # of the instances and points of a batch


def solver_of(
    task: Task,
    deployed: Rule,
    certificate: Certificate,
    prior: Sampled,
    certified: Certified,
    probes: Theta,
    familiar: Familiar | None,
) -> Solver:
    """The solver of a rule that is certified, whether or not it was evaluated."""
    return Solver(
        task.problem,
        deployed,
        task.horizon,
        task.goal,
        _in_production(task),
        certificate,
        # The posterior that the certificate's statements are about.
        Posterior(prior.hypers, certified.log_posterior),
        probes,
        familiar,
    )


def _in_production(task: Task) -> int:
    """How many instances a solver's batch has: as many as a run's, or more where they are small.

    A run's are cut so that its sets are whole numbers of them.
    """
    with working_precision(task.problem):
        form = theta_form(task.problem)
        leaves = jax.tree.leaves((form, point_form(task.problem, form)))
    numbers = sum(math.prod(leaf.shape) for leaf in leaves)
    return max(task.block, min(BLOCK, _NUMBERS // max(1, numbers)))
