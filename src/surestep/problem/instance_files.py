"""Instances from files, or drawn by a seed: what a later certificate is computed from."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from surestep.base.errors import ConfigurationError
from surestep.problem.base import Problem, StockedProblem, Theta
from surestep.problem.contract import check_problem
from surestep.problem.datasets import SealedTrainSet
from surestep.problem.draw import working_precision
from surestep.problem.form import as_instances, named_leaves, theta_form
from surestep.problem.sets import StreamedTrainSet, TrainSet
from surestep.problem.streamed import ReadInChunks, chunks, open_arrays
from surestep.storage.npz import Form


def fresh_instances(problem: Problem, wanted: str, size: int) -> SealedTrainSet | TrainSet:
    """Instances that a seed and a plan are going to decide, or those of a file."""
    if not (wanted.isascii() and wanted.isdigit()):
        return read_instances(problem, Path(wanted))
    if isinstance(problem, StockedProblem):
        raise ConfigurationError(
            "the instances of this problem are data, which were dealt out when the run began: "
            "give an .npz file of new ones instead of a seed"
        )
    if int(wanted) >= 2**31:
        raise ConfigurationError(f"a seed must be below 2^31, not {wanted}")
    return SealedTrainSet(problem, size, int(wanted))


def read_instances(problem: Problem, path: Path, block: int = 64) -> TrainSet:
    """Instances from an .npz file whose arrays are named like the parts of the problem's theta.

    Or from .npy files: a single one, if theta is one array, or a folder of them with those names.
    They are read a part at a time, when it is needed, so they may be larger than memory.
    Every instance is tried at the problem's start, in batches of `block`.
    """
    arrays = read_arrays_of(problem, path)
    if path.suffix == ".npz":
        train = TrainSet(as_instances(problem, arrays))
    else:
        train = StreamedTrainSet(ReadInChunks(problem, arrays))
    with working_precision(problem):
        for number, part in enumerate(train.parts()):
            check_problem(problem, part, block, moving=number == 0)
    return train


def read_arrays_of(problem: Problem, path: Path) -> Theta:
    """The same as they are in the file: nothing is converted, nothing is computed.

    What the file announces is compared with the problem's theta before an array is read.
    """
    template = theta_form(problem)
    wanted = named_leaves("theta", template)

    def inspect(announced: dict[str, Form]) -> None:
        _require_form(path, wanted, announced)

    arrays = open_arrays(path, list(wanted), inspect)
    for name, leaf in wanted.items():
        if not all(np.all(np.isfinite(chunk)) for chunk in chunks(arrays[name])):
            raise ConfigurationError(f"{name} in {path} holds numbers that are not finite")
        whole = jnp.issubdtype(leaf.dtype, jnp.integer)
        if whole and not all(_whole(chunk, leaf.dtype) for chunk in chunks(arrays[name])):
            raise ConfigurationError(
                f"{name} in {path} must hold whole numbers that {leaf.dtype} can hold, not "
                f"{arrays[name].dtype}"
            )
    return jax.tree.unflatten(jax.tree.structure(template), [arrays[name] for name in wanted])


def _require_form(path: Path, wanted: Mapping[str, Any], announced: Mapping[str, Form]) -> None:
    if set(announced) != set(wanted):
        raise ConfigurationError(
            f"{path} must hold the arrays {', '.join(sorted(wanted))}, not "
            f"{', '.join(sorted(announced))[:1000]}"
        )
    for name, leaf in wanted.items():
        shape = announced[name][1]
        if shape[1:] != leaf.shape or not shape:
            raise ConfigurationError(
                f"{name} in {path} must have the shape (instances, {str(leaf.shape)[1:]}, not "
                f"{shape}"
            )
    sizes = {shape[0] for _, shape in announced.values()}
    if len(sizes) != 1 or 0 in sizes:
        raise ConfigurationError(f"the arrays in {path} must have equally many instances")


def _whole(array: np.ndarray, kind: Any) -> bool:
    same = np.issubdtype(array.dtype, np.integer)
    return bool(same and np.array_equal(array.astype(kind), array))
