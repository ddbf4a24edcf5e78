"""Are two computations the same? Other versions and other kinds of machines round otherwise.

Learned rules can be chaotic: on the paper's quadratics a last bit of an instance doubles a loss two
hundred iterations later. How far rounding can carry is therefore not guessed, but tried out: last
bits of instances and rules are changed at random, and what differs must look like that, in how far
numbers lie apart, in how many do, and in whether they do so evenly to both sides.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float

from surestep.problem import DataSet, Theta
from surestep.rules.base import AnyRule

PERTURBATIONS = 8
"""How often last bits are changed. Of a thousand pairs of perturbations, taken for honest machines,
seven were told apart on 64 instances of the chaotic quadratics, none on 200."""
_FURTHER = 3.0
"""How much further, more often and more to one side than any perturbation rounding may come."""
_MOST = 2.0
"""Powers of ten of a loss that rounding may explain at most."""
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
class Perturbed:
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
        return jax.tree.map(lambda leaf: _perturbed(leaf, random), self.data.part(first, last))


def perturbed_rule(rule: AnyRule, turn: int) -> AnyRule:
    """A rule with about a last bit of its numbers changed."""
    random = np.random.default_rng([turn])
    numbers, rest = eqx.partition(rule, eqx.is_inexact_array)
    return eqx.combine(jax.tree.map(lambda leaf: _perturbed(leaf, random), numbers), rest)


@jax.enable_x64(True)
def _perturbed(leaf: Any, random: np.random.Generator) -> Any:
    """A leaf of the same precision, whatever the caller works in."""
    leaf = jnp.asarray(leaf)
    if not jnp.issubdtype(leaf.dtype, jnp.floating):
        return leaf
    # Up, down or not at all, so that nothing is merely scaled. Whole numbers may be labels.
    signs = np.where(leaf == jnp.round(leaf), 0, random.integers(-1, 2, leaf.shape))
    return leaf * (1 + jnp.finfo(leaf.dtype).eps * signs).astype(leaf.dtype)


def close_losses(
    found: Table,
    stored: Table,
    bounded: bool,
    rounding: float,
    goals: Float[np.ndarray, " instance"] | None = None,
) -> Bool[np.ndarray, "instance column"]:
    """Losses that agree as they should on a machine of the same kind.

    How large they are is judged beside the goals, if these are named, and the first losses.
    """
    if not bounded:
        return _close_anywhere(found, stored, rounding)
    sizes = np.zeros(len(found)) if goals is None else np.where(np.isfinite(goals), goals, 0.0)
    return _close_sizes(found, stored, np.abs(sizes)[:, None])


def _as_it_is(table: Table) -> Table:
    return table


@dataclasses.dataclass(frozen=True)
class Kind:
    """How numbers of some kind are compared."""

    close: Callable[[Table, Table], Bool[np.ndarray, "instance column"]]
    """Which ones are the same without any explanation."""
    measure: Callable[[Table], Table] = _as_it_is
    """In what they are apart."""
    telling: Callable[[Table, Table], Any] = lambda found, _: np.ones(found.shape, bool)
    """Which perturbed numbers may explain others."""
    most: float = np.inf
    """How far apart rounding may explain at most."""
    along: bool = False
    """Whether columns follow each other: rounding may then set in one earlier or later."""


EXACT = Kind(close=np.equal)
STATISTICS = Kind(close=lambda a, b: np.isclose(a, b, rtol=1e-3, atol=1e-6))


def losses_kind(bounded: bool, rounding: float, goals: Float[np.ndarray, " instance"]) -> Kind:
    """How losses are compared: those of at least 0 in powers of ten.

    Those far below the goals have nothing but rounding left and explain no others.
    """

    def close(found: Table, stored: Table) -> Any:
        return close_losses(found, stored, bounded, rounding, goals)

    if not bounded:
        return Kind(close, along=True)
    scale = 1e-9 * np.abs(goals)[:, None]
    return Kind(
        close,
        measure=lambda table: np.log10(np.maximum(table, 1e-300)),
        telling=lambda found, other: np.maximum(found, other) >= scale,
        most=_MOST,
        along=True,
    )


def explained(
    found: Table, stored: Table, perturbed: Sequence[Table], kind: Kind
) -> Bool[np.ndarray, "instance column"]:
    """Numbers that are close, or that differ as those of perturbed instances and rules do.

    In a column, no number may be further apart than three times the furthest that perturbations
    have moved any; no more of them may differ than three times as many as perturbations have
    changed; and their mean may not lie further to one side than what perturbations do to single
    ones makes likely.
    """
    differ = ~kind.close(found, stored)
    apart = np.where(differ, _apart(stored, found, kind.measure), 0.0)
    furthest, number, spread = np.zeros((3, found.shape[1]))
    for other in perturbed:
        moved = _apart(other, found, kind.measure)
        moved[~(np.isfinite(moved) & kind.telling(found, other))] = 0.0
        furthest = np.maximum(furthest, np.abs(moved).max(axis=0, initial=0.0))
        number = np.maximum(number, np.sum(~kind.close(found, other), axis=0))
        spread = np.maximum(spread, np.sqrt(np.mean(moved**2, axis=0)))
    if kind.along:
        furthest, number, spread = (_beside(row) for row in (furthest, number, spread))
    near = np.abs(apart) <= np.minimum(_FURTHER * furthest, kind.most)
    few = differ.sum(axis=0) <= _FURTHER * (number + 1)
    even = np.abs(apart.mean(axis=0)) <= _FURTHER * spread / np.sqrt(len(found))
    return ~differ | (near & few & even)


def explained_hits(
    found: Table, stored: Table, perturbed: Sequence[Table]
) -> Bool[np.ndarray, "instance column"]:
    """The same for first hits, of which some are missed: those are compared as such."""
    seen = np.isfinite(found)
    flags = [np.isfinite(table).astype(float) for table in (found, stored, *perturbed)]
    missed = explained(flags[0], flags[1], flags[2:], EXACT)

    def where_both(table: Table) -> Table:
        return np.where(np.isfinite(table) & seen, table, np.where(seen, found, 0.0))

    times = [where_both(table) for table in (found, stored, *perturbed)]
    return missed & explained(times[0], times[1], times[2:], EXACT)


def _apart(one: Table, other: Table, measure: Callable[[Table], Table]) -> Table:
    """How far one number is above the other; nothing where both are the same, infinite ones too."""
    with np.errstate(invalid="ignore"):
        difference = measure(one) - measure(other)
        return np.where(one == other, 0.0, np.where(np.isnan(difference), np.inf, difference))


def _beside(row: Float[np.ndarray, " column"]) -> Float[np.ndarray, " column"]:
    """The largest of each column and its neighbours."""
    around = np.pad(row, 1)
    return np.max([around[:-2], row, around[2:]], axis=0)


def _close_anywhere(found: Table, stored: Table, rounding: float) -> Any:
    """Losses that may be negative: equal beside the largest of the instance's, to rounding."""
    both = np.isinf(found) & np.isinf(stored)
    scale = np.max(np.abs(np.where(np.isfinite(stored), stored, 0.0)), axis=1, keepdims=True)
    with np.errstate(invalid="ignore"):
        return both | (np.abs(found - stored) <= rounding * scale)


def _close_sizes(
    found: Table, stored: Table, sizes: Float[np.ndarray, "instance one_or_column"]
) -> Any:
    """Equal in digits; tiny losses, which rounding on another machine moves, in order of size.

    Of squares that are at rounding nothing is known, so there all are equal.
    """
    both = np.isinf(found) & np.isinf(stored)
    digits = np.isclose(found, stored, rtol=1e-3, atol=0)
    scale = np.maximum(np.maximum(stored[:, :1], sizes), 1e-300)
    tiny = np.maximum(found, stored) < 1e-9 * scale
    least = np.maximum(1e-22 * scale, 1e-30)
    with np.errstate(divide="ignore", invalid="ignore"):
        apart = np.abs(np.log10(np.maximum(found, least) / np.maximum(stored, least)))
    return both | digits | (tiny & (apart < 2))
