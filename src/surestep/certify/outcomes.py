"""Outcomes of anyone's solver: what it did on instances that we have never seen.

Arrays that somebody has written down are looked at here before they count as evidence: what is
wrong with them is said in the words of whoever wrote them.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, Self

import numpy as np
from jaxtyping import Bool, Float, Int

from surestep.base.errors import ConfigurationError, unknown
from surestep.certify.evidence import Evidence, reach_of_paths
from surestep.certify.targets import GRADIENTS, Target

MINIMUM = "the minimum"
PLAIN = (1,)
"""The iterations of hits that were recorded once."""
OPPONENT = "opponent_"
"""How the arrays of opponents' losses begin; their names follow."""

_MAIN = ("losses", "gaps", "hits")
_BESIDE = ("iterations", "minima", "starts", "thresholds", "groups")
_ROUNDING = 1e-9
"""How far a loss may lie below its minimum, beside both of them: solvers round."""
_DRAWN_BY = 0
"""Which instance of a group is counted is decided by this seed, not by outcomes."""


@dataclasses.dataclass(frozen=True)
class Outcomes:
    """Losses of different instances over the iterations, and what is known of these instances."""

    losses: Float[np.ndarray, "instance iteration"]
    iterations: tuple[int, ...]
    """After which iterations losses were recorded; 0 is the start."""
    minima: Float[np.ndarray, " instance"] | None
    thresholds: Float[np.ndarray, " instance"] | None
    """The goal: which loss counts as success after the last iteration."""
    opponents: dict[str, Float[np.ndarray, "instance iteration"]]
    hits: bool
    """Whether all that is known is if a solve was a success: a loss of 0, and 1 where it was not.
    """
    found: tuple[str, ...]
    """What was found about instances that may not be independent, in sentences."""

    @classmethod
    def of(cls, arrays: Mapping[str, Any]) -> Self:
        """Outcomes from arrays by name, looked at; of every group one instance is kept."""
        given = {name: _array(name, value) for name, value in arrays.items()}
        _require_known(given)
        main = next(name for name in _MAIN if name in given)
        losses = _losses(given, main)
        plain = given[main].ndim == 1
        if plain and "iterations" in given:
            raise ConfigurationError("hits[instance] were recorded once, without iterations")
        iterations = PLAIN if plain else _iterations(given, losses.shape[1], main)
        size = len(losses)
        minima = np.zeros(size) if main == "gaps" else _column(given, "minima", size)
        opponents = {
            name.removeprefix(OPPONENT): _opponent(name, array, losses.shape)
            for name, array in given.items()
            if name.startswith(OPPONENT)
        }
        thresholds = _column(given, "thresholds", size)
        if main == "hits":
            thresholds = np.zeros(size)
        starts = _column(given, "starts", size)
        if starts is not None:
            if iterations[0] == 0:
                raise ConfigurationError("starts and losses after iteration 0 are the same: one")
            losses, iterations = np.column_stack([starts, losses]), (0, *iterations)
            opponents = {n: np.column_stack([starts, o]) for n, o in opponents.items()}
        if minima is not None:
            _require_above(main, losses, minima)
            for name, table in opponents.items():
                _require_above(OPPONENT + name, table, minima)
        rows, found = _independent(given.get("groups"), losses, main == "hits")
        return cls(
            losses=losses[rows],
            iterations=iterations,
            minima=None if minima is None else minima[rows],
            thresholds=None if thresholds is None else thresholds[rows],
            opponents={name: table[rows] for name, table in opponents.items()},
            hits=main == "hits",
            found=tuple(found),
        )

    @property
    def size(self) -> int:
        """How many independent instances there are."""
        return len(self.losses)

    @property
    def plain_hits(self) -> bool:
        """Whether there is one success or failure for each instance, whenever it came."""
        return self.hits and self.iterations == PLAIN

    @property
    def started(self) -> bool:
        """Whether the losses at the start are known."""
        return self.iterations[0] == 0

    def at(self, iterations: tuple[int, ...]) -> Self:
        """The same at some of the iterations, all of which must have been recorded."""
        missing = sorted(set(iterations) - set(self.iterations))
        if missing:
            raise ConfigurationError(
                f"the plan asks for losses after {_some(missing)} iterations, and the outcomes "
                f"have them after {_some(self.iterations)}"
            )
        columns = [self.iterations.index(one) for one in iterations]
        opponents = {name: table[:, columns] for name, table in self.opponents.items()}
        return dataclasses.replace(
            self, losses=self.losses[:, columns], iterations=iterations, opponents=opponents
        )

    def evidence(self, targets: tuple[Target, ...], opponents: tuple[str, ...]) -> Evidence:
        """What a certificate rests on.

        Where nobody has counted gradient evaluations, iterations are compared. An opponent that has
        not come to a target by the last iteration is counted as if it had then.
        """
        nothing = np.zeros(self.size)
        references = nothing if self.minima is None else self.minima
        thresholds = nothing if self.thresholds is None else self.thresholds
        known = (references, self.losses[:, 0], thresholds)
        levels = np.stack([target.levels(*known) for target in targets], axis=1)
        theirs = [self.opponents[name] for name in opponents]
        reach = [np.minimum(self._reach(one, levels), self.iterations[-1]) for one in theirs]
        shape = (len(theirs), self.size)
        return Evidence(
            losses=self.losses[None],
            thresholds=thresholds,
            references=references,
            starts=self.losses[:, 0],
            reach=self._reach(self.losses, levels)[None],
            opponent_losses=np.array([one[:, -1] for one in theirs]).reshape(shape),
            opponent_reach=np.array(reach).reshape(*shape, 3 * len(targets)),
            statistics=np.empty((1, self.size, 0)),
            traits=np.empty((self.size, 0)),
        )

    def _reach(
        self, losses: Float[np.ndarray, "instance iteration"], levels: np.ndarray
    ) -> Float[np.ndarray, "instance entry"]:
        """After which recorded iteration targets are reached; gradients are not known."""
        columns = reach_of_paths(losses, levels)
        numbers = np.append(np.array(self.iterations, np.float64), np.inf)
        found = numbers[np.minimum(columns, len(self.iterations)).astype(int)]
        width = levels.shape[1]
        found[:, GRADIENTS * width : (GRADIENTS + 1) * width] = np.inf
        return found


def _array(name: str, value: Any) -> np.ndarray:
    array = np.asarray(value)
    if name == "groups":
        if array.ndim != 1:
            raise ConfigurationError(f"groups name a group for each instance, not {array.shape}")
        return array
    if array.dtype.kind not in "fiub":
        raise ConfigurationError(f"{name} holds {array.dtype}, not numbers")
    array = array.astype(np.float64)
    if np.isnan(array).any():
        where = tuple(int(i) for i in np.argwhere(np.isnan(array))[0])
        raise ConfigurationError(
            f"{name} is not a number (NaN) at {where}: where a solver diverged or failed its loss "
            "is infinite (inf), because leaving it out would be no independent draw"
        )
    return array


def _require_known(given: dict[str, np.ndarray]) -> None:
    strange = [
        name for name in given if name not in (*_MAIN, *_BESIDE) and not name.startswith(OPPONENT)
    ]
    if strange:
        possible = (*_MAIN, *_BESIDE, f"{OPPONENT}NAME")
        raise ConfigurationError(unknown("array of outcomes", strange[0], possible))
    there = [name for name in _MAIN if name in given]
    if len(there) != 1:
        raise ConfigurationError(
            "outcomes are one array of losses[instance, iteration], of gaps[instance, iteration] "
            "(losses above the minimum) or of hits[instance] (or hits[instance, iteration]), not "
            f"{' and '.join(there) or 'none'}"
        )
    beside = {"minima"} if there == ["gaps"] else set()
    beside = (
        set(given) - {"hits", "groups", "iterations"} if there == ["hits"] else beside & set(given)
    )
    if beside:
        raise ConfigurationError(
            f"{there[0]} and {', '.join(sorted(beside))} do not go together: of "
            + ("hits nothing else is known" if there == ["hits"] else "gaps the minima are 0")
        )


def _losses(given: dict[str, np.ndarray], main: str) -> Float[np.ndarray, "instance iteration"]:
    array = given[main]
    if main == "hits":
        if array.ndim not in (1, 2) or not np.isin(array, (0, 1)).all():
            raise ConfigurationError(
                "hits are 1 (a success) or 0, one for each instance (hits[instance]), or one for "
                "each instance and iteration"
            )
        array = 1.0 - (array[:, None] if array.ndim == 1 else array)
    if array.ndim != 2 or 0 in array.shape:
        raise ConfigurationError(
            f"{main} need a row for each instance and a column for each recorded iteration, not "
            f"the shape {array.shape}"
        )
    if np.isneginf(array).any():
        raise ConfigurationError(f"{main} are -inf somewhere, which no loss is")
    return array


def _iterations(given: dict[str, np.ndarray], columns: int, main: str) -> tuple[int, ...]:
    if "iterations" not in given:
        if columns == 1:
            raise ConfigurationError(
                f"{main} of a single column need iterations: after how many they were recorded"
            )
        return tuple(range(columns))
    numbers = given["iterations"]
    if numbers.shape != (columns,):
        raise ConfigurationError(
            f"iterations name {numbers.size} of them, and {main} have {columns} columns"
        )
    whole = np.isfinite(numbers) & (numbers == np.floor(numbers)) & (numbers >= 0)
    if not whole.all() or not np.all(np.diff(numbers) > 0):
        raise ConfigurationError(
            "iterations are whole numbers from 0 on, each larger than the one before: "
            f"{_some(numbers.tolist())}"
        )
    if columns == 1 and numbers[0] == 0:
        raise ConfigurationError(f"{main} after iteration 0 alone say nothing of a solver")
    return tuple(int(number) for number in numbers)


def _column(
    given: dict[str, np.ndarray], name: str, size: int
) -> Float[np.ndarray, " instance"] | None:
    """An array with a number for each instance; a single number is that of all."""
    array = given.get(name)
    if array is None:
        return None
    if array.shape not in ((), (size,)):
        raise ConfigurationError(
            f"{name} have a number for each of the {size} instances, not the shape {array.shape}"
        )
    if not np.isfinite(array).all():
        raise ConfigurationError(f"{name} must be finite numbers")
    return np.broadcast_to(array, (size,)).copy()


def _opponent(name: str, array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    if array.shape != shape:
        raise ConfigurationError(
            f"{name} must have a loss for the same instances and iterations as losses: the shape "
            f"{shape}, not {array.shape}"
        )
    if not name.removeprefix(OPPONENT):
        raise ConfigurationError(f"an opponent needs a name: {OPPONENT}NAME")
    return array


def _require_above(name: str, losses: np.ndarray, minima: np.ndarray) -> None:
    least = losses.min(axis=1)
    sizes = np.where(np.isfinite(losses), np.abs(losses), 0.0).max(axis=1)
    below = least < minima - _ROUNDING * np.maximum(sizes, np.abs(minima))
    if below.any():
        i = int(np.argmax(below))
        raise ConfigurationError(
            f"{name} fall to {least[i]:.6g} on instance {i}, below its minimum {minima[i]:.6g}: "
            + (
                "gaps are losses above the minimum"
                if name == "gaps"
                else "minima must be least losses, or lower bounds of them"
            )
        )


def _independent(
    groups: np.ndarray | None, losses: np.ndarray, hits: bool
) -> tuple[Int[np.ndarray, " kept"], list[str]]:
    """Which rows count, and what is to be said about that."""
    size = len(losses)
    if groups is None:
        rows, found = np.arange(size), ["no groups were named: each instance is a draw of its own"]
    else:
        if groups.shape != (size,):
            raise ConfigurationError(f"groups name a group for each of the {size} instances")
        _, labels = np.unique(groups, return_inverse=True)
        # A row of chance for every instance; the first of each group in that order is its member.
        order = np.random.default_rng(_DRAWN_BY).permutation(size)
        _, first = np.unique(labels[order], return_index=True)
        rows = np.sort(order[first])
        found = [
            f"{size} instances belong to {rows.size} groups, of each of which one instance is "
            "counted, that was drawn without looking at outcomes"
        ]
    copies = rows.size - len(np.unique(losses[rows], axis=0))
    # Single numbers, successes above all, are often equal.
    if copies and losses.shape[1] > 1 and not hits:
        found.append(
            f"{copies} instances have the very losses of another: if they are copies, they are no "
            "independent draws (groups would say so)"
        )
    return rows, found


def _some(numbers: Any) -> str:
    shown = ", ".join(f"{number:g}" for number in list(numbers)[:8])
    return shown + (", ..." if len(numbers) > 8 else "")


def negative(outcomes: Outcomes) -> Bool[np.ndarray, " instance"]:
    """On which instances losses, or an opponent's, are negative."""
    tables = [outcomes.losses, *outcomes.opponents.values()]
    return np.any([table.min(axis=1) < 0 for table in tables], axis=0)
