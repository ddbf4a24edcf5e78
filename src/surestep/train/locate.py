"""Locating: train the rule on the prior set while its success probability is kept in check.

The paper's procedure to locate the prior: stochastic minimisation of the ratio of consecutive
losses along randomised trajectories. Every so often the success probability is estimated on the
validation set. Before the constraint has ever been met, training just goes on; afterwards a point
that fails it is given up and training returns to the last point that met it. Where the best point
is kept instead, training also returns to it, with half the learning rate, once it has spoiled it.
"""

import dataclasses
from typing import Literal

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from surestep.base.errors import ConfigurationError, InfeasibleError
from surestep.base.progress import Reporter, Silence
from surestep.problem import PriorSet, ValidationSet, working_precision
from surestep.rules.base import Rule, hyper_of, with_hyper
from surestep.storage.checkpoint import Checkpoint, NoCheckpoint, Saving
from surestep.storage.run_folder import axes
from surestep.train.checked import CheckedTraining, counts_of
from surestep.train.constraint import SuccessEstimate
from surestep.train.steps import SPOILED, Pupil, Restarts, enrol_compiled, merit, train_compiled
from surestep.train.task import Task


@dataclasses.dataclass(frozen=True)
class LocateSettings:
    """How the rule is trained."""

    steps: int = 200_000
    """Training steps; with 0 the rule is taken as it is, and only its success is estimated."""
    learning_rate: float = 1e-4
    """Adam's first learning rate."""
    halve_every: int = 20_000
    """Steps after which the learning rate is halved."""
    length: tuple[int, ...] = (1,)
    """Iterations in each piece of a trajectory that is differentiated; of several numbers, each
    serves for an equal part of the steps."""
    check_every: int = 20_000
    """Steps between two estimates of the success probability."""
    restarts: Restarts = "random"
    """Restart with probability length / horizon, or after exactly horizon iterations."""
    keep: Literal["last", "best"] = "last"
    """Of the checked rules inside the constraint, the last (the paper's) or the one that is best
    on the prior set."""
    chunk: int = 2_000
    """Steps between two reports of progress."""

    def validate(self, horizon: int) -> None:
        """Refuse sizes that cannot work."""
        if self.steps < 0:
            raise ConfigurationError("locate.steps must not be negative")
        for name in ("halve_every", "check_every", "chunk"):
            if getattr(self, name) < 1:
                raise ConfigurationError(f"locate.{name} must be at least 1")
        if not self.learning_rate > 0:
            raise ConfigurationError(
                f"locate.learning_rate must be positive, not {self.learning_rate}"
            )
        require_lengths("locate.length", self.length, horizon)

    def length_at(self, step: int) -> int:
        """The length of pieces at a training step."""
        return self.length[step * len(self.length) // self.steps]

    def rates(self, first: int, length: int) -> Float[Array, " step"]:
        """The learning rates of some steps, counted from the first step of all on.

        Also after a return to an earlier point, so that every run ends with the last rate.
        """
        return self.learning_rate * 0.5 ** (jnp.arange(first, first + length) // self.halve_every)


def require_lengths(name: str, lengths: tuple[int, ...], horizon: int) -> None:
    """Refuse pieces that are empty or longer than a rollout."""
    if not lengths or min(lengths) < 1:
        raise ConfigurationError(f"{name} must be at least 1, not {lengths}")
    if max(lengths) > horizon:
        raise ConfigurationError(f"{name} ({max(lengths)}) must not exceed the horizon ({horizon})")


@dataclasses.dataclass(frozen=True)
class Located:
    """The hyper that training ended with, which meets the constraint, and how it got there."""

    hyper: np.ndarray = dataclasses.field(metadata=axes("weight"))
    objectives: np.ndarray = dataclasses.field(metadata=axes("chunk"))
    skipped: int
    estimate: SuccessEstimate
    checks: list[SuccessEstimate]


class _Learning(eqx.Module):
    """All that training needs to go on."""

    pupil: Pupil
    inside: Pupil
    met: Bool[Array, ""]
    kept: Int[Array, ""]
    best: Float[Array, ""]
    slowed: Float[Array, ""]
    """Factor of the learning rate: halved whenever training has spoiled the rule."""
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
    if settings.steps == 0:
        return _as_it_is(task, rule, validation_set, seed)
    training = CheckedTraining("locate", task, rule, prior_set, validation_set, seed)
    ends, checks = _chunk_ends(settings), _check_ends(settings)
    with working_precision(task.problem):
        learning = _begin(training, settings)
        learning = checkpoint.load(learning) or learning
        saving = Saving(checkpoint)
        done = int(learning.steps)
        estimate = next(reversed(_checks(training, learning)), None)
        with report.stage("locate", settings.steps, "steps", done) as bar:
            if done == 0 and 0 in checks:
                learning, estimate = _check(learning, training, settings)
            for end in ends[np.searchsorted(ends, done, side="right") :].tolist():
                learning = _advance(learning, training, settings, done, end)
                if end in checks:
                    learning, estimate = _check(learning, training, settings)
                    saving.now(learning)
                else:
                    saving.now_and_then(learning)
                objective = float(learning.objectives[np.searchsorted(ends, end)])
                bar.advance(end - done, _note(task, objective, estimate))
                done = end
        return _finish(learning, training, settings)


def _as_it_is(task: Task, rule: Rule, validation_set: ValidationSet, seed: int) -> Located:
    """A rule that was trained before, or has nothing to learn: it is only checked."""
    estimate = task.success(rule, validation_set, seed, "locate", 0)
    if not estimate.inside:
        raise InfeasibleError(
            f"the rule reaches the goal with another probability than is asked for: {estimate}. "
            "Set a goal that is easier to reach (goal), or give more time"
        )
    with working_precision(task.problem):
        hyper = np.asarray(hyper_of(rule))
    return Located(hyper, np.zeros(0), 0, estimate, [estimate])


def _advance(
    learning: _Learning, training: CheckedTraining, settings: LocateSettings, done: int, end: int
) -> _Learning:
    """The training steps of one chunk."""
    task, chunk = training.task, int(np.searchsorted(_chunk_ends(settings), end))
    rates = learning.slowed * settings.rates(done, end - done)
    pupil, mean, skipped = train_compiled(
        learning.pupil, training.rule, task.problem, training.material, training.key(end), rates,
        settings.length_at(done), task.horizon, settings.restarts,
    )  # fmt: skip
    return dataclasses.replace(
        learning,
        pupil=pupil,
        steps=jnp.asarray(end, jnp.int32),
        skipped=learning.skipped + skipped,
        objectives=learning.objectives.at[chunk].set(mean),
    )


def _note(task: Task, objective: float, estimate: SuccessEstimate | None) -> str:
    success = f", success {estimate.probability:.3f}" if estimate else ""
    return f"{task.training.objective} {objective:.4g}{success}"


def _chunk_ends(settings: LocateSettings) -> np.ndarray:
    """Where chunks end: at multiples of the chunk, at checks, at new lengths and at the end."""
    steps = settings.steps
    parts = len(settings.length)
    ends = {*range(settings.chunk, steps, settings.chunk)}
    ends |= {*range(settings.check_every, steps, settings.check_every), steps}
    ends |= {-(-steps * part // parts) for part in range(1, parts)}
    return np.array(sorted(ends))


def _check_ends(settings: LocateSettings) -> list[int]:
    # A rule that may have been good from the start competes with what training makes of it.
    first = 0 if settings.keep == "best" else settings.check_every
    return sorted({*range(first, settings.steps, settings.check_every), settings.steps})


def _begin(training: CheckedTraining, settings: LocateSettings) -> _Learning:
    pupil = _enrolled(training, training.rule, "first")
    return _Learning(
        pupil=pupil,
        inside=pupil,
        met=jnp.zeros((), bool),
        kept=jnp.zeros((), jnp.int32),
        best=jnp.asarray(jnp.inf),
        slowed=jnp.ones(()),
        steps=jnp.zeros((), jnp.int32),
        skipped=jnp.zeros((), jnp.int32),
        objectives=jnp.full((len(_chunk_ends(settings)),), jnp.nan),
        checks=jnp.full((len(_check_ends(settings)), 2), -1, jnp.int32),
    )


def _enrolled(training: CheckedTraining, rule: Rule, *name: str | int) -> Pupil:
    return enrol_compiled(rule, training.task.problem, training.material, training.key(*name))


def _check(
    learning: _Learning, training: CheckedTraining, settings: LocateSettings
) -> tuple[_Learning, SuccessEstimate]:
    """Estimate the success probability, and decide from where training goes on."""
    steps, hyper = int(learning.steps), learning.pupil.hyper
    estimate = training.success(hyper, steps)
    found = 0.0
    if estimate.inside and settings.keep == "best":
        found = merit(training.task, with_hyper(training.rule, hyper), training.prior_set)
    number = _check_ends(settings).index(steps)
    checks = learning.checks.at[number].set(counts_of(estimate))
    learning = dataclasses.replace(learning, checks=checks)
    return _after_check(learning, training, settings, estimate, found), estimate


def _after_check(
    learning: _Learning,
    training: CheckedTraining,
    settings: LocateSettings,
    estimate: SuccessEstimate,
    found: float,
) -> _Learning:
    """Remember a point that is inside; leave one that has gone outside again."""
    spoiled = False
    if estimate.inside:
        worse = settings.keep == "best" and found >= float(learning.best)
        spoiled = worse and found > float(learning.best) + SPOILED
        if worse and not spoiled:
            return learning
    if estimate.inside and not spoiled:
        return dataclasses.replace(
            learning,
            inside=learning.pupil,
            met=jnp.ones((), bool),
            kept=jnp.asarray(_check_ends(settings).index(int(learning.steps)), jnp.int32),
            best=jnp.asarray(found, learning.best.dtype),
        )
    if not bool(learning.met):
        return learning
    back = with_hyper(training.rule, learning.inside.hyper)
    trajectory = _enrolled(training, back, "return", int(learning.steps)).trajectory
    returned = Pupil(learning.inside.hyper, learning.inside.optimizer, trajectory)
    slowed = learning.slowed * (0.5 if spoiled else 1.0)
    return dataclasses.replace(learning, pupil=returned, slowed=slowed)


def _checks(training: CheckedTraining, learning: _Learning) -> list[SuccessEstimate]:
    counts = np.asarray(learning.checks)
    return training.estimates(counts[counts[:, 1] >= 0])


def _finish(learning: _Learning, training: CheckedTraining, settings: LocateSettings) -> Located:
    checks = _checks(training, learning)
    if not bool(learning.met):
        constraint = training.task.constraint
        best = max(checks, key=lambda check: check.probability)
        raise InfeasibleError(
            f"training made {settings.steps} steps without a rule that reaches the goal with "
            f"probability in [{constraint.lower}, {constraint.upper}]: the best of "
            f"{len(checks)} checks was {best}. Train longer (locate.steps), try another seed, or "
            "set a goal that is easier to reach (goal)."
        )
    return Located(
        hyper=np.asarray(learning.inside.hyper),
        objectives=np.asarray(learning.objectives, np.float64),
        skipped=int(learning.skipped),
        estimate=checks[int(learning.kept)],
        checks=checks,
    )
