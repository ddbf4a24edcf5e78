"""Training steps on one hyper, and how good the rule has become.

Both stages that train use them: locating trains one rule, a population many side by side.
"""

import functools
import math
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int, Scalar

from surestep.problem.base import Problem, count
from surestep.problem.datasets import PriorSet
from surestep.rules.base import Rule, hyper_of, with_hyper
from surestep.train.task import Task
from surestep.train.trajectory import (
    Material,
    Trajectory,
    continue_or_restart,
    start_trajectory,
    training_gradient,
)

Restarts = Literal["random", "fixed"]

SPOILED = 0.5
"""By how many powers of ten a rule must have become worse than its best for training to go back."""


class Pupil(eqx.Module):
    """A hyper under training: the optimizer's memory, and where its trajectory stands."""

    hyper: Float[Array, " d"]
    optimizer: optax.OptState
    trajectory: Trajectory


def enrol(
    rule: Rule, problem: Problem, material: Material, hyper: Float[Array, " d"], key: Array
) -> Pupil:
    """A pupil that has not been trained yet, at the start of a random instance."""
    first = jax.random.randint(key, (), 0, count(material.thetas))
    trajectory = start_trajectory(with_hyper(rule, hyper), problem, material.thetas, first)
    return Pupil(hyper, optax.scale_by_adam().init(hyper), trajectory)


def train(
    pupil: Pupil,
    rule: Rule,
    problem: Problem,
    material: Material,
    key: Array,
    rates: Float[Array, " step"],
    piece: int,
    horizon: int,
    restarts: Restarts,
) -> tuple[Pupil, Scalar, Int[Array, ""]]:
    """One step for each learning rate; also the mean objective, and how many steps were skipped.

    A step whose objective or gradient is not finite is skipped, and its trajectory given up.
    """
    length = rates.shape[0]
    key_index, key_restart = jax.random.split(key)
    indices = jax.random.randint(key_index, (length,), 0, count(material.thetas))
    chance = min(1.0, piece / horizon)
    over_at = jax.random.bernoulli(key_restart, chance, (length,))
    optimizer = optax.scale_by_adam()

    def step(pupil: Pupil, draw: tuple[Array, Array, Array]) -> tuple[Pupil, tuple[Scalar, Array]]:
        rate, index, random_restart = draw
        objective, trajectory, gradient = training_gradient(
            rule, problem, material, pupil.hyper, pupil.trajectory, piece
        )
        usable = jnp.isfinite(objective) & jnp.all(jnp.isfinite(gradient))
        change: Any
        change, memory = optimizer.update(gradient, pupil.optimizer)
        hyper, memory = jax.tree.map(
            lambda new, old: jnp.where(usable, new, old),
            (pupil.hyper - rate * change, memory),
            (pupil.hyper, pupil.optimizer),
        )
        over = trajectory.age >= horizon if restarts == "fixed" else random_restart
        trajectory = continue_or_restart(
            trajectory,
            over | ~usable,
            lambda: start_trajectory(with_hyper(rule, hyper), problem, material.thetas, index),
        )
        return Pupil(hyper, memory, trajectory), (objective, usable)

    pupil, (objectives, usable) = jax.lax.scan(step, pupil, (rates, indices, over_at))
    mean = jnp.sum(jnp.where(usable, objectives, 0)) / jnp.maximum(jnp.sum(usable), 1)
    return pupil, mean, jnp.sum(~usable).astype(jnp.int32)


def train_compiled(*arguments: Any) -> tuple[Pupil, Scalar, Int[Array, ""]]:
    """The same as a program of its own, shared by all who train one rule at a time."""
    return _program(jax.default_backend())(*arguments)


@functools.cache
def _program(backend: str) -> Any:
    compiling: Any = eqx.filter_jit
    return compiling(train, compiler_options=_one_after_the_other(backend))


def _one_after_the_other(backend: str) -> dict[str, bool]:
    """On a processor, operations of a training step wait less for each other than for threads.

    Its many small operations take 61 microseconds as XLA spreads them over two cores, and 47 in
    order. An XLA that does not know the option is left alone.
    """
    options = {"xla_cpu_enable_concurrency_optimized_scheduler": False}
    if backend != "cpu":
        return {}
    try:
        jax.jit(lambda: 0, compiler_options=options).lower().compile()
    except jax.errors.JaxRuntimeError:
        return {}
    return options


@eqx.filter_jit
def enrol_compiled(rule: Rule, problem: Problem, material: Material, key: Array) -> Pupil:
    """A pupil that begins with the rule's own hyper."""
    return enrol(rule, problem, material, hyper_of(rule), key)


def merit(task: Task, rule: Rule, data: PriorSet) -> float:
    """How good a rule is on the prior set, in powers of ten of the loss: small is good.

    The mean of the logarithms, which sees the typical instance, and the logarithm of the mean,
    which sees the worst, count the same; so do a quarter of the horizon, half of it and all of
    it. Where training counts distances from known minima, so does this.
    """
    at = tuple(sorted({max(1, task.horizon // part) for part in (4, 2, 1)}))
    losses = task.losses(rule, data, at)
    minima = np.asarray(task.material(data).minima, np.float64)
    return merit_of(losses - minima[:, None], task.training.floor)


def merit_of(losses: Float[np.ndarray, "instance iteration"], floor: float) -> float:
    """The merit of losses at some iterations."""
    finite = np.where(np.isfinite(losses), np.maximum(losses, 0.0), 1e30) + floor
    typical, worst = np.mean(np.log10(finite), axis=0), np.log10(np.mean(finite, axis=0))
    found = float(np.mean((typical + worst) / 2))
    assert math.isfinite(found)
    return found


def hyper_at(rule: Rule, hyper: np.ndarray) -> Float[Array, " d"]:
    """A stored hyper in the precision of the rule."""
    return jnp.asarray(hyper, hyper_of(rule).dtype)
