"""A population instead of one throw: many rules are trained as a batch, the weak are dropped.

Training a rule is a lottery: of equal seeds, some end four orders of magnitude better than others.
So several are imitated and trained in one compiled program, and successive halving decides on the
prior set alone who goes on: after every round the better half stays, and the next round is twice
as long. Training can also spoil a rule: who has become much worse than its best goes back there,
and on more slowly. The winner goes on to be located.
"""

import dataclasses
import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from surestep.base.errors import ConfigurationError
from surestep.base.keys import named_key
from surestep.base.progress import Reporter, Silence
from surestep.problem import PriorSet, Problem, instance, working_precision
from surestep.rules.base import Rule, hyper_of, with_hyper
from surestep.storage.checkpoint import Checkpoint, NoCheckpoint
from surestep.storage.run_folder import axes
from surestep.train.imitate import ImitateSettings, imitate
from surestep.train.locate import LocateSettings, require_lengths
from surestep.train.steps import SPOILED, Pupil, enrol, merit, train
from surestep.train.task import Task
from surestep.train.trajectory import Material


@dataclasses.dataclass(frozen=True)
class PopulationSettings:
    """How many rules compete, and for how long."""

    members: int = 1
    """Rules that are trained as a batch; 1 for no competition."""
    steps: int = 2_000
    """Training steps of every member in the first round; each round is twice as long."""
    rates: tuple[float, ...] = (1.0,)
    """Factors of the learning rate, dealt out to the members in turn."""
    length: int = 1
    """Iterations in each piece of a trajectory that is differentiated."""
    instances: int = 64
    """Instances of the prior set that members are compared on."""

    def validate(self, horizon: int) -> None:
        """Refuse sizes that cannot work."""
        for name in ("members", "steps", "instances"):
            if getattr(self, name) < 1:
                raise ConfigurationError(f"population.{name} must be at least 1")
        if not self.rates or not min(self.rates) > 0:
            raise ConfigurationError(f"population.rates must be positive, not {self.rates}")
        require_lengths("population.length", (self.length,), horizon)

    @property
    def rounds(self) -> int:
        """Rounds until one member is left."""
        return math.ceil(math.log2(self.members))

    def rate(self, member: int) -> float:
        """A member's factor of the learning rate."""
        return self.rates[member % len(self.rates)]


@dataclasses.dataclass(frozen=True)
class Chosen:
    """The winner, and how everyone did in every round."""

    hyper: np.ndarray = dataclasses.field(metadata=axes("weight"))
    merits: np.ndarray = dataclasses.field(metadata=axes("round", "member"))
    """Mean power of ten of the loss on the prior set before the first round and after each; not
    a number where a member was out."""
    member: int
    rate: float
    """The winner's factor of the learning rate, at the end."""


class _Competition(eqx.Module):
    """All that the competition needs to go on."""

    pupils: Pupil
    best: Float[Array, "member d"]
    best_merits: Float[Array, " member"]
    rates: Float[Array, " member"]
    merits: Float[Array, "round member"]
    done: Array


def choose(
    settings: PopulationSettings,
    locating: LocateSettings,
    imitating: ImitateSettings,
    task: Task,
    rules: list[Rule],
    teacher: Rule | None,
    data: PriorSet,
    seed: int,
    checkpoint: Checkpoint | None = None,
    report: Reporter | None = None,
) -> Chosen:
    """Train the rules as a batch, drop the weaker half again and again, return the winner.

    All rules have the same structure. Those with a teacher imitate it first.
    """
    checkpoint, report = checkpoint or NoCheckpoint(), report or Silence()
    template = rules[0]
    with working_precision(task.problem):
        material = task.material(data)
        few = _first(data, settings.instances)
        hypers = _taught(imitating, task, rules, teacher, data, seed)
        competition = _begin(hypers, template, task, material, settings, few, seed)
        competition = checkpoint.load(competition) or competition
        first = int(competition.done)
        with report.stage("population", settings.rounds, "rounds", first) as bar:
            for number in range(first, settings.rounds):
                alive = _alive(competition, number)
                steps = settings.steps * 2**number
                key = named_key(seed, "population", number)
                pupils = _train(
                    jax.tree.map(lambda leaf: leaf[alive], competition.pupils),  # noqa: B023
                    template, task.problem, material, jax.random.split(key, len(alive)),
                    locating.learning_rate * competition.rates[alive], steps, settings.length,
                    task.horizon,
                )  # fmt: skip
                competition = _judged(competition, pupils, alive, number, template, task, few)
                competition = _returned(competition, alive, template, task, material, key)
                checkpoint.save(competition)
                bar.advance(1, f"best 1e{np.nanmin(competition.merits[number + 1]):.2f}")
    return _winner(competition)


def _first(data: PriorSet, number: int) -> PriorSet:
    number = min(number, data.size)
    minima = None if data.minima is None else data.minima[:number]
    return PriorSet(instance(data.thetas, jnp.arange(number)), minima)


def _taught(
    settings: ImitateSettings,
    task: Task,
    rules: list[Rule],
    teacher: Rule | None,
    data: PriorSet,
    seed: int,
) -> Float[Array, "member d"]:
    """Every member's hyper, after imitation where there is a teacher."""
    if teacher is None:
        return jnp.stack([hyper_of(rule) for rule in rules])
    # One compiled program serves them all, one after the other: imitation is short.
    hypers = [
        imitate(settings, task, rule, teacher, data, seed + number).hyper
        for number, rule in enumerate(rules)
    ]
    return jnp.asarray(np.stack(hypers), hyper_of(rules[0]).dtype)


def _begin(
    hypers: Float[Array, "member d"],
    rule: Rule,
    task: Task,
    material: Material,
    settings: PopulationSettings,
    few: PriorSet,
    seed: int,
) -> _Competition:
    members = len(hypers)
    keys = jax.random.split(named_key(seed, "population", "first"), members)
    merits = jnp.asarray([merit(task, with_hyper(rule, hyper), few) for hyper in hypers])
    history = jnp.full((settings.rounds + 1, members), jnp.nan)
    return _Competition(
        pupils=_enrol(rule, task.problem, material, hypers, keys),
        best=hypers,
        best_merits=merits,
        rates=jnp.asarray([settings.rate(i) for i in range(members)]),
        merits=history.at[0].set(merits),
        done=jnp.zeros((), jnp.int32),
    )


@eqx.filter_jit
def _enrol(rule: Rule, problem: Problem, material: Material, hypers: Array, keys: Array) -> Pupil:
    return jax.vmap(lambda hyper, key: enrol(rule, problem, material, hyper, key))(hypers, keys)


@eqx.filter_jit
def _train(
    pupils: Pupil,
    rule: Rule,
    problem: Problem,
    material: Material,
    keys: Array,
    rates: Float[Array, " member"],
    steps: int,
    length: int,
    horizon: int,
) -> Pupil:
    """One round: every member by itself, all in one program."""

    def one(pupil: Pupil, key: Array, rate: Array) -> Pupil:
        rates = jnp.full(steps, rate)
        return train(pupil, rule, problem, material, key, rates, length, horizon, "random")[0]

    return jax.vmap(one)(pupils, keys, rates)


def _alive(competition: _Competition, number: int) -> np.ndarray:
    """Who takes part in a round: all at first, then the better half of those before."""
    merits = np.asarray(competition.merits[number])
    took_part = np.flatnonzero(~np.isnan(merits))
    if number == 0:
        return took_part
    ranked = took_part[np.argsort(np.asarray(competition.best_merits)[took_part], kind="stable")]
    return np.sort(ranked[: math.ceil(len(ranked) / 2)])


def _judged(
    competition: _Competition,
    pupils: Pupil,
    alive: np.ndarray,
    number: int,
    rule: Rule,
    task: Task,
    few: PriorSet,
) -> _Competition:
    """Everyone's merit after a round; each member's best hyper so far is remembered."""
    found = jnp.asarray([merit(task, with_hyper(rule, hyper), few) for hyper in pupils.hyper])
    better = found < competition.best_merits[alive]
    best = jnp.where(better[:, None], pupils.hyper, competition.best[alive])
    return dataclasses.replace(
        competition,
        pupils=_put(competition.pupils, alive, pupils),
        best=competition.best.at[alive].set(best),
        best_merits=competition.best_merits.at[alive].min(found),
        merits=competition.merits.at[number + 1, alive].set(found),
        done=jnp.asarray(number + 1, jnp.int32),
    )


def _returned(
    competition: _Competition,
    alive: np.ndarray,
    rule: Rule,
    task: Task,
    material: Material,
    key: Array,
) -> _Competition:
    """Whom training has spoiled is put back to its best, with half its learning rate."""
    now = np.asarray(competition.merits)[int(competition.done)]
    spoiled = alive[now[alive] > np.asarray(competition.best_merits)[alive] + SPOILED]
    if not len(spoiled):
        return competition
    keys = jax.random.split(jax.random.fold_in(key, 1), len(spoiled))
    fresh = _enrol(rule, task.problem, material, competition.best[spoiled], keys)
    return dataclasses.replace(
        competition,
        pupils=_put(competition.pupils, spoiled, fresh),
        rates=competition.rates.at[spoiled].multiply(0.5),
    )


def _put(everyone: Pupil, members: np.ndarray, changed: Pupil) -> Pupil:
    return jax.tree.map(lambda whole, part: whole.at[members].set(part), everyone, changed)


def _winner(competition: _Competition) -> Chosen:
    member = int(np.argmin(np.asarray(competition.best_merits)))
    return Chosen(
        hyper=np.asarray(competition.best[member]),
        merits=np.asarray(competition.merits, np.float64),
        member=member,
        rate=float(competition.rates[member]),
    )
