"""What is handed out: the race's winner inside a check, and the experiment that certifies it."""

import dataclasses
import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from surestep.auto.arena import HELD, Arena, Entry, Use
from surestep.auto.candidates import Candidate
from surestep.auto.outsiders import outsiders
from surestep.auto.programme_survey import survey_programme
from surestep.auto.race import Race, Racer, hold_race
from surestep.auto.survey import Survey, survey, surveyed_instances
from surestep.auto.trusted import solve_all, trusted_solver
from surestep.base.clock import Stopwatch
from surestep.base.progress import Reporter
from surestep.problem import (
    CompositeProblem,
    PriorSet,
    Problem,
    Programme,
    StockedProblem,
    Theta,
    point_size,
    working_precision,
)
from surestep.problem.structure import Structure, find_structure
from surestep.rollout.loop import Ended, unwatched
from surestep.rules import (
    LBFGS,
    Checked,
    FistaWithRestart,
    FrontADMM,
    Frozen,
    GradientDescent,
    ProgrammeADMM,
    ProximalGradient,
    SharedADMM,
)
from surestep.rules.base import Rule, hyper_of
from surestep.storage.records import to_plain
from surestep.train import Accuracies, Experiment

SURVEYED = 256
"""At most so many instances of the prior set are surveyed."""
_TRUSTED = {LBFGS: "L-BFGS", FistaWithRestart: "FISTA with restart"}
_SURE = 0.97  # the share of instances that should pass the check
_OPPONENTS = 2  # classical methods that the evaluation shows
_TRIAL, _USUAL, _FEWEST = 0.1, 1000, 4  # of the time: so many iterations of so many instances
_LAST = 0.05  # of the time: what looking for the moment of the check may take
_UNTIL_SOLVED = 10_000  # iterations that help an instance of a programme, at most
_LONGER = 1.75  # but no more iterations than that many times those for nine of ten


@dataclasses.dataclass(frozen=True)
class Choice:
    """What was chosen for a problem, and how the choice came about."""

    rule: Rule
    """The rule that is certified, with its check."""
    baselines: dict[str, Rule]
    """Classical opponents, the strongest first."""
    words: str
    """The rule in words."""
    entries: tuple[Entry, ...]
    """The race: the winner, then the others, the fastest first."""
    horizon: int
    smoothness: float
    reference: int
    """How many iterations the trusted solver makes at most, for minima of other instances."""
    seconds: float
    """What survey and race took."""
    solve: float = dataclasses.field(default=0.0, compare=False)
    """What a solve takes in a batch, in seconds; 0 in a choice that was read from a file."""
    compiling: float = dataclasses.field(default=0.0, compare=False)
    """What a program takes to compile, in seconds; 0 in a choice that was read from a file."""

    @property
    def trained(self) -> bool:
        """Whether training has won anything."""
        return self.entries[0].trained

    @property
    def noted(self) -> dict[str, Any]:
        """The race in plain values."""
        fields = ("words", "entries", "seconds")
        return {"state": "done"} | {name: to_plain(getattr(self, name)) for name in fields}


def survey_of(
    problem: Problem,
    prior_size: int,
    seed: int,
    seconds: float = math.inf,
    report: Reporter | None = None,
) -> Survey:
    """The survey that a run with this seed is built on, in about so many seconds."""
    most = surveyed_instances(point_size(problem), min(prior_size, SURVEYED))
    watch = Stopwatch()
    data = PriorSet.draw(problem, most, seed)
    jax.block_until_ready(data.thetas)
    # Data are not drawn, and what takes time there is compiled once.
    drawing = 0.0 if isinstance(problem, StockedProblem) else watch.seconds / most
    if isinstance(problem, Programme):
        found = survey_programme(problem, data, seconds=seconds, report=report)
    else:
        found = survey(problem, data, seconds=seconds, report=report)
    return dataclasses.replace(found, drawing=drawing)


def choose(
    problem: Problem,
    found: Survey,
    seed: int,
    accuracy: float,
    use: Use,
    seconds: float,
    report: Reporter,
) -> Choice:
    """Hold the race on the survey's instances, and put the winner inside a check."""
    watch = Stopwatch()
    data = found.data or PriorSet.draw(problem, len(found.minima), seed)
    structure = find_structure(problem, data.thetas)
    most = _comparable(found.pace, seconds)
    # Accuracies of programmes are residuals, whatever the start's is.
    starts = np.ones_like(found.minima) if isinstance(problem, Programme) else found.starts
    arena = Arena.of(problem, data.thetas, starts, found.minima, found.fitted, accuracy, seed, most)
    race = hold_race(arena, found, structure, use, seconds, report)
    rule = _checked(arena, race, found, structure, _LAST * seconds)
    if isinstance(problem, Programme):
        # Help stops when it is there, and is certain to get there.
        rule = dataclasses.replace(rule, tolerance=accuracy, compared=False, rescue=_UNTIL_SOLVED)
    return Choice(
        rule,
        _opponents(problem, race, found),
        _words(race),
        race.entries,
        rule.at,
        found.smoothness,
        trusted_solver(found.composite, found.smoothness)[1],
        round(found.seconds + watch.seconds, 3),
        _solve_seconds(arena, race.winner, rule.at),
        race.compiling,
    )


def _comparable(pace: float, seconds: float) -> int:
    """How many instances candidates are compared on: fewer where iterations take long."""
    if not pace:
        return HELD
    return int(np.clip(_TRIAL * seconds / (_USUAL * pace), _FEWEST, HELD))


def _solve_seconds(arena: Arena, racer: Racer, iterations: int) -> float:
    """Seconds of a solve in a batch: those that were measured, or such a solve."""
    entry = racer.entry
    if math.isfinite(entry.batch):
        return entry.batch * iterations / entry.iterations
    return arena.batch_seconds(racer.program, iterations)


def _words(race: Race) -> str:
    entry = race.winner.entry
    tried = any(one.trained for one in race.entries)
    how = "untrained: training won nothing" if tried else "untrained"
    how = "trained" if entry.trained else how
    return f"{entry.name} ({how}), checked once after its iterations"


def _opponents(problem: Problem, race: Race, found: Survey) -> dict[str, Rule]:
    """The race's best classical methods, but not the one that was chosen itself."""
    chosen = race.winner.entry
    others = [
        racer.candidate
        for racer in race.classical
        if math.isfinite(racer.entry.iterations) and racer.entry != chosen
    ]
    step = 1 / found.smoothness
    if isinstance(problem, Programme):
        return {other.name: Frozen(other.rule) for other in others[:_OPPONENTS]}
    simplest: Rule = ProximalGradient(step) if found.composite else GradientDescent(step)
    name = "proximal gradient" if found.composite else "gradient descent"
    few = others[:_OPPONENTS] or [Candidate(name, simplest)]
    return {other.name: _constant(other.rule) for other in few}


def _constant(rule: Rule) -> Rule:
    """A rule that is its own: numbers that were tuned stay as they are."""
    if isinstance(rule, FistaWithRestart):
        return FistaWithRestart(float(rule.step_size))
    return rule


def _checked(
    arena: Arena, race: Race, found: Survey, structure: Structure, seconds: float
) -> Checked:
    """The winner with a check after as many iterations as nearly all instances need."""
    classical, front = race.classical[0], structure.front
    rescue = 2 * classical.entry.iterations if math.isfinite(classical.entry.iterations) else 500
    checked = Checked(
        race.winner.candidate.rule,
        _fallback(classical.candidate.rule, found),
        at=_long_enough(arena, race.winner, seconds),
        rescue=int(np.clip(rescue, 50, 2000)),
        step_size=1 / found.smoothness,
        compared=not (structure.convex or (front is not None and front.convex)),
    )
    slopes, solved = _slopes(arena, checked)
    if not solved.any():
        return checked
    # Where minima are met exactly, rounding must pass elsewhere.
    rounding = float(8 * np.finfo(arena.problem.precision).eps * np.max(found.slopes))
    tolerance = 2 * max(float(np.max(slopes[solved])), rounding) or math.inf
    return dataclasses.replace(checked, tolerance=tolerance)


def _fallback(classical: Rule, found: Survey) -> Rule:
    """What helps instances that fail: the best classical rule, if it converges from anywhere."""
    if isinstance(classical, SharedADMM | ProgrammeADMM):
        return Frozen(classical)
    if isinstance(classical, FrontADMM):
        return Frozen(dataclasses.replace(classical, guarded=True))
    return FistaWithRestart(1 / found.smoothness) if found.composite else LBFGS()


def _long_enough(arena: Arena, racer: Racer, seconds: float) -> int:
    """So many iterations that nearly all pass the check; looked for in about so many seconds."""
    least = int(racer.entry.iterations) if math.isfinite(racer.entry.iterations) else 100
    number, watch = least, Stopwatch()
    for number in np.unique(np.round(np.linspace(least, _LONGER * least, 10)).astype(int)):
        if arena.solved(racer.program, int(number)) >= _SURE or watch.seconds > seconds:
            return int(number)
    return int(number)


def _slopes(
    arena: Arena, checked: Checked
) -> tuple[Float[np.ndarray, " held"], Bool[np.ndarray, " held"]]:
    """How steep it still is where the winner is checked, and whether that is solved."""
    with working_precision(arena.problem):
        ended = _at_check(checked, arena.problem, jax.tree.map(jnp.asarray, arena.held))
        slopes = np.asarray(ended.slope, np.float64)
    return slopes, (np.asarray(ended.loss) <= arena.targets) & np.isfinite(slopes)


@eqx.filter_jit
def _at_check(checked: Checked, problem: Problem, thetas: Theta) -> Ended:
    prepared = checked.prepare()
    return jax.vmap(lambda theta: unwatched(prepared, problem, theta, prepared.at))(thetas)


def experiment_for(problem: Problem, choice: Choice, accuracies: tuple[float, ...]) -> Experiment:
    """The experiment of a problem with the rule that was chosen for it."""
    composite = isinstance(problem, CompositeProblem)
    solver = trusted_solver(composite, choice.smoothness)[0]
    exact = isinstance(problem, Programme)  # a residual's minimum is 0

    def minima(thetas: Theta) -> np.ndarray:
        return solve_all(problem, choice.smoothness, thetas, choice.reference)

    def create_rule(key: Array) -> Rule:
        del key  # it begins as what the race has found, whatever the seed
        return choice.rule

    return Experiment(
        problem=problem,
        create_rule=create_rule,
        teacher=None,
        baselines=choice.baselines,
        accuracies=Accuracies(accuracies)
        if exact
        else Accuracies(
            accuracies,
            minima,
            f"the least loss that {_TRUSTED[type(solver)]} finds in {choice.reference} iterations",
        ),
        minima=None if exact else minima,
        external=outsiders(problem),
        race=choice.noted,
    )


def learns(problem: Problem, choice: Choice) -> bool:
    """Whether the rule has numbers that could be others."""
    with working_precision(problem):
        return hyper_of(choice.rule).size > 0
