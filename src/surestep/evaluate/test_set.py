"""Evaluation: the learned rule and its opponents on the whole test set.

Everyone runs on the same instances from the same start, and every instance counts, also those
where the learned rule fails. Accuracies are timed with compiled, warmed-up programs, one instance
at a time and as a batch. Solvers of other libraries are timed beside them; what they end with is
measured with the problem's own loss.
"""

import dataclasses
import math
import time
from collections.abc import Mapping
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from surestep.base.errors import ConfigurationError
from surestep.base.progress import Reporter, Silence
from surestep.problem import TestSet, Theta, instance, reached, working_precision
from surestep.rollout.batched import rollouts
from surestep.rollout.loop import Measure, Rollout, Status
from surestep.rollout.program import Program
from surestep.rules.base import Rule, require_fit
from surestep.storage.run_folder import axes
from surestep.train import Accuracies, External, SuccessEstimate, Task

LEARNED = "learned"
_ALONE, _FEWEST = 20, 3  # instances that are timed one by one, and how many at least
_LONG = 1.0  # seconds that timing one by one may take, for each solver and accuracy
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


@dataclasses.dataclass(frozen=True)
class Evaluated:
    """What every solver did on every test instance."""

    losses: np.ndarray = dataclasses.field(metadata=axes("solver", "instance", "iteration"))
    gradients: np.ndarray = dataclasses.field(metadata=axes("solver", "instance", "iteration"))
    measures: np.ndarray = dataclasses.field(
        metadata=axes("solver", "measure", "instance", "iteration")
    )
    thresholds: np.ndarray = dataclasses.field(metadata=axes("instance"))
    references: np.ndarray = dataclasses.field(metadata=axes("instance"))
    """The losses that accuracies are counted from."""
    targets: np.ndarray = dataclasses.field(metadata=axes("accuracy", "instance"))
    """The losses that count as accurate."""
    reach_iterations: np.ndarray = dataclasses.field(metadata=axes("solver", "accuracy", "timed"))
    reach_gradients: np.ndarray = dataclasses.field(metadata=axes("solver", "accuracy", "timed"))
    reach_status: np.ndarray = dataclasses.field(metadata=axes("solver", "accuracy", "timed"))
    seconds: np.ndarray = dataclasses.field(metadata=axes("solver", "accuracy", "timed"))
    """Of a solve alone; not a number on instances that only the batch was timed on."""
    seconds_batch: np.ndarray = dataclasses.field(metadata=axes("solver", "accuracy"))
    solvers: list[str]
    accuracies: list[float]
    above: str
    """What the references are, in words."""
    relative: bool
    """Whether accuracies are shares of the references."""
    measured: list[str]
    """What the measures are."""
    success: SuccessEstimate
    external_losses: np.ndarray = dataclasses.field(metadata=axes("external", "accuracy", "timed"))
    """The losses that solvers of other libraries ended with; they solved the first ones alone."""
    external_seconds: np.ndarray = dataclasses.field(metadata=axes("external", "accuracy", "timed"))
    external: list[str]
    """Who they are."""

    def accuracy_names(self) -> list[str]:
        """The accuracies as tables and figures show them."""
        if self.relative:
            return [f"{100 * accuracy:g} %" for accuracy in self.accuracies]
        return [f"{accuracy:g}" for accuracy in self.accuracies]

    def gradients_needed(self) -> Float[np.ndarray, "solver accuracy timed"]:
        """Gradient evaluations to each accuracy; infinite on instances that were not solved."""
        return np.where(self.reach_status == Status.REACHED, self.reach_gradients, np.inf)

    def gradient_quantile(self, share: float) -> Float[np.ndarray, "solver accuracy"]:
        """With how many gradients a share of the instances is solved, for each accuracy.

        Infinite where a solver does not solve so many.
        """
        return np.quantile(self.gradients_needed(), share, axis=2, method="inverted_cdf")

    def missed(self) -> Int[np.ndarray, "solver accuracy"]:
        """On how many instances a solver did not get below the target."""
        return np.sum(self.reach_status != Status.REACHED, axis=2)

    def external_missed(self) -> Int[np.ndarray, "external accuracy"]:
        """On how many instances an external solver's loss did not get below the target."""
        targets = self.targets[:, : self.external_losses.shape[2]]
        tried = np.isfinite(self.external_seconds)
        return np.sum(tried & ~(self.external_losses < targets), axis=2)

    def missed_share(self) -> Float[np.ndarray, "solver accuracy"]:
        """The share of instances that were not solved, of all solvers and then of other libraries'.

        Other libraries solve fewer instances.
        """
        tried = np.maximum(np.sum(np.isfinite(self.external_seconds), axis=2), 1)
        shares = self.missed() / self.reach_status.shape[2], self.external_missed() / tried
        return np.concatenate(shares)

    def mean_seconds(self) -> Float[np.ndarray, "solver accuracy"]:
        """The mean time of a solve alone, of all solvers and then of those of other libraries."""
        return np.nanmean(np.concatenate([self.seconds, self.external_seconds]), axis=2)

    @property
    def alone(self) -> int:
        """How many instances everybody was timed on one by one: the first ones."""
        every = np.concatenate([self.seconds, self.external_seconds])
        return int(np.sum(np.all(np.isfinite(every), axis=(0, 1))))


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
    references = accuracies.references(data.thetas, data.size)
    targets = accuracies.targets(references)
    few = _first(data, settings.timed)
    per_solver: list[dict[str, np.ndarray]] = []
    steps, patience = 3 * len(solvers) + len(external), math.inf
    with working_precision(task.problem), report.stage("evaluate", steps, "runs") as bar:
        for name, solver in solvers.items():
            program = Program.of(solver, task.problem, few.size)
            short = settings.factor * task.horizon
            longest, took, passed = _iterations_needed(
                program, few, targets[:, : few.size], short, settings.limit, patience
            )
            # The learned rule comes first. Who is so far behind is not waited for.
            if patience == math.inf and _PATIENCE / _HOPELESS < took < _PATIENCE:
                took = _one_call(program, few.thetas, longest)  # the first may have been compiling
            patience = min(patience, max(_PATIENCE, _HOPELESS * took))
            bar.advance(1, f"{name} to {accuracies.values[-1]:g}")
            shown, longer = _watched(
                solver, task, data, few, (short, longest), tuple(measures.values())
            )
            bar.advance(1, name)
            needed = _reached(longer, targets[:, : few.size])
            timed = _timed(program, few, needed["reach_iterations"], passed)
            per_solver.append(shown._asdict() | needed | timed)
            bar.advance(1, f"{name}, timed")
        ends = np.full((2, len(external), len(accuracies.values), few.size), np.nan)
        for e, (name, outsider) in enumerate(external.items()):
            ends[:, e] = _timed_outside(outsider, task, few, references, targets)
            bar.advance(1, name)
    stacked = {key: np.stack([one[key] for one in per_solver]) for key in per_solver[0]}
    threshold = task.thresholds(data)
    successes = int(reached(stacked["losses"][0, :, task.horizon], threshold).sum())
    return Evaluated(
        **stacked,
        thresholds=threshold,
        references=references,
        targets=targets,
        solvers=list(solvers),
        accuracies=list(accuracies.values),
        above=accuracies.above,
        relative=accuracies.relative,
        measured=list(measures),
        success=task.constraint.assess(successes, data.size),
        external_losses=ends[0],
        external_seconds=ends[1],
        external=list(external),
    )


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


def _timed(
    program: Program,
    data: TestSet,
    needed: Int[np.ndarray, "accuracy instance"],
    passed: np.ndarray | bool,
) -> dict[str, np.ndarray]:
    """How long so many iterations take, unwatched.

    First one by one, a few instances, each with as many iterations as it needs; then all as one
    batch, with as many as nine of ten of them need.
    """
    seconds, together = np.full(needed.shape, np.nan), np.zeros(len(needed))
    few = min(data.size, _ALONE)
    single = [instance(data.thetas, slice(i, i + 1)) for i in range(few)]
    most = np.quantile(needed, 0.9, axis=1, method="inverted_cdf")
    # The batch has been solved before; what is compiled for one instance depends on its fate.
    wanted = needed[:, :few].max(axis=0)
    failed = np.flatnonzero(~np.broadcast_to(passed, (data.size,))[:few])
    for i in {int(wanted.argmax()), *failed[:1].tolist()}:
        program.solve(single[i], int(wanted[i]), None)
    for a in range(len(needed)):
        for i, theta in enumerate(single):
            # Who does not come closer takes as long to one accuracy as to another.
            same = a and needed[a, i] == needed[a - 1, i] and np.isfinite(seconds[a - 1, i])
            seconds[a, i] = (
                seconds[a - 1, i] if same else _seconds(program, theta, int(needed[a, i]))
            )
            if i + 1 >= _FEWEST and np.nansum(seconds[a]) > _LONG:
                break
        same = a and most[a] == most[a - 1]
        together[a] = together[a - 1] if same else _seconds(program, data.thetas, int(most[a]))
    return {"seconds": seconds, "seconds_batch": together}


def _seconds(program: Program, thetas: Theta, iterations: int) -> float:
    """Seconds of a call; of a short one the faster of two, because machines are busy."""
    took = [_one_call(program, thetas, iterations)]
    if took[0] < 0.05:
        took.append(_one_call(program, thetas, iterations))
    return min(took)


def _one_call(program: Program, thetas: Theta, iterations: int) -> float:
    began = time.perf_counter()
    program.solve(thetas, iterations, None)
    return time.perf_counter() - began


def _timed_outside(
    solver: External,
    task: Task,
    data: TestSet,
    references: Float[np.ndarray, " instance"],
    targets: Float[np.ndarray, "accuracy instance"],
) -> Float[np.ndarray, "2 accuracy instance"]:
    """Losses and seconds of a solver of another library, one instance at a time."""
    few = min(data.size, _ALONE)
    thetas = [jax.tree.map(np.asarray, instance(data.thetas, i)) for i in range(few)]
    loss = eqx.filter_jit(task.problem.loss)
    above = targets - references
    found = np.full((2, len(targets), data.size), np.nan)
    for a in range(len(targets)):
        # Warms up; solvers whose tolerances are fixed once are set up for each accuracy.
        solver(thetas[0], float(targets[a, 0]), float(above[a, 0]))
        for i, theta in enumerate(thetas):
            began = time.perf_counter()
            point = solver(theta, float(targets[a, i]), float(above[a, i]))
            seconds = time.perf_counter() - began
            found[:, a, i] = float(loss(jax.tree.map(jnp.asarray, point), theta)), seconds
            if i + 1 >= _FEWEST and np.nansum(found[1, a]) > _LONG:
                break
    return found
