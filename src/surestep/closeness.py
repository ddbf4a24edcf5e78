"""Are two computations the same? Other versions and other kinds of machines round otherwise.

Learned rules can be chaotic: on the paper's quadratics a last bit of an instance doubles a loss two
hundred iterations later. How far rounding can carry is therefore not guessed, but tried out.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float

from surestep.problem import Theta
from surestep.split import DataSet

NUDGES = 4
"""How often instances are nudged: with one nudge, 62 of 100 honest runs of the chaotic quadratics
would be called false, with four and neighbouring iterations none of 1000."""
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
    turn: int = 0
    """Which numbers go up and which down is another choice in every turn."""
    chunk: int = 1024

    @property
    def size(self) -> int:
        """How many there are."""
        return self.data.size

    def part(self, first: int, last: int) -> Theta:
        """The instances from `first` to before `last`."""
        random = np.random.default_rng([self.turn, first])
        return jax.tree.map(lambda leaf: _nudged(leaf, random), self.data.part(first, last))


def _nudged(leaf: Any, random: np.random.Generator) -> Any:
    leaf = jnp.asarray(leaf)
    if not jnp.issubdtype(leaf.dtype, jnp.floating):
        return leaf
    # Up, down or not at all, so that nothing is merely scaled.
    signs = random.integers(-1, 2, leaf.shape)
    return leaf * (1 + jnp.finfo(leaf.dtype).eps * signs).astype(leaf.dtype)


def close_losses(
    found: Table, stored: Table, bounded: bool, rounding: float
) -> Bool[np.ndarray, "instance column"]:
    """Losses that agree as they should on a machine of the same kind."""
    return _close_sizes(found, stored) if bounded else _close_anywhere(found, stored, rounding)


def explained_losses(
    found: Table,
    stored: Table,
    nudged: Sequence[Table],
    scale: Float[np.ndarray, "instance 1"] | None,
) -> Bool[np.ndarray, "instance column"]:
    """Losses no further apart than nudges have moved those of any instance, times three.

    With a scale they are at least 0 and compared in powers of ten, of which two are the most;
    those far below the scale have nothing but rounding left and excuse no others. Rounding may
    set in one column earlier or later.
    """
    moved = _moved(found, nudged, scale)
    around = np.pad(moved, 1)
    allowed = _FURTHER * np.max([around[:-2], moved, around[2:]], axis=0)
    return _apart(found, stored, scale) <= (
        allowed if scale is None else np.minimum(allowed, _MOST)
    )


def explained(
    found: Table, stored: Table, nudged: Sequence[Table]
) -> Bool[np.ndarray, "instance column"]:
    """Other numbers no further apart than nudges have moved those of any instance, times three."""
    return _apart(found, stored, None) <= _FURTHER * _moved(found, nudged, None)


def explained_hits(
    found: Table, stored: Table, nudged: Sequence[Table]
) -> Bool[np.ndarray, "instance column"]:
    """First hits that nudges explain; those that are missed there or here, if they miss some."""
    flips = np.isfinite(found) != np.isfinite(stored)
    most = np.max([(np.isfinite(found) != np.isfinite(n)).sum(axis=0) for n in nudged], axis=0)
    few = flips.sum(axis=0) <= _FURTHER * most
    return np.where(flips, few, explained(found, stored, nudged))


def _moved(
    found: Table, nudged: Sequence[Table], scale: Float[np.ndarray, "instance 1"] | None
) -> Float[np.ndarray, " column"]:
    """How far nudges have moved the numbers of a column at most."""
    furthest = np.zeros(found.shape[1])
    for other in nudged:
        moved = _apart(found, other, scale)
        telling = np.isfinite(moved)
        if scale is not None:
            telling &= np.maximum(found, other) >= 1e-9 * scale
        furthest = np.maximum(furthest, np.max(moved, axis=0, initial=0.0, where=telling))
    return furthest


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
