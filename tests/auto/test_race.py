"""The race: small families of every kind, what wins on them, and how ties and failures end."""

import dataclasses
import functools
import itertools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import surestep
from support.types import unchecked
from surestep.auto import race as racing
from surestep.auto.arena import Arena, Entry, Use
from surestep.auto.candidates import Candidate, candidates, per_coordinate, started
from surestep.auto.choice import choose
from surestep.auto.race import Race, Racer, hold_race
from surestep.auto.survey import survey
from surestep.base.progress import Silence
from surestep.problem.base import Problem
from surestep.problem.datasets import PriorSet
from surestep.problem.draw import working_precision
from surestep.problem.penalties import L1
from surestep.problem.structure import find_structure
from surestep.rules import (
    LBFGS,
    Checked,
    GradientDescent,
    HeavyBall,
    LearnedHeavyBall,
    MetricQuasiNewton,
    Newton,
    Predicted,
    SharedADMM,
)
from surestep.rules.base import Rule, hyper_of

RANDOM = np.random.default_rng(0)
MATRIX = RANDOM.normal(size=(5, 5)) + 3 * np.eye(5)
DICTIONARY = RANDOM.normal(size=(8, 12)) / 3
LONG = 30.0
"""Seconds in which all candidates have their turn."""


def normal(*shape):
    return functools.partial(jax.random.normal, shape=shape)


QUADRATIC = Problem.of(
    lambda x, theta: 0.5 * jnp.sum((MATRIX @ x - theta) ** 2), np.ones(5), sample=normal(5)
)
LASSO = Problem.of(
    lambda x, theta: 0.5 * jnp.sum((DICTIONARY @ x - theta) ** 2),
    np.zeros(12),
    sample=normal(8),
    penalty=L1(0.02),
)


def counted(key):
    """An instance of several arrays, of which some hold whole numbers."""
    which, where = jax.random.split(key)
    return {
        "power": jax.random.randint(which, (), 1, 4),
        "centre": (jax.random.normal(where, (2, 2)), jnp.ones(1)),
    }


def bowl(x, theta):
    far = x["a"] - theta["centre"][0]
    tall = jnp.sum(jnp.logaddexp(far, -far)) + (x["b"] - theta["centre"][1][0]) ** 2
    return theta["power"] * tall


def deep(x, theta):
    return 0.5 * jnp.sum(jnp.arange(1.0, 7.0) * x**2) - theta @ x


FAMILIES = {
    "float32": Problem.of(
        lambda x, theta: jnp.sum(jnp.cosh(x - theta) - 1),
        np.zeros(6), sample=normal(6), precision="float32",
    ),
    "float32, composite": Problem.of(
        lambda x, theta: 0.5 * jnp.sum((DICTIONARY @ x - theta) ** 2),
        np.zeros(12), sample=normal(8), penalty=L1(0.1), precision="float32",
    ),
    "pytrees": Problem.of(bowl, {"a": np.full((2, 2), 2.0), "b": -1.0}, sample=counted),
    "no lower bound": Problem.of(deep, np.ones(6), sample=normal(6), lower=None),
    "recorded": Problem.of(
        lambda x, t: 0.5 * jnp.sum((MATRIX @ x - t["theta"]) ** 2) + 0.1 * jnp.sum(x**4),
        np.ones(5), thetas={"theta": RANDOM.normal(size=(90, 5))},
    ),
}  # fmt: skip


EVERY = {"quadratic": QUADRATIC, "lasso": LASSO, **FAMILIES}


@functools.cache
def surveyed(name):
    problem = EVERY[name]
    data = PriorSet.draw(problem, 27, 0)
    return data, survey(problem, data), find_structure(problem, data.thetas)


def arena_of(name, accuracy=1e-6):
    data, found, _ = surveyed(name)
    return Arena.of(EVERY[name], data.thetas, found.starts, found.minima, found.fitted, accuracy)


def held(name, use: Use = "both", seconds=5.0, accuracy=1e-6):
    _, found, structure = surveyed(name)
    return hold_race(arena_of(name, accuracy), found, structure, use, seconds, Silence())


def require_whole(race: Race, use):
    """What holds of every race."""
    entries = race.entries
    assert entries[0] == race.winner.entry
    scores = [entry.score(use) for entry in entries]
    assert scores[1:] == sorted(scores[1:])
    assert scores[0] <= 1.05 * min(scores)
    assert len({(entry.name, entry.trained) for entry in entries}) == len(entries)
    assert not race.untrained.entry.trained
    assert all(one.candidate.classical and not one.entry.trained for one in race.classical)
    for entry in entries:
        assert math.isfinite(entry.batch) == math.isfinite(entry.iterations)
        assert entry.iterations >= 1


def few(problem, found, structure):
    """The first candidate, and Newton's method where there is one."""
    every = candidates(problem, found, structure)
    return [every[0], *(one for one in every if isinstance(one.rule, Newton) and one.rule.anew)]


@pytest.fixture(scope="module")
def quadratic():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(racing, "candidates", few)
        return held("quadratic")


@pytest.fixture(scope="module")
def lasso():
    """Time enough to tune, and not much to train."""

    def shortly(arena, racer, structure, seconds, trained=racing._trained):
        return trained(arena, racer, structure, 2.0)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(racing, "_trained", shortly)
        return held("lasso", seconds=60.0)


def test_a_quadratic_with_a_shared_hessian_is_solved_at_once(quadratic):
    require_whole(quadratic, "both")
    assert quadratic.winner.entry.iterations <= 2
    counts = {entry.name: entry.iterations for entry in quadratic.entries if not entry.trained}
    assert counts["Newton"] == 1
    assert counts["accelerated gradients"] > 10
    assert any("start" in name for name in counts)


def test_a_lasso_with_a_fixed_dictionary_is_factored_once(lasso):
    require_whole(lasso, "both")
    counts = {entry.name: entry.iterations for entry in lasso.entries if not entry.trained}
    assert counts["ADMM, factored once"] <= counts["FISTA with restart"]
    assert counts["ADMM, factored once"] < math.inf


def test_what_wins_really_reaches_the_accuracy(lasso):
    arena = arena_of("lasso")
    racer = lasso.winner
    assert arena.solved(racer.program, int(racer.entry.iterations)) >= 0.9
    fresh = arena.program(racer.candidate.rule)
    assert arena.solved(fresh, int(racer.entry.iterations)) >= 0.9


def entrant(name, alone, batch=1.0, trained=False, classical=True) -> Racer:
    rule: Rule = GradientDescent(0.1)
    iterations = 5.0 if math.isfinite(batch) else math.inf
    entry = Entry(name, trained, iterations, alone, batch)
    return Racer(Candidate(name, rule, classical), arena_of("quadratic").program(rule), entry)


def test_ties_go_to_the_simpler_and_to_the_untrained():
    names = ["simple", "rich", "richest"]

    def won(*racers, use: Use = "single"):
        race = racing._ended(list(racers), use, names)
        require_whole(race, use)
        return race.winner.entry.name, race.winner.entry.trained

    simple, rich = entrant("simple", 1.04), entrant("rich", 1.0)
    assert won(rich, simple) == ("simple", False)
    assert won(simple, rich, entrant("richest", 0.99)) == ("rich", False)
    assert won(entrant("simple", 1.06), rich) == ("rich", False)
    assert won(rich, entrant("rich", 0.96, trained=True)) == ("rich", False)
    assert won(rich, entrant("rich", 0.94, trained=True)) == ("rich", True)
    # Nobody is there in time: the simplest is.
    late = [entrant(name, math.inf, math.inf) for name in names]
    assert won(*reversed(late)) == ("simple", False)
    assert won(*late[1:], entrant("simple", math.inf, 1.0)) == ("simple", False)


def test_the_use_decides():
    names = ["one by one", "all at once"]
    one, all_at_once = entrant(names[0], 1.0, 10.0), entrant(names[1], 4.0, 1.0)
    winners: dict[Use, Racer] = {"single": one, "batch": all_at_once, "both": all_at_once}
    for use, winner in winners.items():
        assert racing._ended([one, all_at_once], use, names).winner is winner


def test_training_that_wins_nothing_does_not_win(monkeypatch):
    """A trained candidate is one that needs fewer iterations than before."""
    arena, (_, _, structure) = arena_of("lasso"), surveyed("lasso")
    entrants = candidates(LASSO, surveyed("lasso")[1], structure)
    splitting = next(one for one in entrants if isinstance(one.rule, SharedADMM))
    racer = racing._tried(arena, dataclasses.replace(splitting, variants=()), 9.0, math.inf)
    untaught = lambda rule, problem, lesson, floors, hyper, memory, *_: (hyper, memory)  # noqa: E731
    monkeypatch.setattr(racing, "_learn", untaught)
    found = racing._trained(arena, racer, structure, 0.5)
    assert found.entry == dataclasses.replace(racer.entry, trained=True)
    race = racing._ended([found, racer], "batch", [racer.candidate.name])
    assert race.winner is racer


def test_instances_that_need_no_solving_do_not_stop_training(monkeypatch):
    """Their start is the minimum: in single precision their share of it was log(0)."""
    name = "float32, composite"
    arena, (_, found, structure) = arena_of(name), surveyed(name)
    nothing = np.zeros_like(arena.makers[:6])  # where the start, 0, is the solution
    arena = dataclasses.replace(
        arena,
        makers=np.concatenate([nothing, arena.makers[6:]]),
        minima=np.concatenate([np.zeros(6), arena.minima[6:]]),
        gaps=np.concatenate([np.zeros(6), arena.gaps[6:]]),
    )
    splitting = candidates(EVERY[name], found, structure)[1]
    racer = racing._tried(arena, dataclasses.replace(splitting, variants=()), 9.0, math.inf)
    moves = []

    def watched(rule, problem, lesson, floors, hyper, *rest, learn=racing._learn):
        moved, memory = learn(rule, problem, lesson, floors, hyper, *rest)
        moves.append(float(jnp.max(jnp.abs(moved - hyper))))
        return moved, memory

    monkeypatch.setattr(racing, "_learn", watched)
    racing._trained(arena, racer, structure, 0.5)
    assert moves and 1e-3 < moves[0] < 1.0


def test_penalties_are_trained_coordinate_by_coordinate_where_the_proximal_map_is():
    entrants = candidates(LASSO, *surveyed("lasso")[1:])
    splitting = next(one for one in entrants if isinstance(one.rule, SharedADMM))
    wide = per_coordinate(splitting, surveyed("lasso")[2]).rule
    assert isinstance(wide, SharedADMM) and wide.log_penalty.shape == (12,)
    assert per_coordinate(entrants[0], surveyed("lasso")[2]) is entrants[0]


@pytest.mark.parametrize("use", ["single", "batch", "both"])
def test_an_accuracy_that_nobody_reaches_is_no_error(use, monkeypatch):
    monkeypatch.setattr(racing, "candidates", few)
    race = held("quadratic", use, 0.5, accuracy=1e-300)
    require_whole(race, use)
    assert all(entry.iterations == math.inf for entry in race.entries)
    assert race.winner.entry.name == race.classical[0].entry.name == "accelerated gradients"
    choice = choose(QUADRATIC, surveyed("quadratic")[1], 0, 1e-300, use, 0.5, Silence())
    assert choice.horizon >= 100 and list(choice.baselines) == ["gradient descent"]
    assert not choice.trained


def test_who_diverges_is_last(monkeypatch):
    wild = Candidate("wild", GradientDescent(1e6), True)
    monkeypatch.setattr(racing, "candidates", lambda *given: [wild, *few(*given)])
    race = held("quadratic", "batch", 3.0)
    require_whole(race, "batch")
    assert race.entries[-1].name == "wild" and race.entries[-1].batch == math.inf
    assert race.winner.entry.name != "wild"


@pytest.mark.parametrize("name", FAMILIES)
def test_a_second_is_enough_for_some_end(name):
    """Of every kind of problem, with whatever had its turn."""
    problem = FAMILIES[name]
    _, found, _ = surveyed(name)
    assert np.all(np.isfinite(found.minima))
    choice = choose(problem, found, 0, 1e-4, "both", 1.0, Silence())
    rule = choice.rule
    assert isinstance(rule, Checked)
    assert rule.at == choice.horizon >= 1
    assert 1 <= len(choice.baselines) <= 2
    assert choice.noted["seconds"] == choice.seconds > 0
    assert choice.trained == choice.entries[0].trained
    assert choice.entries[0].name in choice.words
    arena = arena_of(name, 1e-4)
    if math.isfinite(choice.entries[0].iterations):
        assert arena.solved(arena.program(rule), rule.at) >= 0.9
        assert 0 < rule.tolerance < math.inf
    with working_precision(problem):
        hyper = hyper_of(rule)
        # Where other programs take the time, a rule may win that has no numbers at all.
        assert not hyper.size or hyper.dtype == problem.precision


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "use"), [*zip(EVERY, itertools.cycle(("batch", "both", "single")), strict=False)]
)
def test_all_candidates_have_their_turn(name, use):
    race = held(name, use, LONG, 1e-4)
    require_whole(race, use)
    assert math.isfinite(race.winner.entry.score(use))
    _, found, structure = surveyed(name)
    entrants = {one.name for one in candidates(EVERY[name], found, structure)}
    assert entrants <= {entry.name for entry in race.entries}


def test_a_predicted_start_knows_whole_numbers_from_others():
    problem = FAMILIES["pytrees"]
    _, found, structure = surveyed("pytrees")
    candidate = started(candidates(problem, found, structure)[0], problem, found)
    assert isinstance(candidate.rule, Predicted)
    assert not candidate.classical and candidate.name.endswith(" start")
    # Four numbers and one that is always 1; the power is left out.
    assert candidate.rule.weights.shape[1] in (0, 5)
    arena = arena_of("pytrees")
    assert arena.solved(arena.program(candidate.rule), 3000) >= 0.9


@unchecked()
def test_the_use_of_the_public_names():
    """`fit` takes the same words."""
    with pytest.raises(surestep.errors.ConfigurationError, match="use must be"):
        surestep.plan_fit(QUADRATIC, 10, use="all")  # pyright: ignore


def racer_of(rule, batch, name="one"):
    entry = Entry(name, False, 10, 1.0, batch)
    return racing.Racer(Candidate(name, rule, trainable=True), None, entry)  # pyright: ignore[reportArgumentType]


@unchecked()  # without programs
def test_two_kinds_are_trained_and_schedules_come_last():
    metric = MetricQuasiNewton.of(jnp.eye(2))
    ball = LearnedHeavyBall.around(HeavyBall(0.1, 0.9))
    fast, near, same = racer_of(ball, 1.0), racer_of(metric, 1.9), racer_of(metric, 1.95)
    assert racing._pupils([fast, near, same]) == [near, fast]
    assert racing._pupils([fast, racer_of(metric, 2.1)]) == [fast]
    assert racing._pupils([]) == []


def test_other_numbers_are_tried_where_the_first_lead_nowhere():
    arena = arena_of("quadratic")
    hopeless = Candidate(
        "gradient descent", GradientDescent(jnp.asarray(1e3)), True,
        variants=(np.array([1e3]), np.array([1 / surveyed("quadratic")[1].smoothness])),
    )  # fmt: skip
    assert math.isfinite(racing._tried(arena, hopeless, 9.0, math.inf).entry.iterations)


def test_a_ball_that_is_good_gets_a_schedule():
    with unchecked():  # without a program
        racer = racer_of(HeavyBall(jnp.asarray(0.1), jnp.asarray(0.9)), 1.0, "heavy ball")
    rich = racing._CHANGES[0](racer, QUADRATIC, surveyed("quadratic")[1])
    assert rich is not None and rich.trainable
    assert rich.name == "heavy ball, learned schedule"


@unchecked()  # without programs
def test_what_is_changed_further_can_be_trained_or_is_no_slower():
    class Clock:
        """An arena whose programs take what their entries say."""

        size = 1
        seconds = staticmethod(lambda program, iterations: math.inf)
        batch_seconds = seconds

    ball = HeavyBall(jnp.asarray(0.1), jnp.asarray(0.9))
    clock: Any = Clock()
    base, slower, lost = (racer_of(ball, batch) for batch in (1.0, 1.2, math.inf))
    tie = racer_of(ball, 1.04)
    assert racing._kept(clock, base, slower) is base
    assert racing._kept(clock, base, tie) is tie
    assert racing._kept(clock, base, lost) is base
    plain = dataclasses.replace(base, candidate=Candidate("ball", ball, True))
    assert racing._kept(clock, plain, slower) is slower


@unchecked()  # without programs
def test_late_only_the_two_best_are_timed_alone():
    class Clock:
        """An arena whose programs take a second alone."""

        size = 1

        @staticmethod
        def batch_seconds(program, iterations):
            return 1.0

        alone_seconds = batch_seconds

    clock: Any = Clock()
    racers = [racer_of(HeavyBall(0.1, 0.9), batch, str(batch)) for batch in (1.0, 1.1, 1.2)]
    early = racing._alone(clock, racers, "both", math.inf)
    assert [racer.entry.alone for racer in early] == [1.0] * 3
    late = racing._alone(clock, racers, "both", -1.0)
    assert sorted(racer.entry.alone for racer in late) == [1.0, 1.0, math.inf]


def test_where_iterations_take_long_the_surveys_own_solver_is_first():
    entrants = candidates(QUADRATIC, *surveyed("quadratic")[1:])
    first = min(entrants, key=lambda entrant: racing._place(entrant, slow=True))
    assert isinstance(first.rule, LBFGS)
    usual = min(entrants, key=lambda entrant: racing._place(entrant, slow=False))
    assert not isinstance(usual.rule, LBFGS)
