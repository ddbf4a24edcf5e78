"""Instances and starts from anywhere, brought into a problem's form, and how far off they were."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from surestep.base.errors import ConfigurationError
from surestep.problem.base import Point, Problem, Theta, count, instance
from surestep.problem.form import named_leaves, point_form

_ARRAYS = (np.ndarray, jax.Array)


@dataclasses.dataclass(frozen=True)
class Instances:
    """A stacked set of instances in the problem's precision."""

    thetas: Theta
    differences: tuple[str, ...]
    """In what they differ from instances that the problem draws."""

    reshaped: bool
    """Whether their shapes are among the differences."""

    @property
    def size(self) -> int:
        """How many instances there are."""
        return count(self.thetas)

    @classmethod
    def of(cls, problem: Problem, form: Theta, thetas: Theta) -> "Instances":
        """Stacked instances (NumPy, lists of JAX arrays, other precisions) as the problem's.

        `form` has the shapes and dtypes of one instance. A structure that is not the problem's is
        refused; other shapes are not, if the problem can be computed on them.
        """
        forms, structure = jax.tree.flatten(form)
        given, found = jax.tree.flatten(thetas)
        if found == structure and _ready(forms, given):
            return cls(thetas, (), False)
        arrays = _same_structure("instances", form, thetas)
        differences: list[str] = []
        converted = {}
        for name, wanted in named_leaves("theta", form).items():
            converted[name] = _converted(name, arrays[name], wanted, differences)
        _equally_many("instances", converted)
        leaves = [converted[name] for name in named_leaves("theta", form)]
        stacked = jax.tree.unflatten(structure, leaves)
        reshaped = [leaf.shape[1:] for leaf in leaves] != [leaf.shape for leaf in forms]
        if reshaped:
            _require_computable(problem, stacked)
        return cls(stacked, tuple(differences), reshaped)


def _ready(forms: list[Any], given: list[Any]) -> bool:
    """Whether arrays have the problem's shapes and types already: nothing is touched then."""
    first = given[0] if given else None
    rows = first.shape[:1] if isinstance(first, _ARRAYS) else ()
    if rows in ((), (0,)):
        return False
    for leaf, wanted in zip(given, forms, strict=True):
        if not isinstance(leaf, _ARRAYS) or leaf.dtype != wanted.dtype:
            return False
        if leaf.shape != rows + wanted.shape:
            return False
    return True


def as_points(problem: Problem, thetas: Theta, points: Point) -> Point:
    """Stacked starts in the problem's precision, one for each instance."""
    form = point_form(problem, instance(thetas, 0))
    arrays = _same_structure("x0", form, points)
    leaves = []
    for name, wanted in named_leaves("x", form).items():
        shape = (count(thetas), *wanted.shape)
        if arrays[name].shape != shape:
            raise ConfigurationError(
                f"x0: {name} must have the shape {shape}, not {arrays[name].shape}"
            )
        leaves.append(jnp.asarray(arrays[name].astype(wanted.dtype)))
    return jax.tree.unflatten(jax.tree.structure(form), leaves)


def _same_structure(what: str, form: Any, given: Any) -> dict[str, np.ndarray]:
    whole = "x" if what == "x0" else "theta"
    wanted, found = jax.tree.structure(form), jax.tree.structure(given)
    if wanted != found:
        raise ConfigurationError(
            f"{what} must have the structure {', '.join(named_leaves(whole, form))} ({wanted}), "
            f"not {', '.join(named_leaves(whole, given)) or 'nothing'} ({found})"
        )
    return {name: np.asarray(leaf) for name, leaf in named_leaves(whole, given).items()}


def _converted(name: str, array: np.ndarray, wanted: Any, differences: list[str]) -> jax.Array:
    if array.ndim != len(wanted.shape) + 1:
        raise ConfigurationError(
            f"{name} must have the shape (instances, {str(wanted.shape)[1:]}, not {array.shape}: "
            "solve takes stacked instances, solve_one a single one"
        )
    if array.shape[1:] != wanted.shape:
        differences.append(
            f"{name} has the shape {array.shape[1:]}, the family's instances {wanted.shape}"
        )
    kind = np.dtype(wanted.dtype)
    if array.dtype == kind:
        return jnp.asarray(array)
    if not np.can_cast(array.dtype, kind, "same_kind"):
        raise ConfigurationError(f"{name} must be {kind}, not {array.dtype}")
    converted = array.astype(kind)
    if kind.kind in "iu" and not np.array_equal(converted, array):
        raise ConfigurationError(f"{name} holds numbers that {kind} cannot hold")
    # What is wider is rounded, as the family's own numbers are; what is narrower was rounded to
    # numbers that the family never draws.
    if kind.kind == "f" and np.can_cast(array.dtype, kind, "safe"):
        differences.append(f"{name} came as {array.dtype}, the family's instances are {kind}")
    return jnp.asarray(converted)


def _equally_many(what: str, arrays: dict[str, Any]) -> None:
    sizes = {name: array.shape[0] for name, array in arrays.items()}
    if len(set(sizes.values())) != 1 or 0 in sizes.values():
        raise ConfigurationError(
            f"{what} must have equally many rows in every part, and at least one: {sizes}"
        )


def _require_computable(problem: Problem, thetas: Theta) -> None:
    theta = instance(thetas, 0)
    try:
        shape = jax.eval_shape(lambda t: jnp.asarray(problem.loss(problem.start(t), t)), theta)
    except (TypeError, ValueError, IndexError) as error:
        shapes = {n: leaf.shape for n, leaf in named_leaves("theta", theta).items()}
        raise ConfigurationError(
            f"{type(problem).__name__} cannot be computed on instances of shapes {shapes}: {error}"
        ) from error
    if shape.shape != ():
        raise ConfigurationError(
            f"{type(problem).__name__}.loss is no single number on instances of these shapes"
        )
