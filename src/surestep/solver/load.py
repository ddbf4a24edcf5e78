"""Solvers from their files."""

from pathlib import Path

from surestep.problem import Problem
from surestep.rules.base import Rule
from surestep.solver.file import read_solver
from surestep.solver.solver import Solver


def load(path: Path | str, problem: Problem, rule: Rule | None = None) -> Solver:
    """Read a solver that `Solver.save` wrote, for the problem it was learned for.

    No code from the file is run.

    **Arguments:**

    - `path`: the file.
    - `problem`: the problem; the file holds four instances by which it is recognised.
    - `rule`: a rule of the same structure as a template, for a rule whose class is not one of
      surestep's own.

    **Returns:** the `Solver`, with its certificate.

    **Raises:** `surestep.errors.SolverFileError` if the file is damaged, was made for another
    problem, or holds a certificate of another rule.

    **Example:**

    ```python
    solver.save("solver.safetensors")
    print(ss.load("solver.safetensors", problem).solve(thetas))
    ```
    """
    return Solver(problem, **vars(read_solver(Path(path), problem, rule)))
