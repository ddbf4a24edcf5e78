"""Evaluation: the learned rule and its opponents on the whole test set.

Everyone runs on the same instances from the same start, and every instance counts, also those
where the learned rule fails. Accuracies are timed with compiled, warmed-up programs, one instance
at a time and as a batch. Solvers of other libraries are timed beside them; what they end with is
measured with the problem's own loss.
"""

import dataclasses
import functools
import time
from collections.abc import Callable, Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from surestep.base.errors import ConfigurationError
from surestep.base.progress import Reporter, Silence
from surestep.problem import Problem, TestSet, instance, reached, working_precision
from surestep.rollout.batched import reach_each, rollouts
from surestep.rollout.loop import Measure, Reached, Status, reach
from surestep.rules.base import Rule, require_fit
from surestep.storage.run_folder import axes
from surestep.train import Accuracies, External, SuccessEstimate, Task

LEARNED = "learned"


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
    """The losses that solvers of other libraries ended with."""
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
        return np.sum(~(self.external_losses < targets), axis=2)


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
    steps = len(solvers) * (1 + len(accuracies.values)) + len(external)
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
            timed = []
            for accuracy, wanted in zip(accuracies.values, targets, strict=True):
                timed.append(_timed(solver, task, few, wanted[: few.size], settings.limit))
                bar.advance(1, f"{name} to {accuracy:g}")
            watched = [np.asarray(one, np.float64) for one in shown.measures]
            per_solver.append(
                {
                    "losses": np.asarray(shown.losses, np.float64),
                    "gradients": np.asarray(shown.gradients),
                    "measures": np.array(watched).reshape(len(watched), *shown.losses.shape),
                }
                | {key: np.stack([one[key] for one in timed]) for key in timed[0]}
            )
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


def _timed(
    rule: Rule, task: Task, data: TestSet, wanted: Float[np.ndarray, " instance"], limit: int
) -> dict[str, np.ndarray]:
    """Bring every instance to its target, first one by one, then as a batch."""
    targets = jnp.asarray(wanted, jnp.result_type(float))
    arrays, rest = _split((rule, task.problem))
    reach_one = _reach_one(rest, limit)
    thetas = [instance(data.thetas, i) for i in range(data.size)]
    jax.block_until_ready(reach_one(arrays, thetas[0], targets[0]))
    seconds, ends = [], []
    for theta, target in zip(thetas, targets, strict=True):
        began = time.perf_counter()
        end = jax.block_until_ready(reach_one(arrays, theta, target))
        seconds.append(time.perf_counter() - began)
        ends.append(end)
    batch = (rule, task.problem, data.thetas, targets, limit, task.block)
    # A target that the start meets compiles the same program and takes no time.
    jax.block_until_ready(reach_each(*batch[:3], jnp.full_like(targets, jnp.inf), *batch[4:]))
    began = time.perf_counter()
    jax.block_until_ready(reach_each(*batch))
    together = time.perf_counter() - began
    return {
        "reach_iterations": np.array([end.iterations for end in ends]),
        "reach_gradients": np.array([end.gradients for end in ends]),
        "reach_status": np.array([end.status for end in ends]),
        "seconds": np.array(seconds),
        "seconds_batch": np.array(together),
    }


def _timed_outside(
    solver: External,
    task: Task,
    data: TestSet,
    references: Float[np.ndarray, " instance"],
    targets: Float[np.ndarray, "accuracy instance"],
) -> Float[np.ndarray, "2 accuracy instance"]:
    """Losses and seconds of a solver of another library, one instance at a time."""
    thetas = [jax.tree.map(np.asarray, instance(data.thetas, i)) for i in range(data.size)]
    loss = eqx.filter_jit(task.problem.loss)
    above = targets - references
    solver(thetas[0], float(targets[0, 0]), float(above[0, 0]))  # warms up
    found = np.empty((2, len(targets), data.size))
    for a in range(len(targets)):
        for i, theta in enumerate(thetas):
            began = time.perf_counter()
            point = solver(theta, float(targets[a, i]), float(above[a, i]))
            seconds = time.perf_counter() - began
            found[:, a, i] = float(loss(jax.tree.map(jnp.asarray, point), theta)), seconds
    return found


def _split(tree: Any) -> tuple[list[Any], tuple[Any, tuple[Any, ...]]]:
    """A pytree's arrays, and the rest of it as something hashable."""
    leaves, structure = jax.tree.flatten(tree)
    arrays = [leaf if eqx.is_array(leaf) else None for leaf in leaves]
    return arrays, (structure, tuple(None if eqx.is_array(leaf) else leaf for leaf in leaves))


@functools.lru_cache(maxsize=64)
def _reach_one(rest: Any, limit: int) -> Callable[[list[Any], Any, Any], Reached]:
    """The program that solves one instance, for rules and problems that differ in arrays alone.

    Plain jit on plain arrays, made once: its dispatch takes microseconds, which matters next to a
    solve of a fraction of a millisecond.
    """
    structure, static = rest

    @jax.jit
    def solve(arrays: list[Any], theta: Any, accuracy: Any) -> Reached:
        leaves = [s if a is None else a for a, s in zip(arrays, static, strict=True)]
        rule, problem = _typed(jax.tree.unflatten(structure, leaves))
        return reach(rule, problem, theta, accuracy, limit)

    return solve


def _typed(pair: Any) -> tuple[Rule, Problem]:
    return pair
