"""Are two computations the same? Other versions and other kinds of machines round otherwise.

Learned rules can be chaotic: on the paper's quadratics a last bit of an instance doubles a loss two
hundred iterations later. How far rounding can carry is therefore not guessed, but tried out.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float

from surestep.problem import Theta
from surestep.split import DataSet

_FURTHER = 3.0
"""How much further than any nudged instance another rounding may come."""
_MOST = 2.0
"""Powers of ten that rounding may explain at most."""
Table = Float[np.ndarray, "instance column"]


def agree(found: Any, wanted: Any, rounding: float) -> bool:
    """Whether plain values are the same, their numbers to rounding."""
    if isinstance(found, dict) and isinstance(wanted, dict):
        same = found.keys() == wanted.keys()
        return same and all(agree(found[key], wanted[key], rounding) for key in found)
    if isinstance(found, list | tuple) and isinstance(wanted, list | tuple):
        pairs = zip(found, wanted, strict=False)
        return len(found) == len(wanted) and all(agree(a, b, rounding) for a, b in pairs)
    if isinstance(found, float) and isinstance(wanted, float):
        return bool(np.isclose(found, wanted, rtol=rounding, atol=0, equal_nan=True))
    return found == wanted


@dataclasses.dataclass(frozen=True)
class Nudged:
    """The instances of a set, a part at a time, with about a last bit of their numbers changed."""

    data: DataSet
    chunk: int = 1024

    @property
    def size(self) -> int:
        """How many there are."""
        return self.data.size

    def part(self, first: int, last: int) -> Theta:
        """The instances from `first` to before `last`."""
        return jax.tree.map(_nudged, self.data.part(first, last))


def _nudged(leaf: Any) -> Any:
    leaf = jnp.asarray(leaf)
    if not jnp.issubdtype(leaf.dtype, jnp.floating):
        return leaf
    # Up and down in turns, so that nothing is merely scaled.
    signs = 2 * (jnp.arange(leaf.size).reshape(leaf.shape) % 2) - 1
    return leaf * (1 + jnp.finfo(leaf.dtype).eps * signs).astype(leaf.dtype)


def close_losses(
    found: Table, stored: Table, bounded: bool, rounding: float
) -> Bool[np.ndarray, "instance column"]:
    """Losses that agree as they should on a machine of the same kind."""
    return _close_sizes(found, stored) if bounded else _close_anywhere(found, stored, rounding)


def explained(
    found: Table, stored: Table, nudged: Table, scale: Float[np.ndarray, "instance 1"] | None
) -> Bool[np.ndarray, "instance column"]:
    """Numbers no further apart than a nudge has moved those of any instance, times three.

    With a scale they are losses of at least 0, compared in powers of ten, of which two are the
    most; those far below the scale have nothing but rounding left and excuse no others.
    """
    between, moved = _apart(found, stored, scale), _apart(found, nudged, scale)
    telling = np.isfinite(moved)
    if scale is not None:
        telling &= np.maximum(found, nudged) >= 1e-9 * scale
    allowed = _FURTHER * np.max(moved, axis=0, initial=0.0, where=telling)
    return between <= (allowed if scale is None else np.minimum(allowed, _MOST))


def explained_hits(
    found: Table, stored: Table, nudged: Table
) -> Bool[np.ndarray, "instance column"]:
    """First hits that a nudge explains; those that are missed there or here, if it misses some."""
    flips, nudges = (np.isfinite(found) != np.isfinite(other) for other in (stored, nudged))
    few = flips.sum(axis=0) <= _FURTHER * nudges.sum(axis=0)
    return np.where(flips, few, explained(found, stored, nudged, None))


def _apart(one: Table, other: Table, scale: Any) -> Table:
    """How far apart numbers are: with a scale in powers of ten."""
    if scale is not None:
        one, other = (np.log10(np.maximum(numbers, 1e-300)) for numbers in (one, other))
    with np.errstate(invalid="ignore"):
        return np.where(one == other, 0.0, np.abs(one - other))


def _close_anywhere(found: Table, stored: Table, rounding: float) -> Any:
    """Losses that may be negative: equal beside the largest of the instance's, to rounding."""
    both = np.isinf(found) & np.isinf(stored)
    scale = np.max(np.abs(np.where(np.isfinite(stored), stored, 0.0)), axis=1, keepdims=True)
    with np.errstate(invalid="ignore"):
        return both | (np.abs(found - stored) <= rounding * scale)


def _close_sizes(found: Table, stored: Table) -> Any:
    """Equal in digits; tiny losses, which rounding on another machine moves, in order of size."""
    both = np.isinf(found) & np.isinf(stored)
    digits = np.isclose(found, stored, rtol=1e-3, atol=0)
    scale = np.maximum(stored[:, :1], 1e-300)
    tiny = np.maximum(found, stored) < 1e-9 * scale
    with np.errstate(divide="ignore", invalid="ignore"):
        apart = np.abs(np.log10(np.maximum(found, 1e-30) / np.maximum(stored, 1e-30)))
    return both | digits | (tiny & (apart < 2))
