"""A compiled solver as a file that runs with JAX alone."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import export
from jax.flatten_util import ravel_pytree

from surestep.base.errors import ConfigurationError
from surestep.base.machine import require
from surestep.problem import Point, Problem, Theta, named_leaves, working_precision
from surestep.rollout.loop import Ended, Status, whole
from surestep.rules import Checked
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

        def one(theta: Theta) -> tuple[Ended, Any]:
            found = whole(prepared, problem, theta, iterations)
            return found, ravel_pytree(problem.start(theta))[1](found.point)

        # Blocks divide a known number of instances, an unknown one is taken as a whole.
        found, x = (
            jax.vmap(one)(thetas) if batch is None else jax.lax.map(one, thetas, batch_size=block)
        )
        points = {point_name(name): leaf for name, leaf in named_leaves("x", x).items()}
        status = jnp.where(jnp.isfinite(found.loss), Status.FINISHED, Status.DIVERGED)
        return points | {"loss": found.loss, "status": status}

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


def as_function(rule: Rule, problem: Problem, iterations: int) -> Callable[[Theta], Point]:
    """A prepared rule as a JAX function from one instance to where it ends."""
    plain = without_kernels(rule)
    checked = isinstance(rule, Checked) and iterations >= rule.at

    def minimise(theta: Theta) -> Point:
        found = whole(plain, problem, theta, iterations)
        # The check knows the loss. Without one, computing it would only tell who has diverged.
        point = found.point if checked else found.unwatched_point
        return ravel_pytree(problem.start(theta))[1](point)

    return minimise


def point_name(name: str) -> str:
    """What a part of a point is called in files: `x`, or `x.` and its name."""
    return name if name == "x" else f"x.{name}"


def named_points(x: Any) -> dict[str, np.ndarray]:
    """The parts of stacked points by the names they have in files."""
    return {point_name(name): np.asarray(leaf) for name, leaf in named_leaves("x", x).items()}
