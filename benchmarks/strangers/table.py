"""Family by family: fit, tune the opponents, count, time, and write down."""

import contextlib
import dataclasses
import gc
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import threadpoolctl

from benchmarks.strangers import ours, timing
from benchmarks.strangers.counting import (
    ACCURACIES,
    Ground,
    ground,
    iterations_needed,
    tolerances_needed,
    tuned,
)
from benchmarks.strangers.families import Family, family
from benchmarks.strangers.records import (
    SCHEMA,
    Contest,
    Outcome,
    Table,
    Timed,
    load_table,
    save_table,
)
from surestep.base.machine import provenance

NONE = "none"
"""The budget with which only opponents are measured."""

Say = Callable[[str], None]
Ready = Callable[[], timing.Contender]


@dataclasses.dataclass(frozen=True)
class Effort:
    """How much is measured."""

    budget: str = "1m"
    seed: int = 0
    rounds: int = timing.ROUNDS
    far: float = timing.FAR


def measure(names: Sequence[str], effort: Effort, out: Path, say: Say) -> Table:
    """Measure families; the file has every one that is finished, and keeps those it had before."""
    facts = provenance() | {"cores": str(os.cpu_count())}
    table = load_table(out) if out.exists() else Table(SCHEMA, facts, [])
    for name in names:
        outcome = contest(family(name), effort, say)
        kept = [old for old in table.outcomes if old.family != name]
        table = Table(SCHEMA, facts, [*kept, outcome])
        save_table(table, out)
        say(f"{name}: written to {out}")
        # A process has room for some thousand compiled programs, and a family takes hundreds.
        jax.clear_caches()
        gc.collect()
    return table


def contest(entered: Family, effort: Effort, say: Say) -> Outcome:
    """Everyone on one family."""
    if effort.budget == NONE:
        made = ours.Fitted(None, "nothing was fitted", 0.0, 0.0)
    else:
        say(f"{entered.name}: fitting with a budget of {effort.budget}")
        made = ours.fitted(entered.problem, effort.budget, effort.seed)
        say(f"{entered.name}: {made.words}, after {made.wall_seconds:.0f} s")
    with one_thread():
        with jax.enable_x64(True):
            where = ground(entered.menu, entered.thetas)
            rivals = opponents(entered, where, say)
        counted: list[int | None] = [None] * len(ACCURACIES)
        if made.solver is not None:
            counted = ours.iterations_of(made.solver, where)
            say(f"{entered.name}: surestep {counted}")
        contests, bare = [], []
        for a, accuracy in enumerate(ACCURACIES):
            ready = [make() for make in rivals[a][0]]
            if made.solver is not None and (number := counted[a]) is not None:
                ready = [*us(made.solver, number, where), *ready]
            times = timing.in_rounds(ready, where.size, effort.rounds, effort.far)
            bare += [one for one in times if one.solver == timing.BARE]
            times = [one for one in times if one.solver != timing.BARE]
            missing = [Timed(one, "loop", "", None, [], [], None) for one in rivals[a][1]]
            if counted[a] is None:
                missing = [Timed(timing.OURS, "ours", "", None, [], [], None), *missing]
            contests.append(Contest(accuracy, times + missing))
            say(f"{entered.name}: timed to {accuracy:g}")
    return Outcome(
        entered.name,
        where.size,
        effort.budget,
        made.wall_seconds,
        made.training_seconds,
        made.words,
        contests,
        bare,
    )


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Matrices are small here: threads of BLAS and OpenMP would cost more than they give.

    What JAX compiles has threads of its own, ours as the opponents'.
    """
    with threadpoolctl.threadpool_limits(1):
        yield


def us(solver: Any, iterations: int, where: Ground) -> list[timing.Contender]:
    """Our solver as a user calls it, and its function without what `solve` looks at."""
    return [
        timing.of_ours(solver, iterations, where.thetas),
        timing.of_bare(*ours.bare(solver, iterations), iterations, where.thetas),
    ]


def opponents(entered: Family, where: Ground, say: Say) -> list[tuple[list[Ready], list[str]]]:
    """For every accuracy: who reaches it, ready to be timed, and who does not."""
    reach: list[tuple[list[Ready], list[str]]] = [([], []) for _ in ACCURACIES]
    tuning = ground(entered.menu, entered.tuning)
    for method in entered.menu.methods:
        loop, _ = tuned(tuning, method)
        needed = iterations_needed(where, loop, method.limit)
        say(f"{entered.name}: {method.name} ({loop.chosen}) {needed}")
        for (able, unable), number in zip(reach, needed, strict=True):
            if number is None:
                unable.append(method.name)
            else:
                able.append(_later(timing.of_loop, method.name, loop, number, where.thetas))
    for library in entered.menu.libraries:
        tolerances = tolerances_needed(where, library)
        say(f"{entered.name}: {library.name} {tolerances}")
        for (able, unable), tolerance in zip(reach, tolerances, strict=True):
            if tolerance is None:
                unable.append(library.name)
            else:
                able.append(_later(timing.of_library, library, tolerance, where.thetas))
    return reach


def _later(make: Callable[..., timing.Contender], *given: Any) -> Ready:
    return lambda: make(*given)
