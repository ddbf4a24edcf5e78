"""A small network that predicts solutions, fitted to instances that a good candidate has solved.

A family that can be drawn from has as many instances for it as there is time to solve. They come
from the prior set's own stream, after those that were surveyed, so no other set sees them.
"""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float

from surestep.auto.candidates import Candidate
from surestep.auto.survey import Survey
from surestep.base.clock import Stopwatch
from surestep.problem import (
    PriorSet,
    Problem,
    StockedProblem,
    Theta,
    count,
    instance,
    working_precision,
)
from surestep.rollout.program import Program
from surestep.rules import Fixed, NetworkStart
from surestep.rules.predicted import features_of

_MOST, _LEAST = 4096, 512  # instances that a network is fitted to
_WIDE, _NUMBERS = 64, 200_000  # of the hidden layer; most weights of the affine part
_STEPS, _CALLS, _BATCH, _RATE = 500, 5, 256, 3e-3
_RIDGE = 1e-3
_LONGER = 2  # so many times the iterations that suffice are made for solutions


class _Solved(NamedTuple):
    """Instances as features, and how far from the start their solutions are."""

    features: Float[np.ndarray, "instance feature"]
    moves: Float[np.ndarray, "instance n"]


def from_network(
    problem: Problem,
    found: Survey,
    seed: int,
    candidate: Candidate,
    program: Program,
    iterations: int,
    seconds: float,
) -> Candidate | None:
    """A candidate from a network's start; None if there is too little to fit one to, or no time.

    - `program`, `iterations`: what solves the instances, and after how many iterations it has.
    - `seconds`: what solving them and fitting the network may take.
    """
    watch = Stopwatch()
    with working_precision(problem):
        form = jax.eval_shape(features_of, jax.eval_shape(problem.sample, jax.random.key(0)))
        if not form.size or form.size * found.dimension > _NUMBERS:
            return None
        solved = _solve(problem, found, seed, program, _LONGER * iterations, 0.4 * seconds)
        if solved is None:
            return None
        rule = _fitted(candidate, problem, found, solved, watch, seconds)
    name = f"{candidate.name}, start by a network"
    return dataclasses.replace(candidate, name=name, rule=rule, classical=False, variants=())


def _solve(
    problem: Problem, found: Survey, seed: int, program: Program, iterations: int, seconds: float
) -> _Solved | None:
    known = len(found.minima)
    most = known + _MOST
    if isinstance(problem, StockedProblem):
        most = min(most, problem.available("PriorSet"))
    size = program.block  # the programs for such a batch are compiled already
    if most - known < _LEAST:
        return None
    thetas = jax.tree.map(np.asarray, PriorSet.draw(problem, most, seed).thetas)
    watch, features, moves = Stopwatch(), [], []
    for first in range(known, most - size + 1, size):
        some = instance(thetas, slice(first, first + size))
        ended = program.solve(some, iterations, None)
        away, seen = _seen(problem, some, ended.x)
        good = np.isfinite(ended.loss)
        features.append(seen[good])
        moves.append(away[good])
        made = first + size - known
        if watch.seconds > seconds or watch.seconds / made * _LEAST > seconds:
            break
    whole = _Solved(np.concatenate(features), np.concatenate(moves))
    return whole if len(whole.moves) >= _LEAST else None


def _seen(problem: Problem, thetas: Theta, points: Any) -> tuple[np.ndarray, np.ndarray]:
    starts = jax.tree.leaves(jax.vmap(problem.start)(thetas))
    rows = count(thetas)
    away = [
        np.reshape(np.asarray(x, np.float64) - np.asarray(start), (rows, -1))
        for x, start in zip(jax.tree.leaves(points), starts, strict=True)
    ]
    return np.concatenate(away, 1), np.asarray(jax.vmap(features_of)(thetas), np.float64)


def _fitted(
    candidate: Candidate,
    problem: Problem,
    found: Survey,
    solved: _Solved,
    watch: Stopwatch,
    seconds: float,
) -> NetworkStart:
    """The affine part by least squares, the network by descent on what that leaves."""
    middle, spread = np.mean(solved.features, 0), np.std(solved.features, 0)
    spread = np.where(spread > 0, spread, 1.0)
    scaled = (solved.features - middle) / spread
    ones = np.concatenate([scaled, np.ones((len(scaled), 1))], 1)
    square = ones.T @ ones + _RIDGE * len(ones) * np.eye(ones.shape[1])
    square[-1, -1] -= _RIDGE * len(ones)
    affine = np.linalg.solve(square, ones.T @ solved.moves)
    rest = solved.moves - ones @ affine
    unit = float(np.std(rest)) or 1.0
    network = _descend(scaled, rest / unit, watch, seconds)
    inner, thresholds, outer = (np.asarray(part, np.float64) for part in network)
    # Middle and spread become part of the weights.
    weights, inner = affine[:-1].T / spread, inner.T / spread
    arrays = (
        affine[-1] - weights @ middle,
        weights,
        inner,
        thresholds - inner @ middle,
        unit * outer.T,
    )
    fixed = [Fixed(jnp.asarray(array, problem.precision)) for array in arrays]
    return NetworkStart(candidate.rule, *fixed, prox_step=1 / found.smoothness)


def _descend(
    features: np.ndarray, moves: np.ndarray, watch: Stopwatch, seconds: float
) -> tuple[Array, Array, Array]:
    with jax.enable_x64(False):
        data = jnp.asarray(features, jnp.float32), jnp.asarray(moves, jnp.float32)
        size = features.shape[1]
        inner = jax.random.normal(jax.random.key(0), (size, _WIDE)) * (2 / size) ** 0.5
        weights = (inner, jnp.zeros(_WIDE), jnp.zeros((_WIDE, moves.shape[1])))
        memory = _optimizer().init(weights)
        for call in range(_CALLS):
            weights, memory = _descended(weights, memory, data, jax.random.key(call + 1))
            if watch.seconds > seconds:
                break
        return weights


def _optimizer() -> optax.GradientTransformation:
    return optax.adam(optax.cosine_decay_schedule(_RATE, _CALLS * _STEPS))


@jax.jit
def _descended(weights: Any, memory: Any, data: tuple[Array, Array], key: Array) -> Any:
    features, moves = data

    def error(weights: Any, chosen: Array) -> Array:
        inner, thresholds, outer = weights
        predicted = jax.nn.relu(features[chosen] @ inner + thresholds) @ outer
        return jnp.mean((predicted - moves[chosen]) ** 2)

    def step(carry: Any, key: Array) -> tuple[Any, None]:
        weights, memory = carry
        chosen = jax.random.randint(key, (_BATCH,), 0, len(moves))
        change, memory = _optimizer().update(jax.grad(error)(weights, chosen), memory)
        return (optax.apply_updates(weights, change), memory), None

    return jax.lax.scan(step, (weights, memory), jax.random.split(key, _STEPS))[0]
