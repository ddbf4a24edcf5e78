"""Solving the instances of a file: what `surestep solve` does, once its arguments are known."""

import io
from pathlib import Path
from typing import Any

import numpy as np

from surestep.base.errors import ConfigurationError
from surestep.base.keys import named_key
from surestep.paper import open_problem
from surestep.run.fresh import read_arrays_of
from surestep.solver.export import named_points
from surestep.solver.solution import Solution
from surestep.solver.solver import Policy, load
from surestep.storage.files import write_bytes


def solve_file(
    solver: Path,
    problem: str,
    preset: str,
    instances: Path,
    out: Path,
    iterations: int | None,
    tolerance: float | None,
    policy: Policy,
    seed: int | None,
) -> Solution:
    """Solve what is in an .npz file, write the solutions into another, and say how it went."""
    if out.suffix != ".npz" or out.resolve() == instances.resolve():
        raise ConfigurationError(f"--out must be an .npz file, and not the instances: {out}")
    loaded = load(solver, open_problem(problem, preset))
    found = loaded.solve(
        read_arrays_of(loaded.problem, instances),
        iterations=iterations,
        tolerance=tolerance,
        policy=policy,
        key=None if seed is None else named_key(seed, "solve"),
    )
    write_solution(out, found)
    print(found)
    print(f"solutions: {out}")
    return found


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
