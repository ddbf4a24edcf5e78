"""Locating: train the rule on the prior set while its success probability is kept in check.

The paper's procedure to locate the prior: stochastic minimisation of the ratio of consecutive
losses along randomised trajectories. Every so often the success probability is estimated on the
validation set. Before the constraint has ever been met, training just goes on; afterwards a point
that fails it is given up and training returns to the last point that met it.
"""

import dataclasses
import time
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float, Int, Scalar

from surestep.constraint import SuccessEstimate
from surestep.errors import ConfigurationError, InfeasibleError
from surestep.problem import Problem, Theta, count, working_precision
from surestep.progress import Reporter, Silence
from surestep.randomness import named_key
from surestep.rule import Rule, hyper_of, with_hyper
from surestep.split import PriorSet, ValidationSet
from surestep.store import Checkpoint, NoCheckpoint, axes
from surestep.task import Task
from surestep.trajectory import (
    Objective,
    Trajectory,
    continue_or_restart,
    follow,
    piece_objective,
    start_trajectory,
)


@dataclasses.dataclass(frozen=True)
class LocateSettings:
    """How the rule is trained."""

    steps: int = 200_000
    """Training steps."""
    learning_rate: float = 1e-4
    """Adam's first learning rate."""
    halve_every: int = 20_000
    """Steps after which the learning rate is halved."""
    length: int = 1
    """Iterations in each piece of a trajectory that is differentiated."""
    check_every: int = 20_000
    """Steps between two estimates of the success probability."""
    objective: Objective = "ratio"
    """The ratio of consecutive losses, or the sum of losses for comparison."""
    restarts: Literal["random", "fixed"] = "random"
    """Restart with probability length / horizon, or after exactly horizon iterations."""
    chunk: int = 2_000
    """Steps between two reports of progress."""

    def validate(self, horizon: int) -> None:
        """Refuse sizes that cannot work."""
        sizes = ("steps", "halve_every", "length", "check_every", "chunk")
        for name in sizes:
            if getattr(self, name) < 1:
                raise ConfigurationError(f"locate.{name} must be at least 1")
        if not self.learning_rate > 0:
            raise ConfigurationError(
                f"locate.learning_rate must be positive, not {self.learning_rate}"
            )
        if self.length > horizon:
            raise ConfigurationError(
                f"locate.length ({self.length}) must not exceed the horizon ({horizon})"
            )


@dataclasses.dataclass(frozen=True)
class Located:
    """The hyper that training ended with, which meets the constraint, and how it got there."""

    hyper: np.ndarray = dataclasses.field(metadata=axes("weight"))
    objectives: np.ndarray = dataclasses.field(metadata=axes("chunk"))
    skipped: int
    estimate: SuccessEstimate
    checks: list[SuccessEstimate]


class _Point(eqx.Module):
    """A hyper with the optimizer's memory."""

    hyper: Float[Array, " d"]
    optimizer: optax.OptState


class _Learning(eqx.Module):
    """All that training needs to go on."""

    point: _Point
    trajectory: Trajectory
    inside: _Point
    met: Bool[Array, ""]
    steps: Int[Array, ""]
    skipped: Int[Array, ""]
    objectives: Float[Array, " chunk"]
    checks: Int[Array, "check 2"]


def locate(
    settings: LocateSettings,
    task: Task,
    rule: Rule,
    prior_set: PriorSet,
    validation_set: ValidationSet,
    seed: int,
    checkpoint: Checkpoint | None = None,
    report: Reporter | None = None,
) -> Located:
    """Train a rule from its own hyper on; raise `InfeasibleError` if it never gets inside."""
    settings.validate(task.horizon)
    checkpoint, report = checkpoint or NoCheckpoint(), report or Silence()
    ends = _chunk_ends(settings)
    with working_precision(task.problem):
        first = named_key(seed, "locate", "first")
        learning = _begin(rule, task.problem, settings, prior_set.thetas, first)
        learning = checkpoint.load(learning) or learning
        saved = time.monotonic()
        done = int(learning.steps)
        estimate = _last_check(task, learning)
        with report.stage("locate", settings.steps, "steps", done) as bar:
            for end in ends[np.searchsorted(ends, done, side="right") :]:
                key = named_key(seed, "locate", int(end))
                chunk = int(np.searchsorted(ends, end))
                learning = _train(
                    learning, rule, task.problem, prior_set.thetas, key, settings,
                    task.horizon, int(end) - done, jnp.asarray(chunk),
                )  # fmt: skip
                checked = end % settings.check_every == 0 or end == settings.steps
                if checked:
                    current = with_hyper(rule, learning.point.hyper)
                    estimate = task.success(current, validation_set, seed, "locate", int(end))
                    learning = _after_check(
                        learning, rule, task.problem, prior_set.thetas, estimate, settings, seed
                    )
                if checked or time.monotonic() - saved > 10:
                    checkpoint.save(learning)
                    saved = time.monotonic()
                mean = float(learning.objectives[chunk])
                bar.advance(int(end) - done, _note(settings, mean, estimate))
                done = int(end)
        return _finish(learning, task, settings)


def _note(settings: LocateSettings, objective: float, estimate: SuccessEstimate | None) -> str:
    success = f", success {estimate.probability:.3f}" if estimate else ""
    return f"{settings.objective} {objective:.4g}{success}"


def _chunk_ends(settings: LocateSettings) -> np.ndarray:
    """Where chunks end: at multiples of the chunk, at checks and at the end."""
    steps = settings.steps
    ends = {*range(settings.chunk, steps, settings.chunk)}
    ends |= {*range(settings.check_every, steps, settings.check_every), steps}
    return np.array(sorted(ends))


def _check_ends(settings: LocateSettings) -> list[int]:
    return sorted(
        {*range(settings.check_every, settings.steps, settings.check_every), settings.steps}
    )


def _learning_rate(settings: LocateSettings, step: Array) -> Array:
    # Counted from the first step on, also after a return to an earlier point.
    return settings.learning_rate * 0.5 ** (step // settings.halve_every)


@eqx.filter_jit
def _begin(
    rule: Rule, problem: Problem, settings: LocateSettings, thetas: Theta, key: Array
) -> _Learning:
    hyper = hyper_of(rule)
    point = _Point(hyper, optax.scale_by_adam().init(hyper))
    first = jax.random.randint(key, (), 0, count(thetas))
    return _Learning(
        point=point,
        trajectory=start_trajectory(rule, problem, thetas, first),
        inside=point,
        met=jnp.zeros((), bool),
        steps=jnp.zeros((), jnp.int32),
        skipped=jnp.zeros((), jnp.int32),
        objectives=jnp.full((len(_chunk_ends(settings)),), jnp.nan),
        checks=jnp.full((len(_check_ends(settings)), 2), -1, jnp.int32),
    )


@eqx.filter_jit
def _train(
    learning: _Learning,
    rule: Rule,
    problem: Problem,
    thetas: Theta,
    key: Array,
    settings: LocateSettings,
    horizon: int,
    length: int,
    chunk: Array,
) -> _Learning:
    key_index, key_restart = jax.random.split(key)
    indices = jax.random.randint(key_index, (length,), 0, count(thetas))
    chance = min(1.0, settings.length / horizon)
    restarts = jax.random.bernoulli(key_restart, chance, (length,))
    numbers = learning.steps + jnp.arange(length)
    optimizer = optax.scale_by_adam()

    def step(
        carry: tuple[_Point, Trajectory], draw: tuple[Array, Array, Array]
    ) -> tuple[tuple[_Point, Trajectory], tuple[Scalar, Array]]:
        point, trajectory = carry
        number, index, random_restart = draw
        objective, trajectory, gradient = training_gradient(
            rule, problem, thetas, point.hyper, trajectory, settings.length, settings.objective
        )
        usable = jnp.isfinite(objective) & jnp.all(jnp.isfinite(gradient))
        change: Any
        change, memory = optimizer.update(gradient, point.optimizer)
        moved = _Point(point.hyper - _learning_rate(settings, number) * change, memory)
        point = jax.tree.map(lambda new, old: jnp.where(usable, new, old), moved, point)
        over = trajectory.age >= horizon if settings.restarts == "fixed" else random_restart
        trajectory = continue_or_restart(
            trajectory,
            over | ~usable,
            lambda: start_trajectory(with_hyper(rule, point.hyper), problem, thetas, index),
        )
        return (point, trajectory), (objective, usable)

    carry = (learning.point, learning.trajectory)
    (point, trajectory), (objectives, usable) = jax.lax.scan(
        step, carry, (numbers, indices, restarts)
    )
    mean = jnp.sum(jnp.where(usable, objectives, 0)) / jnp.maximum(jnp.sum(usable), 1)
    return dataclasses.replace(
        learning,
        point=point,
        trajectory=trajectory,
        steps=learning.steps + length,
        skipped=learning.skipped + jnp.sum(~usable).astype(jnp.int32),
        objectives=learning.objectives.at[chunk].set(mean),
    )


def training_gradient(
    rule: Rule,
    problem: Problem,
    thetas: Theta,
    hyper: Float[Array, " d"],
    trajectory: Trajectory,
    length: int,
    objective: Objective,
) -> tuple[Scalar, Trajectory, Float[Array, " d"]]:
    """The objective of the next piece, where the piece ends, and the hyper's gradient."""

    def of(hyper: Array) -> tuple[Scalar, Trajectory]:
        losses, ended = follow(with_hyper(rule, hyper), problem, thetas, trajectory, length)
        return piece_objective(losses, objective), ended

    (value, ended), gradient = jax.value_and_grad(of, has_aux=True)(hyper)
    return value, ended, gradient


def _after_check(
    learning: _Learning,
    rule: Rule,
    problem: Problem,
    thetas: Theta,
    estimate: SuccessEstimate,
    settings: LocateSettings,
    seed: int,
) -> _Learning:
    """Remember a point that is inside; leave one that has gone outside again."""
    number = _check_ends(settings).index(int(learning.steps))
    counts = jnp.asarray([estimate.successes, estimate.trials], jnp.int32)
    learning = dataclasses.replace(learning, checks=learning.checks.at[number].set(counts))
    if estimate.inside:
        return dataclasses.replace(learning, inside=learning.point, met=jnp.ones((), bool))
    if not bool(learning.met):
        return learning
    key = named_key(seed, "locate", "return", int(learning.steps))
    index = jax.random.randint(key, (), 0, count(thetas))
    return dataclasses.replace(
        learning,
        point=learning.inside,
        trajectory=_restarted(with_hyper(rule, learning.inside.hyper), problem, thetas, index),
    )


@eqx.filter_jit
def _restarted(rule: Rule, problem: Problem, thetas: Theta, index: Array) -> Trajectory:
    return start_trajectory(rule, problem, thetas, index)


def _checks(task: Task, learning: _Learning) -> list[SuccessEstimate]:
    return [
        task.constraint.assess(int(successes), int(trials))
        for successes, trials in np.asarray(learning.checks)
        if trials >= 0
    ]


def _last_check(task: Task, learning: _Learning) -> SuccessEstimate | None:
    checks = _checks(task, learning)
    return checks[-1] if checks else None


def _finish(learning: _Learning, task: Task, settings: LocateSettings) -> Located:
    checks = _checks(task, learning)
    inside = [check for check in checks if check.inside]
    if not inside:
        best = max(checks, key=lambda check: check.probability)
        raise InfeasibleError(
            f"training made {settings.steps} steps without a rule that reaches the goal with "
            f"probability in [{task.constraint.lower}, {task.constraint.upper}]: the best of "
            f"{len(checks)} checks was {best}. Train longer (locate.steps), try another seed, or "
            "set a goal that is easier to reach (goal)."
        )
    return Located(
        hyper=np.asarray(learning.inside.hyper),
        objectives=np.asarray(learning.objectives, np.float64),
        skipped=int(learning.skipped),
        estimate=inside[-1],
        checks=checks,
    )
