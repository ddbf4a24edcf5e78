"""What users give to make a problem of: arrays, functions, instances."""

import inspect
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from surestep.base.errors import ConfigurationError, ProblemError
from surestep.problem.base import Theta
from surestep.storage.npz import read_npz


def no_sampler(key: Array) -> Theta:
    """Recorded instances are dealt, not drawn."""
    del key
    raise AssertionError("instances come from the stock")


def as_arrays(tree: Any, precision: str, what: str = "there is") -> Any:
    """Every number as an array, floating ones in a precision."""

    def convert(leaf: Any) -> Array:
        try:
            array = jnp.asarray(leaf)
        except TypeError as error:
            raise ProblemError(
                f"{what} a {type(leaf).__name__}, where arrays of numbers are needed"
            ) from error
        floating = jnp.issubdtype(array.dtype, jnp.floating)
        # A Python number has no type of its own, and a program compiled for it serves no array.
        return array.astype(precision if floating else array.dtype)

    with jax.enable_x64(precision == "float64"):
        return jax.tree.map(convert, tree)


def require_callable(name: str, value: Any, arguments: tuple[str, ...]) -> None:
    """Refuse what is no function of these arguments."""
    wanted = f"a function of {' and '.join(arguments)}"
    if not callable(value):
        raise ProblemError(f"{name} must be {wanted}, not {type(value).__name__}")
    try:
        inspect.signature(value).bind(*arguments)
    except TypeError as error:
        raise ProblemError(f"{name} must be {wanted}: {error}") from error
    except ValueError:
        return  # a built-in function that does not say what it takes


def require_numbers(name: str, tree: Any) -> None:
    """Refuse what holds anything but finite numbers."""
    leaves = jax.tree.leaves(tree)
    if not leaves:
        raise ProblemError(f"{name} holds no numbers: give an array or a pytree of arrays")
    for leaf in leaves:
        try:
            array = np.asarray(leaf)
        except ValueError as error:
            raise ProblemError(f"{name} must hold arrays of numbers: {error}") from error
        if array.dtype.kind not in "fiub":
            raise ProblemError(f"{name} must hold numbers, not {array.dtype}")
        if not np.all(np.isfinite(array)):
            raise ProblemError(f"{name} holds numbers that are not finite")


def stacked_instances(thetas: Any, precision: str) -> Theta:
    """Instances that a user has, from arrays or from a file, in a precision."""
    if isinstance(thetas, str | Path):
        thetas = _read(Path(thetas))
    require_numbers("thetas", thetas)
    sizes = {np.shape(leaf)[0] if np.ndim(leaf) else 0 for leaf in jax.tree.leaves(thetas)}
    if len(sizes) != 1 or 0 in sizes:
        raise ProblemError(
            "the arrays of thetas must be stacked along their first axis, one row an instance, and "
            f"have equally many rows, not {sorted(sizes)}"
        )
    return as_arrays(thetas, precision)


def _read(path: Path) -> dict[str, np.ndarray]:
    try:
        return read_npz(path)
    except ConfigurationError as error:
        raise ProblemError(str(error)) from error


def require_shares(shares: Any) -> None:
    """Refuse shares that are no division of the instances."""
    good = len(shares) == 4 and all(share > 0 for share in shares) and sum(shares) <= 1 + 1e-9
    if not good:
        raise ProblemError(
            "shares are four positive numbers (prior, validation, train, test) that add up to at "
            f"most 1, not {shares}"
        )
