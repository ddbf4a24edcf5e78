"""A compiled solver as a file that runs with JAX alone."""

from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax import export
from jax.flatten_util import ravel_pytree

from surestep.base.errors import ConfigurationError
from surestep.base.machine import require
from surestep.problem import Problem, Theta, named_leaves, working_precision
from surestep.rollout.loop import Rollout, rollout
from surestep.rules.base import Rule
from surestep.rules.blocks import without_kernels
from surestep.storage.files import write_bytes


def export_solver(
    path: Path,
    rule: Rule,
    problem: Problem,
    form: Theta,
    iterations: int,
    batch: int | None,
    block: int,
    platforms: tuple[str, ...] | None,
) -> None:
    """Write the program from instances by name to `x`, `loss` and `status`."""
    require("flatbuffers", "flatbuffers", "exporting a solver", extra="export")
    names, structure = list(named_leaves("theta", form)), jax.tree.structure(form)

    def solve(instances: dict[str, jax.Array]) -> dict[str, jax.Array]:
        thetas = jax.tree.unflatten(structure, [instances[name] for name in names])
        prepared = without_kernels(rule.prepare())

        def one(theta: Theta) -> tuple[Rollout, Any]:
            found = rollout(prepared, problem, theta, iterations)
            unravel = ravel_pytree(problem.start(theta))[1]
            return found, unravel(found.x)

        # Blocks divide a known number of instances, an unknown one is taken as a whole.
        found, x = (
            jax.vmap(one)(thetas) if batch is None else jax.lax.map(one, thetas, batch_size=block)
        )
        points = {point_name(name): leaf for name, leaf in named_leaves("x", x).items()}
        return points | {"loss": found.losses[:, -1], "status": found.status}

    with working_precision(problem):
        rows: Any = export.symbolic_shape("batch")[0] if batch is None else batch
        shapes = {
            name: jax.ShapeDtypeStruct((rows, *leaf.shape), leaf.dtype)
            for name, leaf in named_leaves("theta", form).items()
        }
        try:
            program = export.export(jax.jit(solve), platforms=platforms)(shapes)
        except (ValueError, TypeError, NotImplementedError) as error:
            hint = ": give a fixed batch" if batch is None else ""
            raise ConfigurationError(f"this solver cannot be exported{hint} ({error})") from error
    write_bytes(path, bytes(program.serialize()))


def point_name(name: str) -> str:
    """What a part of a point is called in files: `x`, or `x.` and its name."""
    return name if name == "x" else f"x.{name}"


def named_points(x: Any) -> dict[str, np.ndarray]:
    """The parts of stacked points by the names they have in files."""
    return {point_name(name): np.asarray(leaf) for name, leaf in named_leaves("x", x).items()}
