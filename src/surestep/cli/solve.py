"""`surestep solve`: solve a file of instances with a saved solver."""

import dataclasses
import io
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import tyro

from surestep.base.errors import ConfigurationError
from surestep.base.keys import named_key
from surestep.cli.arguments import parse, require_seed, unset
from surestep.paper import open_problem
from surestep.problem import read_arrays_of
from surestep.solver.export import named_points
from surestep.solver.load import load
from surestep.solver.solution import Solution
from surestep.solver.solver import Policy
from surestep.storage.files import write_bytes


@dataclasses.dataclass(frozen=True)
class Arguments:
    """Solve a file of instances with a saved solver."""

    solver: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="SOLVER")]
    """The solver's file (solver.safetensors)."""
    problem: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="PROBLEM")]
    """A problem's name, a file, or the folder of a run."""
    instances: Annotated[Path, tyro.conf.arg(metavar="FILE.npz")]
    """The instances to solve."""
    out: Annotated[Path, tyro.conf.arg(metavar="FILE.npz")]
    """Where solutions go."""
    preset: str = "quick"
    """Whose settings a name means."""
    iterations: Annotated[int | None, unset("N")] = None
    """How many (the certificate's)."""
    tolerance: Annotated[float | None, unset("T")] = None
    """Stop where the loss is below."""
    policy: Policy = "deployed"
    """The deployed rule, or a draw from the posterior for every instance."""
    seed: Annotated[int | None, unset("S")] = None
    """For the policy posterior, which draws."""


def main(words: list[str]) -> int:
    """Carry out the command."""
    solve_file(parse(Arguments, words, "surestep solve"))
    return 0


def solve_file(given: Arguments) -> None:
    """Solve what is in an .npz file, write the solutions into another, and say how it went."""
    if (given.policy == "posterior") != (given.seed is not None):
        raise ConfigurationError("--seed goes with --policy posterior, which draws")
    if given.seed is not None:
        require_seed(given.seed)
    if given.out.suffix != ".npz" or given.out.resolve() == given.instances.resolve():
        raise ConfigurationError(f"--out must be an .npz file, and not the instances: {given.out}")
    loaded = load(given.solver, open_problem(given.problem, given.preset))
    found = loaded.solve(
        read_arrays_of(loaded.problem, given.instances),
        iterations=given.iterations,
        tolerance=given.tolerance,
        policy=given.policy,
        key=None if given.seed is None else named_key(given.seed, "solve"),
    )
    write_solution(given.out, found)
    print(found)
    print(f"solutions: {given.out}")


def write_solution(path: Path, solution: Solution) -> None:
    """Write solutions as an .npz file: points by name, and one number an instance."""
    arrays: dict[str, Any] = named_points(solution.x)
    for name in ("loss", "start_loss", "iterations", "gradients", "status"):
        arrays[name] = getattr(solution, name)
    if solution.sample is not None:
        arrays["sample"] = solution.sample
    buffer = io.BytesIO()
    np.savez(buffer, covered=np.array(bool(solution.covered)), **arrays)
    write_bytes(path, buffer.getvalue())
