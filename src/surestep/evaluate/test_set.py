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
            shown = rollouts(
                solver,
                task.problem,
                data.thetas,
                settings.factor * task.horizon,
                task.block,
                tuple(measures.values()),
            )
            bar.advance(1, name)
            program = Program.of(solver, task.problem, few.size)
            reached_few, took = _brought(
                solver, task, program, few, shown, targets[:, : few.size], settings.limit, patience
            )
            # The learned rule comes first. Who is so far behind is not waited for.
            patience = min(patience, max(_PATIENCE, _HOPELESS * took))
            bar.advance(1, f"{name} to {accuracies.values[-1]:g}")
            watched = [np.asarray(one, np.float64) for one in shown.measures]
            per_solver.append(
                {
                    "losses": np.asarray(shown.losses, np.float64),
                    "gradients": np.asarray(shown.gradients),
                    "measures": np.array(watched).reshape(len(watched), *shown.losses.shape),
                }
                | reached_few
                | _timed(program, few, reached_few["reach_iterations"])
            )
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
    return TestSet(instance(data.thetas, jnp.arange(number)))


def _brought(
    rule: Rule,
    task: Task,
    program: Program,
    data: TestSet,
    shown: Rollout,
    targets: Float[np.ndarray, "accuracy instance"],
    limit: int,
    patience: float,
) -> tuple[dict[str, np.ndarray], float]:
    """How many iterations every instance takes to its targets, and how many gradients.

    Also the seconds that as many iterations as all of them take together.
    """
    longest, took = _iterations_needed(program, data, targets, limit, patience)
    if longest >= shown.losses.shape[1]:
        shown = rollouts(rule, task.problem, data.thetas, longest, task.block)
    losses = np.asarray(shown.losses, np.float64)[: data.size]
    gradients = np.asarray(shown.gradients)[: data.size]
    below = losses[None] < targets[:, :, None]
    solved = below.any(axis=2)
    needed = np.where(solved, below.argmax(axis=2), losses.shape[1] - 1)
    failed = np.where(np.isfinite(losses[:, -1]), Status.LIMIT, Status.DIVERGED)
    rows = np.arange(data.size)
    brought = {
        "reach_iterations": needed,
        "reach_gradients": gradients[rows, needed],
        "reach_status": np.where(solved, Status.REACHED, failed),
    }
    return brought, took


def _iterations_needed(
    program: Program,
    data: TestSet,
    targets: Float[np.ndarray, "accuracy instance"],
    limit: int,
    patience: float,
) -> tuple[int, float]:
    """About how many iterations all instances need to all targets, at most the limit; their time.

    A solver is given up once no instance has halved its distance to a target while iterations were
    doubled, three times in a row: at that pace no limit would be enough. Or once a call has taken
    longer than the patience lasts.
    """
    number, stuck, before, took = 1, 0, np.full(targets.shape, np.inf), 0.0
    program.solve(data.thetas, 1, None)  # compiles
    while number < limit:
        began = time.perf_counter()
        losses = program.solve(data.thetas, number, None).loss
        took = time.perf_counter() - began
        left = np.where(losses < targets, 0.0, losses - targets)
        if not left.any() or took > patience:
            return number, took
        stuck = 0 if np.any((left <= before / 2) & (before > 0) & np.isfinite(left)) else stuck + 1
        if number > 100 and stuck >= 3:
            return number, took
        number, before = min(2 * number, limit), np.minimum(before, left)
    return limit, took


def _timed(
    program: Program, data: TestSet, needed: Int[np.ndarray, "accuracy instance"]
) -> dict[str, np.ndarray]:
    """How long so many iterations take, unwatched.

    First one by one, a few instances, each with as many iterations as it needs; then all as one
    batch, with as many as nine of ten of them need.
    """
    seconds, together = np.full(needed.shape, np.nan), np.zeros(len(needed))
    few = min(data.size, _ALONE)
    single = [instance(data.thetas, slice(i, i + 1)) for i in range(few)]
    program.warm(single[0])
    program.warm(data.thetas)
    most = np.quantile(needed, 0.9, axis=1, method="inverted_cdf")
    for a in range(len(needed)):
        for i, theta in enumerate(single):
            seconds[a, i] = _seconds(program, theta, int(needed[a, i]))
            if i + 1 >= _FEWEST and np.nansum(seconds[a]) > _LONG:
                break
        together[a] = _seconds(program, data.thetas, int(most[a]))
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
    solver(thetas[0], float(targets[0, 0]), float(above[0, 0]))  # warms up
    found = np.full((2, len(targets), data.size), np.nan)
    for a in range(len(targets)):
        for i, theta in enumerate(thetas):
            began = time.perf_counter()
            point = solver(theta, float(targets[a, i]), float(above[a, i]))
            seconds = time.perf_counter() - began
            found[:, a, i] = float(loss(jax.tree.map(jnp.asarray, point), theta)), seconds
            if i + 1 >= _FEWEST and np.nansum(found[1, a]) > _LONG:
                break
    return found
