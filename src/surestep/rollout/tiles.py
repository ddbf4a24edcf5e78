"""Rollouts of many rules on many instances, in tiles that any device can compute.

A tile is a group of rules on a run of instances. Every tile of a work is computed by the same
compiled program of one device, so who computes it changes no bit of what is observed. Only a few
tiles are in memory at a time, however many instances there are.
"""

import collections
import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float

from surestep.base.errors import ProblemError
from surestep.problem import DataSet, Problem, Theta, working_precision
from surestep.rollout.observe import Observed, Watch, observe_several
from surestep.rules.base import Rule

LENGTH = 1024
"""About how many instances a tile has; smaller sets are one tile."""

_AHEAD = 1
"""How many rounds of tiles are under way while the last one's results are read."""


@dataclasses.dataclass(frozen=True)
class Cuts:
    """How a set of instances is cut into runs of one length; the last one may be shorter."""

    size: int
    length: int

    @classmethod
    def of(cls, size: int, block: int) -> "Cuts":
        """Runs of about `LENGTH`, or of a block where that is more."""
        return cls.even(size, max(LENGTH, block))

    @classmethod
    def even(cls, size: int, longest: int) -> "Cuts":
        """Runs of at most this length, as equal as can be."""
        number = -(-size // longest)
        return cls(size, -(-size // number))

    @property
    def number(self) -> int:
        """How many runs there are."""
        return -(-self.size // self.length)

    def bounds(self, run: int) -> tuple[int, int]:
        """Where a run begins, and where the next one would."""
        return run * self.length, min((run + 1) * self.length, self.size)


class Place(NamedTuple):
    """What a tile is about."""

    samples: slice
    instances: slice

    @property
    def shape(self) -> tuple[int, int]:
        """How many samples and instances it has."""
        return _length(self.samples), _length(self.instances)


def _length(part: slice) -> int:
    return part.stop - part.start


@dataclasses.dataclass(frozen=True)
class Work:
    """Rules to be rolled out on a data set, cut into tiles that are known by their numbers."""

    problem: Problem
    rule: Rule
    hypers: Float[np.ndarray, "sample d"] | None
    """The samples' hypers; without them the rule itself is the only sample."""
    data: DataSet
    watch: Watch
    """What is observed."""
    block: int
    """How many instances are a batch."""
    sample_block: int = 1
    """How many samples are rolled out by one program."""
    name: str = ""
    """Whose rule it is: a baseline's name, or nothing for the learned rule."""
    targets: Float[np.ndarray, "instance target"] | None = None
    """The losses of each instance for which it is seen when they are reached."""
    length: int = 0
    """How many instances a tile has; 0 for as many as suit. Sets of other sizes that are given the
    same length are observed by the same compiled program."""

    @property
    def samples(self) -> int:
        """How many rules there are."""
        return 1 if self.hypers is None else len(self.hypers)

    @functools.cached_property
    def cuts(self) -> Cuts:
        """How the data are cut."""
        if self.length:
            return Cuts(self.data.size, self.length)
        return Cuts.of(self.data.size, self.block)

    @property
    def groups(self) -> Cuts:
        """How the samples are cut: into groups as equal as can be."""
        return Cuts.even(self.samples, self.sample_block)

    @property
    def number(self) -> int:
        """How many tiles there are."""
        return self.groups.number * self.cuts.number

    def split(self, tile: int) -> tuple[int, int]:
        """The run of instances and the group of samples of a tile.

        Tiles of the same instances follow each other.
        """
        return divmod(tile, self.groups.number)

    def place(self, tile: int) -> Place:
        """What a tile is about."""
        run, group = self.split(tile)
        return Place(slice(*self.groups.bounds(group)), slice(*self.cuts.bounds(run)))

    def group(self, number: int) -> Float[np.ndarray, "group d"] | None:
        """The hypers of a group, the last one repeated until the group has its full length."""
        if self.hypers is None:
            return None
        first, last = self.groups.bounds(number)
        numbers = np.arange(first, first + self.groups.length)
        return self.hypers[np.minimum(numbers, last - 1)]

    def instances(self, run: int) -> tuple[Theta, Float[Array, "instance target"]]:
        """The instances of a run with their targets, the last one repeated up to the length."""
        first, last = self.cuts.bounds(run)
        all_targets = np.zeros((self.data.size, 0)) if self.targets is None else self.targets
        targets = jnp.asarray(all_targets[first:last], jnp.result_type(float))
        found = self.data.part(first, last), targets
        missing = self.cuts.length - (last - first)
        if not missing:
            return found
        return jax.tree.map(
            lambda leaf: jnp.concatenate([leaf, jnp.repeat(leaf[-1:], missing, axis=0)]), found
        )

    def checked(self, tile: int, seen: Observed) -> Observed:
        """What was observed on a tile, unless the problem has broken its contract there."""
        place = self.place(tile)
        samples, instances = place.shape
        found = jax.tree.map(lambda table: np.asarray(table, np.float64), seen)
        found = found.at((slice(samples), slice(instances)))
        require_sound(self.problem, self.data, found.losses.min(axis=0), place.instances.start)
        columns = np.moveaxis(found.statistics, -1, 0)
        for (name, _), column in zip(self.watch.statistics, columns, strict=True):
            outside = ~((column >= 0) & (column <= 1))
            if outside.any():
                raise ProblemError(
                    f"the statistic {name!r} must lie between 0 and 1 on every instance, not at "
                    f"{column[outside][0]}"
                )
        return found


def require_sound(
    problem: Problem, data: DataSet, losses: Float[np.ndarray, "instance iteration"], first: int = 0
) -> None:
    """Refuse losses below 0 where there should be none; the first is of the instance `first`."""
    if problem.nonnegative and np.any(losses < 0):
        index = int(np.argmax(np.any(losses < 0, axis=1)))
        raise ProblemError(
            f"{type(problem).__name__}.loss fell to {losses[index].min():g} on instance "
            f"{first + index} of the {data.role}, and losses must be at least 0: "
            "declare a bound that holds, or that none is known (lower=None, or nonnegative = False "
            "in a class)"
        )


@runtime_checkable
class Crew(Protocol):
    """Whoever computes tiles."""

    def observe(self, work: Work, tiles: Sequence[int]) -> Iterator[tuple[int, Observed]]:
        """Compute these tiles, and say which one is done, in any order."""
        ...


@dataclasses.dataclass(frozen=True)
class Alone:
    """This process, with some of its devices; by default with all of them."""

    devices: tuple[Any, ...] | None = None

    def observe(self, work: Work, tiles: Sequence[int]) -> Iterator[tuple[int, Observed]]:
        """Compute tiles one after the other, as many at a time as there are devices."""
        devices = self.devices or tuple(jax.local_devices())
        program = _OneDevice(work) if len(devices) == 1 else _Sharded(work, devices)
        waiting: collections.deque[tuple[Sequence[int], Any]] = collections.deque()
        for first in range(0, len(tiles), len(devices)):
            together = tiles[first : first + len(devices)]
            # The precision's context must not be open while someone else has the turn.
            with working_precision(work.problem):
                waiting.append((together, program.start(together)))
            if len(waiting) > _AHEAD:
                yield from _read(work, *waiting.popleft())
        while waiting:
            yield from _read(work, *waiting.popleft())


def observe_all(work: Work, crew: Crew | None = None, sample: int = 0) -> Observed:
    """What is observed of one of a work's rules on the whole data set, by instance.

    It is computed as all of them are, beside the others of its group, and so to the same bits.
    """
    whole = Observed.room((work.data.size,), work.watch)
    wanted = sample // work.groups.length
    tiles = [tile for tile in range(work.number) if work.split(tile)[1] == wanted]
    for tile, seen in (crew or Alone()).observe(work, tiles):
        place = work.place(tile)
        whole.put(place.instances, seen.at(sample - place.samples.start))
    return whole


def _read(work: Work, tiles: Sequence[int], results: Any) -> Iterator[tuple[int, Observed]]:
    for tile, seen in zip(tiles, results(), strict=True):
        yield tile, work.checked(tile, seen)


class _OneDevice:
    """Tiles one by one; instances stay on the device while one group after the other sees them."""

    def __init__(self, work: Work) -> None:
        self.work = work
        self.instances = functools.lru_cache(maxsize=1)(work.instances)

    def start(self, tiles: Sequence[int]) -> Any:
        work, (tile,) = self.work, tiles
        run, group = work.split(tile)
        hypers = work.group(group)
        seen = observe_several(
            work.rule,
            None if hypers is None else jnp.asarray(hypers),
            work.problem,
            *self.instances(run),
            work.watch,
            work.block,
        )
        return lambda: [seen]


class _Sharded:
    """As many tiles at a time as a mesh has devices, each computed by one of them alone."""

    def __init__(self, work: Work, devices: Sequence[Any]) -> None:
        self.work = work
        self.mesh = Mesh(np.array(devices), ("tile",))
        self.instances = functools.lru_cache(maxsize=1)(self._on_host)

    def _on_host(self, run: int) -> Any:
        return jax.tree.map(np.asarray, self.work.instances(run))

    def start(self, tiles: Sequence[int]) -> Any:
        work, number = self.work, self.mesh.size
        # Devices that have nothing to do repeat the last tile.
        places = [work.split(tile) for tile in tiles]
        places += [places[-1]] * (number - len(places))
        stacked = _stacked([(work.group(group), self.instances(run)) for run, group in places])
        arrays, rest = eqx.partition(stacked, _is_array)
        sharding = NamedSharding(self.mesh, PartitionSpec("tile"))
        seen = _observe_sharded(
            self.mesh,
            jax.device_put(arrays, sharding),
            rest,
            work.rule,
            work.problem,
            work.watch,
            work.block,
        )

        def results() -> list[Observed]:
            found = jax.tree.map(np.asarray, seen)
            return [jax.tree.map(lambda leaf, i=i: leaf[i], found) for i in range(len(tiles))]

        return results


def _stacked(trees: Sequence[Any]) -> Any:
    """Several pytrees as one, their arrays stacked on the host."""

    def stack(*leaves: Any) -> Any:
        return np.stack(leaves) if _is_array(leaves[0]) else leaves[0]

    return jax.tree.map(stack, *trees)


def _is_array(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array | np.ndarray)


@eqx.filter_jit
def _observe_sharded(
    mesh: Mesh,
    arrays: Any,
    rest: Any,
    rule: Rule,
    problem: Problem,
    watch: Watch,
    block: int,
) -> Observed:
    """The program of one device on every device of a mesh, with hypers and instances of its own."""
    shared, fixed = eqx.partition((rule, problem), eqx.is_array)

    def one(arrays: Any, shared: Any) -> Observed:
        hypers, (thetas, targets) = eqx.combine(jax.tree.map(lambda leaf: leaf[0], arrays), rest)
        rule, problem = eqx.combine(shared, fixed)
        seen = observe_several(rule, hypers, problem, thetas, targets, watch, block)
        return jax.tree.map(lambda leaf: leaf[None], seen)

    spread = PartitionSpec("tile")
    return jax.shard_map(
        one, mesh=mesh, in_specs=(spread, PartitionSpec()), out_specs=spread, check_vma=False
    )(arrays, shared)
