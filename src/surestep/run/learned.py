"""What a run has learned: the deployed rule, its certificate, its evaluation."""

import dataclasses
import functools
import math
from pathlib import Path

from surestep.base.errors import EvaluationError
from surestep.certify import Certificate, Certified
from surestep.evaluate.break_even import BreakEven, break_even
from surestep.evaluate.evaluated import Evaluated
from surestep.evaluate.off_family import Shifted
from surestep.problem import Problem, Theta
from surestep.rules.base import Rule
from surestep.run.delivered import solver_of
from surestep.solver.familiar import Familiar
from surestep.solver.solution import Solution
from surestep.solver.solver import Solver
from surestep.train import Sampled, Task


@dataclasses.dataclass(frozen=True)
class Learned:
    """A learned rule, what is certified of it, and how it did on the test set.

    **Example:**

    ```python
    print(learned.certificate)
    solution = learned.solve(thetas)
    for row in learned.break_even():
        print(row.accuracy, row.solves)
    learned.save("solver.safetensors")
    ```
    """

    task: Task
    deployed: Rule
    """The rule that is handed out."""
    certificate: Certificate
    prior: Sampled
    certified: Certified
    evaluated: Evaluated | None
    """How it did on the test set; None if that could not be found out (`incomplete`)."""
    training_seconds: float = math.nan
    """What choosing (`fit`: survey and race), imitating, locating and sampling took."""
    shifted: Shifted | None = None
    """What the rule does off the family, where the experiment says how to leave it."""
    probes: Theta = None
    """A few instances of the prior set; a saved solver recognises its problem by them."""
    familiar: Familiar | None = None
    """What instances usually look like; a solver's monitor compares new ones with it."""
    incomplete: tuple[str, ...] = ()
    """What went wrong after the certificate was written, a sentence each."""

    @property
    def evaluation(self) -> Evaluated:
        """How the rule and its opponents did on the test set.

        **Raises:** `surestep.errors.EvaluationError` if the evaluation failed. Certificate and
        solver do not depend on it.
        """
        if self.evaluated is None:
            raise EvaluationError(" ".join(self.incomplete) or "there is no evaluation")
        return self.evaluated

    def break_even(self) -> list[BreakEven]:
        """For every accuracy, after how many solves training has paid for itself."""
        return break_even(self.evaluation, self.training_seconds)

    @property
    def problem(self) -> Problem:
        """The family the rule was learned for."""
        return self.task.problem

    @functools.cached_property
    def solver(self) -> Solver:
        """What goes into production: the rule, its certificate and its posterior."""
        return solver_of(
            *(self.task, self.deployed, self.certificate, self.prior, self.certified),
            *(self.probes, self.familiar),
        )

    def save(self, path: Path | str) -> None:
        """Write the solver into a file; `surestep.load` reads it."""
        self.solver.save(path)

    def solve(self, thetas: Theta, iterations: int | None = None) -> Solution:
        """Iterate on a stacked set of instances, by default as often as the certificate says.

        `solver.solve` has more to choose from.
        """
        return self.solver.solve(thetas, iterations=iterations)

    def solve_to(self, thetas: Theta, accuracy: float, limit: int = 10_000) -> Solution:
        """Iterate on a stacked set of instances until each has reached an accuracy."""
        return self.solver.solve(thetas, iterations=limit, tolerance=accuracy)
