"""Recorded instances: which of them belong together, and whether they drift.

A certificate counts independent draws. Rows that are equal, or that belong to one patient, day or
episode, are no independent draws: together they are one. And rows that change in the course of time
tell little about the rows that are to come.
"""

import dataclasses
import hashlib
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from jaxtyping import Bool, Float, Int
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from surestep.base.errors import ProblemError
from surestep.problem.base import Theta, count

_ROUNDING = {"float64": 1e-12, "float32": 1e-6}  # shares of a number that rounding may change
_FEATURES, _SHUFFLES = 16, 1999  # what drift is looked for in, and what it is compared with
_BLOCKS = 2000  # so many are shuffled, at most
_NUMBERS = 2_000_000  # how many are looked at a time
DRIFT = 0.001
"""Recorded instances whose order is rarer than this among shuffled ones are said to drift."""

Groups = Int[np.ndarray, " _instance"]


def equal_rows(thetas: Theta) -> Groups:
    """A number for every instance; those that are equal but for rounding have the same one.

    Of those that are equal to the bit one is looked at. Instances that are equal but for rounding
    are so along a random line: sorted along it, they are compared with their neighbours alone.
    """
    size = count(thetas)
    columns = [_Columns.of(array) for array in _flat(thetas)]
    places, reach, chance = np.zeros(size), np.zeros(size), _chance()
    for one in columns:
        near, far = one.along(chance.uniform(0.5, 1.0, one.array.shape[1]))
        places, reach = places + near, reach + far
    same = _same_bits(columns, size)
    _, alone = np.unique(same, return_index=True)
    first, second = [alone[same]], [np.arange(size)]
    order = alone[np.argsort(places[alone], kind="stable")]
    active = np.arange(order.size - 1)
    for ahead in range(1, order.size):
        one, other = order[active], order[active + ahead]
        close = places[other] - places[one] <= reach[one] + reach[other]
        active, one, other = active[close], one[close], other[close]
        if not active.size:
            break
        equal = np.ones(active.size, bool)
        for some in columns:
            equal &= some.equal(one, other)
        first.append(one[equal])
        second.append(other[equal])
        active = active[active + ahead + 1 < order.size]
    return _together(size, first, second)


def _same_bits(columns: list["_Columns"], size: int) -> Groups:
    """A number for every row; those that are equal to the bit have the same one."""
    found: dict[bytes, int] = {}
    # 0 and -0 are equal.
    whole = [np.ascontiguousarray(one.array + np.zeros((), one.array.dtype)) for one in columns]
    rows = (b"".join(array[i].tobytes() for array in whole) for i in range(size))
    # Hashes, so that no second copy of the data is kept.
    hashes = (hashlib.blake2b(row, digest_size=16).digest() for row in rows)
    return np.fromiter((found.setdefault(row, len(found)) for row in hashes), int, size)


@dataclasses.dataclass(frozen=True)
class _Columns:
    """An array of numbers, a row for each instance, and what rounding may change them by."""

    array: np.ndarray
    share: float
    """Of a number itself; 0 for whole numbers."""
    floor: Float[np.ndarray, " d"]
    """For numbers near 0, where larger ones in their column have left their rounding."""

    @classmethod
    def of(cls, array: np.ndarray) -> "_Columns":
        real = np.issubdtype(array.dtype, np.floating)
        share = _ROUNDING.get(array.dtype.name, 1e-2) if real else 0.0
        if not real:
            return cls(array, share, np.zeros(array.shape[1]))
        middles = [np.median(np.abs(some), axis=0) for some in _columns(array)]
        return cls(array, share, share * np.concatenate(middles))

    def along(
        self, line: Float[np.ndarray, " d"]
    ) -> tuple[Float[np.ndarray, " row"], Float[np.ndarray, " row"]]:
        """Where rows are along a line, and how far from there what is equal to them may be."""
        largest = np.concatenate([np.max(np.abs(some), axis=0) for some in _columns(self.array)])
        line = line / np.maximum(1.0, largest)
        places = np.concatenate([part @ line for part in _parts(self.array)])
        # Sums are rounded, too.
        sizes = np.concatenate([np.abs(part) @ line for part in _parts(self.array)])
        return places, (self.share + 1e-14) * sizes + float(self.floor @ line)

    def equal(self, one: Groups, other: Groups) -> Bool[np.ndarray, " pair"]:
        """Whether rows agree in every number."""
        found, pairs = np.empty(one.size, bool), max(1, _NUMBERS // self.array.shape[1])
        for first in range(0, one.size, pairs):
            here = slice(first, first + pairs)
            a, b = self.array[one[here]], self.array[other[here]]
            if self.share:
                a, b = a.astype(np.float64), b.astype(np.float64)
                rounding = self.share * np.maximum(np.abs(a), np.abs(b)) + self.floor
                found[here] = np.all(np.abs(a - b) <= rounding, axis=1)
            else:
                found[here] = np.all(a == b, axis=1)
        return found


def _flat(thetas: Theta) -> list[np.ndarray]:
    """The arrays of stacked instances, a row for each instance; those without numbers left out."""
    size = count(thetas)
    arrays = [np.asarray(leaf).reshape(size, -1) for leaf in jax.tree.leaves(thetas)]
    arrays = [array.view(np.uint8) if array.dtype == bool else array for array in arrays]
    return [array for array in arrays if array.shape[1]]


def _parts(array: np.ndarray) -> Iterator[Float[np.ndarray, "row d"]]:
    """Some rows at a time as float64, so that no copy is as large as the array."""
    rows = max(1, _NUMBERS // array.shape[1])
    for first in range(0, len(array), rows):
        yield array[first : first + rows].astype(np.float64)


def _columns(array: np.ndarray) -> Iterator[Float[np.ndarray, "row d"]]:
    """Some columns at a time as float64."""
    number = max(1, _NUMBERS // len(array))
    for first in range(0, array.shape[1], number):
        yield array[:, first : first + number].astype(np.float64)


def _together(size: int, first: list[Groups], second: list[Groups]) -> Groups:
    """The groups that pairs of instances make."""
    one, other = (np.concatenate([np.zeros(0, int), *pairs]) for pairs in (first, second))
    links = coo_array((np.ones(one.size), (one, other)), shape=(size, size))
    return connected_components(links, directed=False)[1].astype(int)


def joined_groups(one: Groups, other: Groups) -> Groups:
    """The groups of instances that are together in one partition or in the other."""
    first, second = [], []
    for labels in (one, other):
        order = np.argsort(labels, kind="stable")
        same = labels[order[1:]] == labels[order[:-1]]
        first.append(order[:-1][same])
        second.append(order[1:][same])
    return _together(one.size, first, second)


def named_groups(groups: Any, size: int) -> Groups:
    """The groups that a user names: a label for every instance."""
    labels = np.asarray(groups)
    if labels.shape != (size,):
        raise ProblemError(
            f"groups must have one label for each of the {size} instances (an episode, a patient, "
            f"a day), not the shape {labels.shape}"
        )
    if labels.dtype.kind not in "iuUSb":
        raise ProblemError(
            f"groups must be whole numbers or words, one for each instance, not {labels.dtype}"
        )
    return np.unique(labels, return_inverse=True)[1].reshape(size)


def drift(thetas: Theta, groups: Groups) -> float:
    """How rare this order of instances is among shuffled ones: a p-value.

    It looks at every number of an instance (of many, at 16 random combinations of them): how far do
    the sums of its ranks stray from what they would be without a trend or a jump? The largest of
    these is compared with that of 1999 shuffles. Groups are shuffled, not their rows. A group
    stands where one of its rows does, any of them: frequent ones begin earlier, whether or not
    there is drift. Where no number changes, nothing drifts.
    """
    features = _features(thetas, groups)
    if not features.shape[1] or len(features) < 2:
        return 1.0
    ranks = np.argsort(np.argsort(features, axis=0, kind="stable"), axis=0).astype(np.float64)
    for f in range(ranks.shape[1]):
        # Equal values share their mean rank, or their order would tell of itself.
        same = np.unique(features[:, f], return_inverse=True)[1].reshape(-1)
        ranks[:, f] = (np.bincount(same, ranks[:, f]) / np.bincount(same))[same]
    ranks -= ranks.mean(axis=0)
    ranks /= np.where(ranks.std(axis=0) > 0, ranks.std(axis=0), 1.0)
    ranks = _blocks(ranks)
    seen, chance = _stray(ranks), _chance()
    shuffled = [_stray(ranks[chance.permutation(len(ranks))]) for _ in range(_SHUFFLES)]
    return (1 + int(np.sum(np.asarray(shuffled) >= seen))) / (1 + _SHUFFLES)


def _features(thetas: Theta, groups: Groups) -> Float[np.ndarray, "group feature"]:
    """Some numbers of every group, the means over its rows, in the groups' order."""
    arrays = _flat(thetas)
    width, size, chance = sum(array.shape[1] for array in arrays), count(thetas), _chance()
    few = width <= _FEATURES
    found, lengths = np.zeros((size, 0 if few else _FEATURES - 1)), np.zeros(size)
    for array in arrays:
        middle, scale = _standard(array)
        parts = ((part - middle) * scale for part in _parts(array))
        if few:
            only = np.concatenate([part[:, scale > 0] for part in parts])
            found = np.concatenate([found, only], axis=1)
            continue
        mixed = chance.normal(size=(array.shape[1], _FEATURES - 1))
        seen = [(part @ mixed, np.sum(part**2, axis=1)) for part in parts]
        found += np.concatenate([one for one, _ in seen])
        lengths += np.concatenate([square for _, square in seen])
    if not few:
        found = np.concatenate([found, np.sqrt(lengths)[:, None]], axis=1)
    anybody = chance.permutation(size)
    _, places, inverse = np.unique(groups[anybody], return_index=True, return_inverse=True)
    sums = np.zeros((places.size, found.shape[1]))
    np.add.at(sums, inverse.reshape(-1), found[anybody])
    means = sums / np.bincount(inverse.reshape(-1))[:, None]
    return means[np.argsort(anybody[places])]


def _standard(array: np.ndarray) -> tuple[Float[np.ndarray, " d"], Float[np.ndarray, " d"]]:
    """The mean of every column, and one over its spread; 0 where nothing changes."""
    middle, scale = [], []
    for some in _columns(array):
        # Squares of very large and very small numbers are none.
        size = np.max(np.abs(some), axis=0)
        size = np.where(size > np.finfo(np.float64).tiny, size, 1.0)
        spread = np.std(some / size, axis=0)
        changes = spread > 1e-12
        middle.append(np.mean(some / size, axis=0) * size)
        scale.append(np.where(changes, 1 / np.where(changes, spread, 1.0), 0.0) / size)
    return np.concatenate(middle), np.concatenate(scale)


def _chance() -> np.random.Generator:
    return np.random.default_rng(0)


def _blocks(ranks: Float[np.ndarray, "group feature"]) -> Float[np.ndarray, "block feature"]:
    """Sums of neighbours, where there are too many groups to shuffle them often."""
    length = -(-len(ranks) // _BLOCKS)
    whole = ranks[: len(ranks) - len(ranks) % length]
    return whole.reshape(-1, length, ranks.shape[1]).sum(axis=1)


def _stray(ranks: Float[np.ndarray, "group feature"]) -> float:
    return float(np.max(np.abs(np.cumsum(ranks, axis=0))))


@dataclasses.dataclass(frozen=True)
class Recorded:
    """What was found about recorded instances before anything was learned from them."""

    instances: int
    groups: int
    largest: int
    """How many instances the largest group has."""
    named: bool
    """Whether the user has named groups."""
    rarity: float | None
    """The p-value of their order; None if the order means nothing."""

    @property
    def drifts(self) -> bool:
        """Whether shuffled instances hardly ever look like this."""
        return self.rarity is not None and self.rarity <= DRIFT

    def require_steady(self) -> None:
        """Refuse instances that drift."""
        if self.drifts:
            raise ProblemError(
                f"the recorded instances drift: among shuffled ones, such an order is as rare as "
                f"{self.rarity:.2g}. Those to come would differ from those that were recorded, and "
                "no certificate would speak about them. Take instances from a time in which "
                "nothing changed, or say surestep.make_problem(..., ordered=False) if their order "
                "is not that of time"
            )

    def __str__(self) -> str:
        together = "equal or named together" if self.named else "equal"
        if self.groups == self.instances:
            first = f"{self.instances} recorded instances, of which no two are {together}"
        else:
            first = (
                f"{self.instances} recorded instances in {self.groups} groups that are {together} "
                f"(the largest has {self.largest}); a group is in one data set alone, with one "
                "instance of it that is drawn: groups are taken for independent draws, and a new "
                "instance for one of a new group"
            )
        if self.rarity is None:
            return f"{first}; their order was said to mean nothing, so it was not tested for drift"
        if self.drifts:
            return f"{first}; in their order they drift (p = {self.rarity:.2g})"
        return f"{first}; in their order they show no drift (p = {self.rarity:.2g})"


def look_at(thetas: Theta, named: Any, ordered: bool) -> tuple[Groups, Recorded]:
    """The groups of recorded instances, and what there is to say of them.

    **Arguments:**

    - `thetas`: the instances, stacked.
    - `named`: a label for each, where the user knows which belong together, or None.
    - `ordered`: whether they stand in the order of time.
    """
    size, groups = count(thetas), equal_rows(thetas)
    if named is not None:
        groups = joined_groups(groups, named_groups(named, size))
    rarity = drift(thetas, groups) if ordered else None
    sizes = np.bincount(groups)
    return groups, Recorded(size, sizes.size, int(sizes.max()), named is not None, rarity)
