"""Training steps on one hyper, and how good the rule has become.

Both stages that train use them: locating trains one rule, a population a batch of them.
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

from surestep.problem import PriorSet, Problem
from surestep.rules.base import Rule, hyper_of, with_hyper
from surestep.train.pieces import (
    Draws,
    differentiate_piece,
    draw_restarts,
    go_on,
    only_if,
    random_start,
)
from surestep.train.task import Task
from surestep.train.trajectory import Material, Trajectory

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
    trajectory = random_start(with_hyper(rule, hyper), problem, material.thetas, key)
    return Pupil(hyper, optax.scale_by_adam().init(hyper), trajectory)


def train(
    pupil: Pupil,
    rule: Rule,
    problem: Problem,
    material: Material,
    key: Array,
    rates: Float[Array, " step"],
    piece_length: int,
    horizon: int,
    restarts: Restarts,
) -> tuple[Pupil, Scalar, Int[Array, ""]]:
    """One step for each learning rate; also the mean objective, and how many steps were skipped.

    A step whose objective or gradient is not finite is skipped, and its trajectory given up.
    """
    keys = jax.random.split(key)
    draws = draw_restarts(keys, material.thetas, piece_length, horizon, rates.shape)
    optimizer = optax.scale_by_adam()

    def step(pupil: Pupil, drawn: tuple[Array, Draws]) -> tuple[Pupil, tuple[Scalar, Array]]:
        rate, draw = drawn
        piece = differentiate_piece(
            rule, problem, material, pupil.hyper, pupil.trajectory, piece_length
        )
        change: Any
        change, memory = optimizer.update(piece.gradient, pupil.optimizer)
        hyper, memory = only_if(
            piece.usable,
            (pupil.hyper - rate * change, memory),
            (pupil.hyper, pupil.optimizer),
        )
        if restarts == "fixed":
            draw = draw._replace(over=piece.end.age >= horizon)
        trajectory = go_on(rule, problem, material, hyper, piece, draw)
        return Pupil(hyper, memory, trajectory), (piece.objective, piece.usable)

    pupil, (objectives, usable) = jax.lax.scan(step, pupil, (rates, draws))
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
