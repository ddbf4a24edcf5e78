"""Evaluation: the learned rule and its opponents on the whole test set.

Everyone runs on the same instances from the same start, and every instance counts, also those
where the learned rule fails. Accuracies are timed with compiled, warmed-up programs, one instance
at a time and as a batch. Solvers of other libraries are timed beside them; what they end with is
measured with the problem's own loss.

An opponent that raises an error is left out or has failed there, an instance whose reference is
unknown is not counted, and notes say so: nothing that a rule is compared with may end a run.
"""

import dataclasses
import math
import time
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from surestep.base.errors import ConfigurationError
from surestep.base.progress import Reporter, Silence
from surestep.evaluate.evaluated import LEARNED, Evaluated
from surestep.evaluate.timing import named, one_call, timed, timed_outside
from surestep.problem import TestSet, instance, reached, working_precision
from surestep.rollout.batched import rollouts
from surestep.rollout.loop import Measure, Rollout, Status
from surestep.rollout.program import Program
from surestep.rules.base import Rule, require_fit
from surestep.train import Accuracies, External, Task
from surestep.train.references import completed

_WASTE = 2  # how many times as many instances may be rolled out for longer than they are shown
_HOPELESS, _PATIENCE = 10, 2.0  # an opponent may take so many times as long, and so many seconds


@dataclasses.dataclass(frozen=True)
class EvaluateSettings:
    """What is compared on the test set."""

    factor: int = 2
    """Losses are shown up to this many times the horizon."""
    limit: int = 10_000
    """Most iterations when solvers are timed to an accuracy."""
    timed: int = 0
    """On how many test instances solvers are timed; 0 means on all."""
    baselines: tuple[str, ...] = ()
    """Names of the opponents; none named means all the problem has."""
    shifted: int = 50
    """Instances of each shifted distribution that the learned rule is shown on; 0 means none."""

    def validate(self) -> None:
        """Refuse sizes that cannot work."""
        if self.factor < 1 or self.limit < 1:
            raise ConfigurationError("evaluate.factor and evaluate.limit must be at least 1")
        for name in ("timed", "shifted"):
            if getattr(self, name) < 0:
                raise ConfigurationError(
                    f"evaluate.{name} must not be negative, not {getattr(self, name)}"
                )


def evaluate(
    settings: EvaluateSettings,
    task: Task,
    rule: Rule,
    baselines: Mapping[str, Rule],
    accuracies: Accuracies,
    data: TestSet,
    measures: Mapping[str, Measure] | None = None,
    external: Mapping[str, External] | None = None,
    report: Reporter | None = None,
) -> Evaluated:
    """Run the learned rule and its opponents on every test instance."""
    settings.validate()
    report, measures, external = report or Silence(), measures or {}, external or {}
    solvers = {LEARNED: rule, **baselines}
    for solver in solvers.values():
        require_fit(solver, task.problem)
    found = accuracies.references(data.thetas, data.size)
    references = accuracies.require_some(found, data.thetas)
    # Where the reference is unknown, solvers are given something to aim at, and not counted.
    near = completed(references, lambda: task.start_losses(data))
    few = _first(data, settings.timed)
    aims = accuracies.targets(near)[:, : few.size]
    notes = _unknown(references, accuracies.above)
    per_solver: dict[str, dict[str, np.ndarray]] = {}
    steps, patience = 3 * len(solvers) + len(external), math.inf
    with working_precision(task.problem), report.stage("evaluate", steps, "runs") as bar:
        for name, solver in solvers.items():
            try:
                per_solver[name], patience = _compete(
                    settings, task, solver, data, few, aims, tuple(measures.values()), patience
                )
            except Exception as error:  # an opponent may be anybody's code
                if name == LEARNED:
                    raise
                notes.append(f"{name} could not be evaluated and is left out: {named(error)}")
            bar.advance(3, name)
        ends = np.full((2, len(external), len(accuracies.values), few.size), np.nan)
        for e, (name, outsider) in enumerate(external.items()):
            ends[:, e], errors = timed_outside(outsider, task, few, aims, aims - near[: few.size])
            notes += [f"{name} failed {error}" for error in errors]
            bar.advance(1, name)
    stacked = {
        key: np.stack([one[key] for one in per_solver.values()]) for key in per_solver[LEARNED]
    }
    # Whoever aimed at something that was made up has reached nothing.
    known = np.isfinite(references[: few.size])
    stacked["reach_status"] = np.where(known, stacked["reach_status"], Status.LIMIT)
    threshold = task.thresholds(data)
    successes = int(reached(stacked["losses"][0, :, task.horizon], threshold).sum())
    for note in notes:
        report.say(note)
    return Evaluated(
        **stacked,
        thresholds=threshold,
        starts=task.start_losses(data),
        references=references,
        targets=accuracies.targets(references),
        solvers=list(per_solver),
        accuracies=list(accuracies.values),
        above=accuracies.above,
        relative=accuracies.relative,
        measured=list(measures),
        success=task.constraint.assess(successes, data.size),
        external_losses=ends[0],
        external_seconds=ends[1],
        external=list(external),
        notes=notes,
    )


def _unknown(references: Float[np.ndarray, " instance"], above: str) -> list[str]:
    """A sentence about instances whose reference could not be found, if there are any."""
    number = int(np.sum(~np.isfinite(references)))
    if not number:
        return []
    return [
        f"{above or 'the reference'} is unknown on {number} of {len(references)} test instances, "
        "which are left out wherever losses are counted from it"
    ]


def _compete(
    settings: EvaluateSettings,
    task: Task,
    solver: Rule,
    data: TestSet,
    few: TestSet,
    aims: Float[np.ndarray, "accuracy instance"],
    measures: tuple[Measure, ...],
    patience: float,
) -> tuple[dict[str, np.ndarray], float]:
    """What one solver does, and for how long the next ones are waited for."""
    program = Program.of(solver, task.problem, few.size)
    short = settings.factor * task.horizon
    longest, took, passed = _iterations_needed(program, few, aims, short, settings.limit, patience)
    # The learned rule comes first. Who is so far behind is not waited for.
    if patience == math.inf and _PATIENCE / _HOPELESS < took < _PATIENCE:
        took = one_call(program, few.thetas, longest)  # the first may have been compiling
    shown, longer = _watched(solver, task, data, few, (short, longest), measures)
    needed = _reached(longer, aims)
    found = shown._asdict() | needed | timed(program, few, needed["reach_iterations"], passed)
    return found, min(patience, max(_PATIENCE, _HOPELESS * took))


def _first(data: TestSet, number: int) -> TestSet:
    """The first instances of a set, or all of them."""
    if not 0 < number < data.size:
        return data
    return TestSet(instance(data.thetas, np.arange(number)))


class _Shown(NamedTuple):
    """What rollouts of some instances were seen to do."""

    losses: np.ndarray
    gradients: np.ndarray
    measures: np.ndarray

    @classmethod
    def of(cls, seen: Rollout) -> "_Shown":
        """On the host."""
        losses = np.asarray(seen.losses, np.float64)
        measures = np.array([np.asarray(one, np.float64) for one in seen.measures])
        return cls(losses, np.asarray(seen.gradients), measures.reshape(-1, *losses.shape))

    def until(self, iterations: int) -> "_Shown":
        """The same, but only the first iterations."""
        return _Shown(*(table[..., : iterations + 1] for table in self))


def _watched(
    rule: Rule,
    task: Task,
    data: TestSet,
    few: TestSet,
    lengths: tuple[int, int],
    measures: tuple[Measure, ...],
) -> tuple[_Shown, _Shown]:
    """Short rollouts of all instances, and longer ones of a few.

    They are the same program where that is no waste: compiling takes longer than most rollouts.
    """
    short, longer = lengths[0], max(lengths)

    def seen(data: TestSet, length: int, measures: tuple[Measure, ...] = measures) -> _Shown:
        return _Shown.of(rollouts(rule, task.problem, data.thetas, length, task.block, measures))

    if longer > short and data.size > _WASTE * few.size:
        return seen(data, short), seen(few, longer, ())
    every = seen(data, longer)
    return every.until(short), every


def _reached(
    shown: _Shown, targets: Float[np.ndarray, "accuracy instance"]
) -> dict[str, np.ndarray]:
    """How many iterations and gradients instances take to their targets."""
    size = targets.shape[1]
    losses, gradients = shown.losses[:size], shown.gradients[:size]
    below = losses[None] < targets[:, :, None]
    solved = below.any(axis=2)
    needed = np.where(solved, below.argmax(axis=2), losses.shape[1] - 1)
    failed = np.where(np.isfinite(losses[:, -1]), Status.LIMIT, Status.DIVERGED)
    return {
        "reach_iterations": needed,
        "reach_gradients": gradients[np.arange(size), needed],
        "reach_status": np.where(solved, Status.REACHED, failed),
    }


def _iterations_needed(
    program: Program,
    data: TestSet,
    targets: Float[np.ndarray, "accuracy instance"],
    short: int,
    limit: int,
    patience: float,
) -> tuple[int, float, np.ndarray | bool]:
    """About how many iterations all instances need to all targets, at most the limit.

    Also their time, and which instances passed a rule's check.

    At least as many as `short` rollouts have, because these are made anyway. A solver is given up
    once no instance has halved its distance to a target while iterations were doubled, three times
    in a row: at that pace no limit would be enough. Or once a call has taken longer than the
    patience lasts.
    """
    stuck, before, took = 0, np.full(targets.shape, np.inf), 0.0
    found = program.solve(data.thetas, 1, None)  # compiles
    number = min(short, limit)
    while number < limit:
        began = time.perf_counter()
        found = program.solve(data.thetas, number, None)
        took, losses = time.perf_counter() - began, found.loss
        left = np.where(losses < targets, 0.0, losses - targets)
        if not left.any() or took > patience:
            return number, took, found.passed
        stuck = 0 if np.any((left <= before / 2) & (before > 0) & np.isfinite(left)) else stuck + 1
        if number > 100 and stuck >= 3:
            return number, took, found.passed
        number, before = min(2 * number, limit), np.minimum(before, left)
    return limit, took, found.passed
