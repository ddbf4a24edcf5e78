"""The instances of a later certificate, kept beside it so that it can be verified."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from surestep.base.errors import RunFolderError
from surestep.problem import (
    DrawnInChunks,
    Problem,
    StreamedTrainSet,
    TrainSet,
    named_leaves,
    theta_form,
    working_precision,
)
from surestep.storage.arrays import Announced, read_arrays, write_arrays

_INSTANCES = "instances.safetensors"

DRAWN = "surestep instances, drawn"


def write_instances(place: Path, train: TrainSet) -> None:
    """Keep the instances of a certificate beside it, so that it can be verified.

    Of those that are drawn when they are needed, the key is kept; those that lie in files larger
    than memory stay there.
    """
    source = train.thetas
    if isinstance(source, DrawnInChunks):
        facts = {"kind": DRAWN, "size": str(source.size)}
        write_arrays(
            place / _INSTANCES, {"key": np.asarray(jax.random.key_data(source.key))}, facts
        )
    elif not isinstance(train, StreamedTrainSet):
        leaves = named_leaves("theta", source)
        arrays = {name: np.asarray(leaf) for name, leaf in leaves.items()}
        write_arrays(place / _INSTANCES, arrays, {"kind": "surestep instances"})


def stored_instances(problem: Problem, place: Path, size: int) -> TrainSet | None:
    """The `size` instances that a certificate was computed from; None if they lie elsewhere."""
    path = place / _INSTANCES
    if not path.exists():
        return None
    form = theta_form(problem)
    wanted = {name: (str(leaf.dtype), leaf.shape) for name, leaf in
              named_leaves("theta", form).items()}  # fmt: skip

    def inspect(metadata: dict[str, Any], announced: dict[str, Announced]) -> None:
        if metadata.get("kind") == DRAWN:
            if announced != {"key": ("uint32", (2,))}:
                raise RunFolderError(f"{path} should hold a key, and nothing else")
            return
        found = {name: (kind, shape[1:]) for name, (kind, shape) in announced.items()}
        if found != wanted or len({shape[:1] for _, shape in announced.values()}) != 1:
            raise RunFolderError(f"{path} holds no instances of this problem")
        if any(shape[:1] != (size,) for _, shape in announced.values()):
            raise RunFolderError(f"{path} holds other instances than it should")

    arrays, metadata = read_arrays(path, inspect)
    with working_precision(problem):
        if metadata.get("kind") == DRAWN:
            return StreamedTrainSet(_drawn(problem, path, arrays["key"], metadata, size))
        leaves = [jnp.asarray(arrays[name]) for name in wanted]
        return TrainSet(jax.tree.unflatten(jax.tree.structure(form), leaves))


def _drawn(
    problem: Problem, path: Path, key: np.ndarray, metadata: Mapping[str, Any], size: int
) -> DrawnInChunks:
    # Compared, not believed: what is drawn takes time and memory.
    if metadata.get("size") != str(size):
        raise RunFolderError(f"{path} does not say how its {size} instances were drawn")
    return DrawnInChunks(problem, size, jax.random.wrap_key_data(jnp.asarray(key)))
