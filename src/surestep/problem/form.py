"""The form of instances and points: names, shapes and dtypes of their arrays."""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from surestep.problem.base import Point, Problem, Theta
from surestep.problem.draw import working_precision


def theta_form(problem: Problem) -> Theta:
    """Shapes and dtypes of one instance; nothing is drawn."""
    with working_precision(problem):
        return jax.eval_shape(problem.sample, jax.random.key(0))


def as_instances(problem: Problem, thetas: Theta) -> Theta:
    """Stacked instances from anywhere (NumPy, float32), as arrays of the problem's precision.

    Where it is known what types an instance's arrays have, they get those: the same numbers are
    then the same bits, wherever they come from.
    """
    with working_precision(problem):
        wanted = jnp.dtype(problem.precision)

        def convert(leaf: Any) -> Array:
            array = jnp.asarray(leaf)
            return array.astype(wanted) if jnp.issubdtype(array.dtype, jnp.floating) else array

        def exactly(leaf: Any, form: Any) -> Array:
            return convert(leaf).astype(form.dtype)

        form = theta_form(problem)
        if jax.tree.structure(form) == jax.tree.structure(thetas):
            return jax.tree.map(exactly, thetas, form)
        return jax.tree.map(convert, thetas)


@dataclasses.dataclass(frozen=True)
class Part:
    """One array of an instance or of a point."""

    name: str
    shape: list[int]
    dtype: str

    def __str__(self) -> str:
        return f"{self.name} {self.dtype} {tuple(self.shape)}"


def point_form(problem: Problem, theta: Theta) -> Point:
    """Shapes and dtypes of a point, for an instance or its form; nothing is computed."""
    with working_precision(problem):
        return jax.eval_shape(problem.start, theta)


def point_size(problem: Problem) -> int:
    """How many numbers a point has; nothing is drawn."""
    form = point_form(problem, theta_form(problem))
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(form))


def named_leaves(whole: str, tree: Theta | Point) -> dict[str, Any]:
    """The leaves of an instance or a point by name: what .npz files call them.

    A tree that is a single array has the name of the whole.
    """
    return {
        jax.tree_util.keystr(path, simple=True, separator=".") or whole: leaf
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    }


def parts(whole: str, tree: Theta | Point) -> list[Part]:
    """The form of an instance or of a point."""
    return [
        Part(name, list(leaf.shape), str(leaf.dtype))
        for name, leaf in named_leaves(whole, tree).items()
    ]
