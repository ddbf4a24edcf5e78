"""The race: candidates are tuned, trained and compared by the clock, within a share of the budget.

Successive halving: all are timed in a batch, the better ones alone, the best of those that can be
trained are trained. Ties go to the simpler.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Scalar

from surestep.auto.arena import Arena, Entry, Use
from surestep.auto.candidates import (
    Candidate,
    candidates,
    in_one_step,
    in_single_precision,
    per_coordinate,
    scheduled,
    started,
    tuned,
)
from surestep.auto.starts import from_network
from surestep.auto.survey import Survey
from surestep.base.clock import Stopwatch
from surestep.base.progress import Reporter
from surestep.problem import Problem, Theta, working_precision
from surestep.problem.structure import Structure
from surestep.rollout.loop import begin, unrolled
from surestep.rollout.program import Program
from surestep.rules import LBFGS, LearnedFista, LearnedHeavyBall
from surestep.rules.base import Rule, hyper_of, with_hyper
from surestep.rules.wrapper import StartsElsewhere

_FINAL, _ROUNDS = 4, 3  # so many are timed alone too, in so many turns
_UNDISTURBED = 2.0  # seconds of a batch that is timed once
_BEHIND = 2.5  # unless they take so many times the best one's time in a batch
_EARLY, _LATE = 0.5, 0.35  # shares of the time after which no others are tried
_SHORT, _SLOW, _LONG = 0.04, 0.15, 0.3  # shares of the time: a short while, at most, a long one
_SEARCHED = 1000  # iterations that are made to find out how many hundred are needed
_PATIENT = 5.0  # what classical candidates may be behind by, in units of what others may
_ALONE = 0.15  # the share of the time after which only the two best are timed alone
_NETWORK = 0.15  # the share of the time that a network's start may take
_NEAR = 2.0  # times the best one's time: what training may make up for
_TIE = 1.05  # what a richer candidate must be faster by
_BATCH, _DEEPEST = 16, 40  # instances of a training step, and iterations that are unrolled
_STEPS = 20  # training steps of one compiled call
_RATE, _SMALL_RATE = 2e-2, 3e-4  # for a few numbers, and for matrices


@dataclasses.dataclass(frozen=True)
class Racer:
    """A candidate with what is known of it."""

    candidate: Candidate
    program: Program
    entry: Entry
    compiling: float = 0.0
    """Seconds that its program took to compile."""


@dataclasses.dataclass(frozen=True)
class Race:
    """How it ended."""

    winner: Racer
    untrained: Racer
    """The best that was not trained."""
    classical: tuple[Racer, ...]
    """Those that know step sizes alone, the best first."""
    entries: tuple[Entry, ...]
    """All that took part: the winner, then the others, the fastest first."""
    compiling: float
    """Seconds that one of them took to compile, in the mean."""


def hold_race(
    arena: Arena,
    found: Survey,
    structure: Structure,
    use: Use,
    seconds: float,
    report: Reporter,
) -> Race:
    """Time all candidates, train the best of those that can be, and time them again."""
    problem, watch = arena.problem, Stopwatch()
    entrants = candidates(problem, found, structure)
    racers: list[Racer] = []
    simplest = [entrant.name for entrant in entrants]
    with report.stage("race", len(entrants) + 4, "candidates") as bar:
        # Everybody has a short while; where nobody is there in time, all have a longer one.
        # A short one is long enough to find a few hundred iterations, where these take long.
        search = _SEARCHED * found.pace * arena.size
        short, slow = max(_SHORT * seconds, min(_SLOW * seconds, search)), search > _SHORT * seconds
        for allowed in (short, _LONG * seconds):
            tried = False
            for entrant in sorted(entrants, key=lambda entrant: _place(entrant, slow)):
                enough = _LATE if entrant.turn > 1 else _EARLY
                if watch.seconds > enough * seconds and tried:
                    continue
                tried = True
                rival = min((racer.entry.batch for racer in racers), default=math.inf)
                # What people use is shown, however far behind, and others that they could use too.
                shown = entrant.classical and _PATIENT * rival * arena.size < 0.1 * allowed
                rival *= _PATIENT if shown else 1.0
                rival = math.inf if isinstance(entrant.rule, LBFGS) else rival
                # Who has a second try takes part once.
                racers = [racer for racer in racers if racer.candidate.name != entrant.name]
                racers.append(_tried(arena, entrant, allowed, rival))
                bar.advance(1, _told(racers[-1].entry))
            if any(math.isfinite(racer.entry.iterations) for racer in racers):
                break
        racers.sort(key=lambda racer: racer.entry.batch)
        # A start is worth a try where it was found to predict anything at all.
        best = [racer for racer in racers if math.isfinite(racer.entry.iterations)][:2]
        for racer in best:
            for change in _CHANGES:
                candidate = change(racer, problem, found)
                if candidate is not None and watch.seconds < 0.7 * seconds:
                    simplest.append(candidate.name)
                    changed = _tried(arena, candidate, 0.04 * seconds, racer.entry.batch)
                    racers.append(changed)
                    bar.advance(1, _told(changed.entry))
                    racer = _kept(arena, racer, changed)  # noqa: PLW2901
        if best and watch.seconds < 0.55 * seconds:
            learned = _from_network(arena, racers, found, _NETWORK * seconds)
            if learned is not None:
                simplest.append(learned.candidate.name)
                racers.append(learned)
                bar.advance(1, _told(learned.entry))
        racers = [*_alone(arena, racers, use, _ALONE * seconds)]
        pupils = _pupils(racers)
        for place, racer in enumerate(pupils):
            left = seconds - watch.seconds
            if left > 0.15 * seconds:
                racers.append(_trained(arena, racer, structure, left / (len(pupils) - place)))
                bar.advance(1, _told(racers[-1].entry))
    return _ended(racers, use, simplest)


def _place(entrant: Candidate, slow: bool) -> int:
    """Whose turn it is when. Where iterations take long, L-BFGS is first.

    The survey has solved instances with it: it gets there, and others can be given up by its time.
    """
    return -1 if slow and isinstance(entrant.rule, LBFGS) else entrant.turn


def _pupils(racers: list[Racer]) -> list[Racer]:
    """Who is trained: the two best of different kinds, if the second is not far behind.

    Schedules come last: they have gained less than metrics and penalties.
    """
    able = [
        racer
        for racer in racers
        if racer.candidate.trainable and math.isfinite(racer.entry.iterations)
    ]
    best: dict[type[Rule], Racer] = {}
    for racer in able:
        if racer.entry.batch <= _NEAR * able[0].entry.batch:
            best.setdefault(type(_inner(racer)), racer)
    schedules = (LearnedHeavyBall, LearnedFista)
    return sorted(best.values(), key=lambda racer: isinstance(_inner(racer), schedules))[:2]


def _inner(racer: Racer) -> Rule:
    rule = racer.candidate.rule
    return rule.rule if isinstance(rule, StartsElsewhere) else rule


def _from_network(arena: Arena, racers: list[Racer], found: Survey, seconds: float) -> Racer | None:
    """The best so far of those that begin at the problem's start, from a network's start."""
    able = [racer for racer in racers if _inner(racer) is racer.candidate.rule]
    best = min(able, key=lambda racer: racer.entry.batch)
    candidate = from_network(
        arena.problem,
        found,
        arena.seed,
        best.candidate,
        best.program,
        int(best.entry.iterations),
        seconds,
    )
    return None if candidate is None else _tried(arena, candidate, seconds, best.entry.batch)


Change = Callable[[Racer, Problem, Survey], Candidate | None]

_CHANGES: tuple[Change, ...] = (
    lambda racer, *_: scheduled(racer.candidate, racer.entry.iterations),
    lambda racer, problem, found: in_single_precision(racer.candidate, problem, found.dimension),
    lambda racer, *_: in_one_step(racer.candidate),
    lambda racer, problem, found: started(racer.candidate, problem, found),
)
"""What else a good candidate could be, in this order: each change is made to the better one so far.
"""


def _kept(arena: Arena, racer: Racer, changed: Racer) -> Racer:
    """Which of the two is changed further: the faster one, or the only one that can be trained."""
    if changed.candidate.trainable and not racer.candidate.trainable:
        return changed
    if not math.isfinite(changed.entry.batch):
        return racer
    # The machine may have been busier when one of them was timed.
    best = {id(one): one.entry.batch for one in (racer, changed)}
    for _ in range(_ROUNDS if best[id(racer)] * arena.size < _UNDISTURBED else 0):
        for one in (racer, changed):
            again = arena.batch_seconds(one.program, int(one.entry.iterations))
            best[id(one)] = min(best[id(one)], again)
    # Alone, where each operation counts, a change gains more: a tie in a batch goes to it.
    return changed if best[id(changed)] <= _TIE * best[id(racer)] else racer


def _told(entry: Entry) -> str:
    if not math.isfinite(entry.iterations):
        return f"{entry.name}: not in time"
    return f"{entry.name}: {entry.iterations:.0f} iterations, {1e3 * entry.batch:.3g} ms"


def _tried(arena: Arena, candidate: Candidate, seconds: float, rival: float) -> Racer:
    """A candidate, its numbers tuned, timed in a batch."""
    watch = Stopwatch()
    program = arena.program(candidate.rule)
    arena.solved(program, 1)  # compiles, which does not count
    compiling, watch = watch.seconds, Stopwatch()
    iterations = arena.iterations(program, seconds, rival)
    for hyper in candidate.variants:
        if watch.seconds > seconds:
            break
        other = tuned(candidate, hyper, arena.problem)
        changed = arena.program(other.rule)
        if math.isfinite(iterations):
            found = arena.fewer(changed, iterations)
        else:  # Other numbers may lead there where these do not.
            found = arena.iterations(changed, seconds - watch.seconds, rival)
        if found < iterations:
            candidate, program, iterations = other, changed, found
    batch = math.inf
    if math.isfinite(iterations):
        batch = arena.batch_seconds(program, int(iterations))
    entry = Entry(candidate.name, False, iterations, math.inf, batch)
    return Racer(candidate, program, entry, compiling)


def _alone(arena: Arena, racers: list[Racer], use: Use, seconds: float) -> list[Racer]:
    """The better ones are timed once more, in turns, in a batch and alone.

    After so many seconds nobody has another turn, but the two best have one in any case.
    """
    watch = Stopwatch()
    racers = sorted(racers, key=lambda racer: racer.entry.batch)
    bar = _BEHIND * racers[0].entry.batch
    better = [racer for racer in racers[:_FINAL] if racer.entry.batch <= bar]
    others = racers[len(better) :]
    times = {racer.entry.name: [math.inf, math.inf] for racer in better}
    # What takes long is not disturbed by much, and who is alone has nobody to be compared with.
    long = bar * arena.size > _UNDISTURBED or len(better) == 1
    for turn in range(1 if long else _ROUNDS):
        for place, racer in enumerate(better):
            late = watch.seconds > seconds and (turn > 0 or place > 1)
            if math.isfinite(racer.entry.iterations) and not late:
                number, best = int(racer.entry.iterations), times[racer.entry.name]
                best[0] = min(best[0], arena.batch_seconds(racer.program, number))
                if use != "batch":
                    best[1] = min(best[1], arena.alone_seconds(racer.program, number))
    found = [
        _with_times(racer, *times.get(racer.entry.name, (racer.entry.batch, math.inf)))
        for racer in (*better, *others)
    ]
    return sorted(found, key=lambda racer: racer.entry.score(use))


def _with_times(racer: Racer, batch: float, alone: float) -> Racer:
    entry = dataclasses.replace(racer.entry, batch=batch, alone=alone)
    return dataclasses.replace(racer, entry=entry)


def _ended(racers: list[Racer], use: Use, simplest: list[str]) -> Race:
    """The fastest wins, or the simplest of those that are about as fast."""
    order = {name: place for place, name in enumerate(simplest)}
    ranked = sorted(racers, key=lambda racer: (racer.entry.score(use), order[racer.candidate.name]))
    untrained = next(racer for racer in ranked if not racer.entry.trained)
    enough = _TIE * ranked[0].entry.score(use)
    winner = min(
        (racer for racer in ranked if racer.entry.score(use) <= enough),
        key=lambda racer: (racer.entry.trained, order[racer.candidate.name]),
    )
    classical = tuple(
        racer for racer in ranked if racer.candidate.classical and not racer.entry.trained
    )
    others = [racer.entry for racer in ranked if racer is not winner]
    compiling = float(np.mean([racer.compiling for racer in racers]))
    return Race(winner, untrained, classical, (winner.entry, *others), compiling)


def _trained(arena: Arena, racer: Racer, structure: Structure, seconds: float) -> Racer:
    """The candidate after training, or as it was where training did not help."""
    watch, allowed = Stopwatch(), 0.8 * seconds
    candidate = per_coordinate(racer.candidate, structure)
    problem, rule = arena.problem, candidate.rule
    depth = int(np.clip(0.8 * racer.entry.iterations, 2, _DEEPEST))
    best, fewest = racer, racer.entry.iterations
    with working_precision(problem):
        hyper = hyper_of(rule)
        rates = jnp.asarray(_rates(rule))
        optimizer = optax.scale_by_adam()
        memory = optimizer.init(hyper)
        lesson = (jax.tree.map(jnp.asarray, arena.makers), jnp.asarray(arena.minima))
        # Where there is nothing to gain, there is nothing to learn either.
        typical = np.maximum(arena.gaps, 1e-3 * np.median(arena.gaps))
        floors = jnp.asarray(1e-8 * typical)
        calls = 0
        while watch.seconds < allowed:
            key = jax.random.fold_in(jax.random.key(0), calls)
            hyper, memory = _learn(rule, problem, lesson, floors, hyper, memory, rates, key, depth)
            calls += 1
            if calls in (1, 2, 4) or calls % 8 == 0 or watch.seconds > allowed:
                changed = dataclasses.replace(candidate, rule=with_hyper(rule, hyper))
                program = arena.program(changed.rule)
                found = arena.fewer(program, fewest)
                if found < fewest:
                    best = dataclasses.replace(racer, candidate=changed, program=program)
                    fewest = found
    # The same program with other numbers: its time is that of its iterations.
    share = fewest / racer.entry.iterations
    entry = dataclasses.replace(
        racer.entry,
        trained=True,
        iterations=fewest,
        batch=share * racer.entry.batch,
        alone=share * racer.entry.alone,
    )
    return dataclasses.replace(best, entry=entry)


def _rates(rule: Rule) -> Float[np.ndarray, " d"]:
    """A learning rate for every number: small ones for those of matrices."""
    rates = jax.tree.map(
        lambda leaf: jnp.full_like(leaf, _RATE if leaf.ndim < 2 and leaf.size <= 2000 else 0.0),
        eqx.filter(rule, eqx.is_inexact_array),
    )
    found = hyper_of(eqx.combine(rates, rule))
    return np.where(np.asarray(found) > 0, _RATE, _SMALL_RATE)


@eqx.filter_jit
def _learn(
    rule: Rule,
    problem: Problem,
    lesson: tuple[Theta, Array],
    floors: Float[Array, " maker"],
    hyper: Float[Array, " d"],
    memory: optax.OptState,
    rates: Float[Array, " d"],
    key: Array,
    depth: int,
) -> tuple[Float[Array, " d"], optax.OptState]:
    """Some training steps, each on a few instances, through all iterations and their gradients."""
    thetas, minima = lesson
    optimizer = optax.scale_by_adam()

    def objective(hyper: Array, chosen: Array) -> Scalar:
        changed = with_hyper(rule, hyper).bare().prepare()

        def one(index: Array) -> Scalar:
            theta = jax.tree.map(lambda leaf: leaf[index], thetas)
            first = begin(changed, problem, theta, through=True)
            losses = unrolled(changed, problem, theta, first, depth, through=True)[1]
            above = jnp.maximum(losses[depth // 2 :] - minima[index], 0.0)
            return jnp.mean(jnp.log(above + floors[index]))

        each = jax.vmap(one)(chosen)
        # Nine of ten must be there, so those that are behind count more than once.
        slow = jax.lax.top_k(each, max(1, each.size // 4))[0]
        return (jnp.mean(each) + jnp.mean(slow)) / 2

    def step(carry: Any, key: Array) -> tuple[Any, None]:
        hyper, memory = carry
        size = min(_BATCH, len(minima))
        chosen = jax.random.choice(key, len(minima), (size,), replace=False)
        gradient = jax.grad(objective)(hyper, chosen)
        usable = jnp.all(jnp.isfinite(gradient))
        change, remembered = optimizer.update(jnp.where(usable, gradient, 0.0), memory)
        moved = hyper - jnp.where(usable, rates, 0.0) * jnp.asarray(change)
        return (moved, remembered), None

    (hyper, memory), _ = jax.lax.scan(step, (hyper, memory), jax.random.split(key, _STEPS))
    return hyper, memory
