"""Instances that iterate together until each is done; those that are done leave.

Whoever is left is gathered into smaller batches, of a few sizes only, so that few programs are
compiled.
"""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import numpy as np

from surestep.problem import Point, count
from surestep.rollout.watched import Given, Part, Shown, Standing, checking, going, numbers

_FEWER = 4
"""Smaller batches have a power of this many instances."""
_FIRST = 8
"""Iterations before instances of several batches are first put together; then they double."""


@dataclasses.dataclass(frozen=True)
class Setting:
    """What the instances of a call have in common."""

    arrays: list[Any]
    rest: Any
    """Both of rule and problem, as `split` makes them; the rule is prepared, unless it is drawn."""
    target: float | None
    """The loss below which an instance is done."""
    block: int


@dataclasses.dataclass
class Table:
    """What is known of every instance of a call."""

    x: Point
    loss: np.ndarray
    iterations: np.ndarray
    gradients: np.ndarray
    settled: np.ndarray

    @classmethod
    def room(cls, size: int, like: Shown) -> "Table":
        """For so many instances."""
        return cls(*jax.tree.map(lambda part: np.zeros((size, *part.shape[1:]), part.dtype), like))

    @property
    def shown(self) -> Shown:
        """The columns."""
        return Shown(self.x, self.loss, self.iterations, self.gradients, self.settled)

    def rows(self, places: np.ndarray) -> Shown:
        """What is known of some instances."""
        return _rows(self.shown, places)

    def copy(self) -> "Table":
        """Another table with the same numbers."""
        return Table(*jax.tree.map(np.copy, self.shown))

    def put(self, places: np.ndarray, shown: Shown) -> None:
        """Fill in the instances at these places."""

        def put(whole: np.ndarray, part: np.ndarray) -> None:
            whole[places] = part[: places.size]

        jax.tree.map(put, self.shown, shown)


@dataclasses.dataclass
class Batch:
    """A few instances of a call."""

    places: np.ndarray
    """Which ones; the batch is filled up with repetitions of them."""
    given: Given

    @property
    def standing(self) -> Standing:
        """Where they stand; asked once they have begun."""
        assert self.given.standing is not None
        return self.given.standing


class Crowd:
    """Some of a call's instances, under way with one rule."""

    def __init__(
        self, setting: Setting, part: Part, whole: Given, places: np.ndarray, made: int = 0
    ) -> None:
        """Instances at some places of a set, that have made so many iterations already."""
        self.setting, self.whole, self.made = setting, whole, made
        self.table: Table | None = None
        self.first: np.ndarray | None = None
        """Losses at the start."""
        self._go = going(setting.rest, part)
        full = count(whole.thetas)
        self._size = _fitting(places.size, -(-full // -(-full // setting.block)))
        self.batches = [self._batch(some, None) for some in self._cut(places)]

    def until(self, bound: int) -> Table:
        """Go on until everyone is done or has made so many iterations in all."""
        while self.table is None or (self.batches and self.made < bound):
            self._round(bound)
        self.made = bound
        return self.table

    def check(self) -> tuple[np.ndarray, Shown, np.ndarray]:
        """One iteration more and a check, on all who are not done.

        Who they are, what is shown of them, and who passed.
        """
        assert self.table is not None
        program, parts = checking(self.setting.rest), []
        for batch in self.batches:
            x, loss, gradients, passed = jax.tree.map(
                np.asarray, program(self.setting.arrays, batch.given)
            )
            made, nobody = np.full(loss.shape, self.made + 1), np.zeros(loss.shape, bool)
            rows = np.flatnonzero(~self.table.settled[batch.places])
            shown = Shown(x, loss, made, gradients, nobody)
            parts.append((batch.places[rows], *_rows((shown, passed), rows)))
        return jax.tree.map(lambda *some: np.concatenate(some), *parts)

    def _round(self, bound: int) -> None:
        setting, single = self.setting, len(self.batches) == 1
        goal, enough = bound, 0
        if single:
            enough = _smaller(self._size)
        elif setting.target is not None:
            # Instances of several batches are put together, so they have to meet.
            goal = min(bound, max(_FIRST, 1 << self.made.bit_length()))
        ends = numbers(self.made, goal, enough, setting.target)
        found = [self._go(setting.arrays, batch.given, ends) for batch in self.batches]
        left = []
        for batch, (standing, seen, first, made) in zip(self.batches, found, strict=True):
            shown = jax.tree.map(np.asarray, seen)
            self._show(batch.places, shown, first)
            batch.given = batch.given._replace(standing=standing)
            left.append(np.flatnonzero(~shown.settled[: batch.places.size]))
            self.made = int(made) if single else goal
        self._regroup(left)

    def _show(self, places: np.ndarray, shown: Shown, first: Any) -> None:
        size = count(self.whole.thetas)
        if self.table is None:
            self.table = Table.room(size, shown)
        self.table.put(places, shown)
        if first is not None:
            if self.first is None:
                self.first = np.zeros(size, first.dtype)
            self.first[places] = np.asarray(first)[: places.size]

    def _regroup(self, left: list[np.ndarray]) -> None:
        """Gather those that are left, if that makes fewer batches or a smaller one."""
        total = sum(rows.size for rows in left)
        if not total:
            self.batches = []
            return
        size = _fitting(total, self._size)
        if (size, -(-total // size)) == (self._size, len(self.batches)):
            return
        standing = jax.tree.map(
            lambda *leaves: np.concatenate(
                [np.asarray(leaf)[rows] for leaf, rows in zip(leaves, left, strict=True)]
            ),
            *(batch.standing for batch in self.batches),
        )
        places = np.concatenate(
            [batch.places[rows] for batch, rows in zip(self.batches, left, strict=True)]
        )
        self._size = size
        self.batches = [
            self._batch(places[some], _rows(standing, np.resize(some, size)))
            for some in self._cut(np.arange(total))
        ]

    def _cut(self, places: np.ndarray) -> list[np.ndarray]:
        return [places[i : i + self._size] for i in range(0, places.size, self._size)]

    def _batch(self, places: np.ndarray, standing: Standing | None) -> Batch:
        whole = self.whole
        if standing is not None:
            # Repetitions are nobody to wait for.
            settled = np.arange(self._size) >= places.size
            standing = eqx.tree_at(lambda at: at.settled, standing, settled)
        if places.size == self._size == count(whole.thetas):
            return Batch(places, whole._replace(standing=standing))
        mine = _rows(whole, np.resize(places, self._size))
        if standing is not None:
            mine = mine._replace(starts=None)
        return Batch(places, mine._replace(standing=standing))


def _rows(tree: Any, rows: np.ndarray) -> Any:
    return jax.tree.map(lambda leaf: np.asarray(leaf)[rows], tree)


def _smaller(size: int) -> int:
    """The next smaller size of a batch that is worth another program; 0 if there is none."""
    found = 0
    power = _FEWER
    while 2 * power <= size:
        found, power = power, power * _FEWER
    return found


def _fitting(number: int, size: int) -> int:
    """The size of batches for so many instances: this one, or a smaller one that holds them."""
    power = _FEWER
    while power < number:
        power *= _FEWER
    return power if 2 * power <= size else size
