"""Imitation: a first hyper that is stable because it follows a classical rule.

The paper's procedure to find an initialization: the pupil's iterates are drawn towards the
teacher's, in mean squared distance, along randomised trajectories. The trajectory is the pupil's;
after every piece the teacher is moved to where the pupil went.
"""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Scalar

from surestep.base.errors import ConfigurationError
from surestep.base.keys import named_key
from surestep.base.progress import Reporter, Silence
from surestep.problem import (
    Evaluations,
    Oracle,
    PriorSet,
    Problem,
    Theta,
    instance,
    working_precision,
)
from surestep.rollout.loop import Progress, in_step
from surestep.rules.base import Rule, hyper_of, require_fit, with_hyper
from surestep.storage.run_folder import axes
from surestep.train.pieces import Draws, draw_restarts, is_usable, only_if
from surestep.train.task import Task
from surestep.train.trajectory import Trajectory, continue_or_restart, start_trajectory


@dataclasses.dataclass(frozen=True)
class ImitateSettings:
    """How the pupil is drawn towards its teacher."""

    steps: int = 1000
    """Most training steps to make; 0 leaves the rule as it was created."""
    learning_rate: float = 1e-3
    """Adam's first learning rate."""
    halve_every: int = 200
    """Steps after which the learning rate is halved."""
    tolerance: float = 1e-2
    """Mean squared distance that is close enough to stop."""
    length: int = 1
    """Iterations in each piece of a trajectory."""
    chunk: int = 100
    """Steps between two looks at the mean distance."""

    def validate(self) -> None:
        """Refuse sizes that cannot work."""
        if self.steps < 0 or min(self.halve_every, self.length, self.chunk) < 1:
            raise ConfigurationError(
                "imitate.steps must be 0 or more, and imitate.halve_every, imitate.length and "
                "imitate.chunk at least 1"
            )
        if not (self.learning_rate > 0 and self.tolerance >= 0):
            raise ConfigurationError(
                "imitate.learning_rate must be positive and imitate.tolerance not negative"
            )


@dataclasses.dataclass(frozen=True)
class Imitated:
    """The hyper that imitation found, and the mean distances on the way there."""

    hyper: np.ndarray = dataclasses.field(metadata=axes("weight"))
    distances: np.ndarray = dataclasses.field(metadata=axes("chunk"))


class _Lesson(eqx.Module):
    """Pupil and teacher at the same point of the same instance."""

    pupil: Trajectory
    teacher: Progress


class _Learning(eqx.Module):
    hyper: Float[Array, " d"]
    optimizer: optax.OptState
    lesson: _Lesson


def imitate(
    settings: ImitateSettings,
    task: Task,
    rule: Rule,
    teacher: Rule,
    data: PriorSet,
    seed: int,
    report: Reporter | None = None,
) -> Imitated:
    """Draw a rule's iterates towards a teacher's, starting from the rule's own hyper."""
    settings.validate()
    require_fit(teacher, task.problem)
    require_fit(rule, task.problem)
    report = report or Silence()
    with working_precision(task.problem), report.stage("imitate", settings.steps, "steps") as bar:
        learning = _begin(rule, teacher, task.problem, settings, data.thetas)
        distances: list[float] = []
        for first in range(0, settings.steps, settings.chunk):
            length = min(settings.chunk, settings.steps - first)
            key = named_key(seed, "imitate", first)
            learning, distance = _train(
                learning,
                rule,
                teacher,
                task.problem,
                data.thetas,
                key,
                settings,
                task.horizon,
                length,
            )
            distances.append(float(distance))
            bar.advance(length, f"mean squared distance {distances[-1]:.3g}")
            if distances[-1] <= settings.tolerance:
                break
        return Imitated(np.asarray(learning.hyper), np.asarray(distances, np.float64))


@eqx.filter_jit
def _begin(
    rule: Rule, teacher: Rule, problem: Problem, settings: ImitateSettings, thetas: Theta
) -> _Learning:
    hyper = hyper_of(rule)
    lesson = _lesson(rule, teacher, problem, thetas, jnp.zeros((), jnp.int32))
    return _Learning(hyper, _optimizer(settings).init(hyper), lesson)


def _lesson(rule: Rule, teacher: Rule, problem: Problem, thetas: Theta, index: Array) -> _Lesson:
    return _Lesson(
        start_trajectory(rule, problem, thetas, index),
        start_trajectory(teacher, problem, thetas, index).progress,
    )


def _optimizer(settings: ImitateSettings) -> optax.GradientTransformation:
    rate = optax.exponential_decay(
        settings.learning_rate, settings.halve_every, 0.5, staircase=True
    )
    return optax.adam(rate)


@eqx.filter_jit
def _train(
    learning: _Learning,
    rule: Rule,
    teacher: Rule,
    problem: Problem,
    thetas: Theta,
    key: Array,
    settings: ImitateSettings,
    horizon: int,
    length: int,
) -> tuple[_Learning, Scalar]:
    draws = draw_restarts(jax.random.split(key), thetas, settings.length, horizon, (length,))
    optimizer = _optimizer(settings)

    def step(learning: _Learning, draw: Draws) -> tuple[_Learning, Scalar]:
        def objective(hyper: Array) -> tuple[Scalar, _Lesson]:
            return _piece(with_hyper(rule, hyper), teacher, problem, thetas, learning, settings)

        (distance, lesson), gradient = jax.value_and_grad(objective, has_aux=True)(learning.hyper)
        usable = is_usable(distance, gradient)
        change: Any
        change, optimizer_state = optimizer.update(gradient, learning.optimizer)
        hyper, optimizer_state = only_if(
            usable,
            (learning.hyper + change, optimizer_state),
            (learning.hyper, learning.optimizer),
        )
        lesson = continue_or_restart(
            lesson,
            draw.over | ~usable,
            lambda: _lesson(with_hyper(rule, hyper), teacher, problem, thetas, draw.following),
        )
        return _Learning(hyper, optimizer_state, lesson), distance

    learning, distances = jax.lax.scan(step, learning, draws)
    return learning, jnp.mean(distances)


def _piece(
    rule: Rule,
    teacher: Rule,
    problem: Problem,
    thetas: Theta,
    learning: _Learning,
    settings: ImitateSettings,
) -> tuple[Scalar, _Lesson]:
    pupil, guide = learning.lesson.pupil, learning.lesson.teacher
    theta = instance(thetas, pupil.index)
    distance = jnp.zeros((), learning.hyper.dtype)
    followed = pupil.progress
    pairs = in_step(rule.bare(), teacher, problem, theta, (followed, guide), settings.length)
    for followed, guide in pairs:
        ahead = jnp.where(followed.diverged | guide.diverged, jnp.inf, 1.0)
        difference = followed.state.x - jax.lax.stop_gradient(guide.state.x)
        distance = distance + ahead * jnp.sum(difference**2) / settings.length
    moved = _moved(teacher, problem, theta, guide, followed)
    trajectory = Trajectory(pupil.index, pupil.age + settings.length, followed)
    return distance, jax.lax.stop_gradient(_Lesson(trajectory, moved))


def _moved(
    teacher: Rule, problem: Problem, theta: Theta, guide: Progress, pupil: Progress
) -> Progress:
    oracle = Oracle(problem, theta)
    state = teacher.relocate(oracle, guide.state, jax.lax.stop_gradient(pupil.state.x))
    value = teacher.loss(oracle, state)
    return Progress(state, value, Evaluations.none(), guide.diverged | ~jnp.isfinite(value))
