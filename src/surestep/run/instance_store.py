"""The instances of a later certificate, kept beside it so that it can be verified."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from surestep.base.errors import RunFolderError
from surestep.problem import (
    Problem,
    StreamedTrainSet,
    TrainSet,
    named_leaves,
    theta_form,
    working_precision,
)
from surestep.storage.arrays import Announced, read_arrays, write_arrays

_INSTANCES = "instances.safetensors"


def write_instances(place: Path, train: TrainSet) -> None:
    """Keep given instances beside their certificate, so that it can be verified.

    Those that a seed has drawn are drawn again; those that lie in files larger than memory stay
    there.
    """
    if train.seed is None and not isinstance(train, StreamedTrainSet):
        leaves = named_leaves("theta", train.thetas)
        arrays = {name: np.asarray(leaf) for name, leaf in leaves.items()}
        write_arrays(place / _INSTANCES, arrays, {"kind": "surestep instances"})


def stored_instances(problem: Problem, place: Path, size: int) -> TrainSet | None:
    """The `size` given instances that a certificate was computed from; None if they are lost."""
    path = place / _INSTANCES
    if not path.exists():
        return None
    form = theta_form(problem)
    wanted = {name: (str(leaf.dtype), leaf.shape) for name, leaf in
              named_leaves("theta", form).items()}  # fmt: skip

    def inspect(metadata: dict[str, Any], announced: dict[str, Announced]) -> None:
        del metadata
        found = {name: (kind, shape[1:]) for name, (kind, shape) in announced.items()}
        if found != wanted or len({shape[:1] for _, shape in announced.values()}) != 1:
            raise RunFolderError(f"{path} holds no instances of this problem")
        if any(shape[:1] != (size,) for _, shape in announced.values()):
            raise RunFolderError(f"{path} holds other instances than it should")

    arrays, _ = read_arrays(path, inspect)
    with working_precision(problem):
        leaves = [jnp.asarray(arrays[name]) for name in wanted]
        return TrainSet(jax.tree.unflatten(jax.tree.structure(form), leaves))
