"""The survey of a family of programmes: solutions, a penalty, and a predictor of both."""

import dataclasses
import math
import time
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from surestep.auto.predictor import fit_predictor
from surestep.auto.survey import Survey
from surestep.base.clock import Stopwatch
from surestep.base.errors import ProblemError
from surestep.base.progress import Reporter, Silence
from surestep.problem import Oracle, PriorSet, Programme, Theta, count, instance, working_precision
from surestep.rules import ProgrammeADMM
from surestep.rules.base import with_hyper
from surestep.rules.predicted import features_of

_FEW = 8  # instances that penalties are compared on
_TRIAL = 60  # iterations that they are compared after
_PENALTIES = 10.0 ** np.arange(-3.0, 4.0)
"""In units of the curvature along a constraint's row."""
_PIECE = 100  # iterations between two looks
_MOST = 20_000
_EXACT = 1e-10  # a residual that counts as a solution
_SOLVED = 1e-5  # a residual that a survey can go on with
_LONGEST = 0.5  # seconds that one call may take


def survey_programme(
    problem: Programme,
    data: PriorSet,
    seconds: float = math.inf,
    report: Reporter | None = None,
) -> Survey:
    """Solve instances of a prior set by ADMM, with the penalty that suits them best.

    **Arguments:**

    - `problem`, `data`: the programme and the instances.
    - `seconds`: how long the solver may take.
    - `report`: where progress is told; by default nowhere.
    """
    watch, began = Stopwatch(), time.monotonic()
    told = (report or Silence()).stage("survey", data.size, "instances")
    with working_precision(problem), told as bar:
        rule, penalty = _with_best_penalty(problem, data.thetas)
        states = _begun(rule, problem, data.thetas)
        starts = np.asarray(_losses(rule, problem, data.thetas, states), np.float64)
        losses, made, pace = starts, 0, 0.0
        while made < _MOST and np.any(losses > _EXACT):
            piece = _PIECE if not pace else int(np.clip(_LONGEST / pace, 1, _PIECE))
            called = time.monotonic()
            states = _continued(rule, problem, data.thetas, states, jnp.asarray(piece))
            losses = np.asarray(_losses(rule, problem, data.thetas, states), np.float64)
            made, pace = made + piece, (time.monotonic() - called) / piece
            bar.advance(0, f"iteration {made}, largest residual {losses.max():.2g}")
            if time.monotonic() - began > seconds:
                break
        points = np.asarray(_points(rule, states), np.float64)
        good = np.isfinite(points).all(axis=1) & (losses <= _SOLVED)
        if good.sum() < max(2, data.size // 2):
            raise ProblemError(
                f"ADMM does not solve {int((~good).sum())} of {data.size} instances (largest "
                f"residual {losses.max():.2g} after {made} iterations): are they feasible and "
                "bounded, and are the coefficients of about the same size?"
            )
        bar.advance(data.size)
        fitted = math.ceil(2 * data.size / 3)
        good[fitted:] = False
        first = np.asarray(_starts(problem, data.thetas), np.float64)
        features = np.asarray(jax.vmap(features_of)(data.thetas), np.float64)
        moves = points - first
        unit = float(np.sqrt(np.mean(moves[good] ** 2))) or 1.0
        bias, weights, exponents = fit_predictor(features[good], moves[good] / unit)
    size = points.shape[1]
    return Survey(
        dimension=size, composite=False, smoothness=1 / penalty, starts=starts,
        minima=np.zeros(data.size), slopes=starts, root=np.ones(size), shape=(), bias=bias,
        weights=weights, exponents=exponents, unit=unit, sha256=data.sha256, fitted=fitted,
        seconds=watch.seconds, allowed=seconds, pace=pace / data.size,
        each=watch.seconds / data.size, drawing=0.0, data=data,
    )  # fmt: skip


def _with_best_penalty(problem: Programme, thetas: Theta) -> tuple[ProgrammeADMM, float]:
    """The penalty with which the typical residual is smallest after some iterations."""
    few = instance(thetas, np.arange(min(_FEW, count(thetas))))
    rule = ProgrammeADMM.of(problem, 1.0, theta=instance(thetas, 0))
    ends, penalties = [], _unit(problem, thetas) * _PENALTIES
    for penalty in penalties:
        tried = _tuned(rule, float(penalty))
        states = _continued(tried, problem, few, _begun(tried, problem, few), jnp.asarray(_TRIAL))
        residuals = np.asarray(_losses(tried, problem, few, states), np.float64)
        ends.append(np.median(np.where(np.isfinite(residuals), residuals, np.inf)))
    best = float(penalties[int(np.argmin(ends))])
    return _tuned(rule, best), best


def _unit(problem: Programme, thetas: Theta) -> float:
    """How large curvatures are beside the rows: penalties are about as large."""
    found = problem.coefficients(instance(thetas, 0))
    bent = float(jnp.mean(jnp.abs(jnp.diag(found.hessian))))
    rows = float(jnp.mean(jnp.sum(found.matrix**2, axis=1)))
    pull = float(jnp.max(jnp.abs(found.linear), initial=0.0))
    return (bent or 0.1 * pull or 1.0) / (rows or 1.0)


def _tuned(rule: ProgrammeADMM, penalty: float) -> ProgrammeADMM:
    hyper = jnp.asarray([math.log(penalty), float(rule.relaxation)], rule.relaxation.dtype)
    return dataclasses.replace(with_hyper(rule, hyper), matrices=None)


@eqx.filter_jit
def _begun(rule: ProgrammeADMM, problem: Programme, thetas: Theta) -> Any:
    prepared = rule.prepare()

    def one(theta: Theta) -> Any:
        oracle = Oracle(problem, theta)
        return prepared.init(oracle, oracle.start)

    return jax.vmap(one)(thetas)


@eqx.filter_jit
def _continued(
    rule: ProgrammeADMM, problem: Programme, thetas: Theta, states: Any, number: Array
) -> Any:
    prepared = rule.prepare()

    def one(theta: Theta, state: Any) -> Any:
        return jax.lax.fori_loop(
            0, number, lambda _, now: prepared.step(Oracle(problem, theta), now), state
        )

    return jax.vmap(one)(thetas, states)


@eqx.filter_jit
def _losses(
    rule: ProgrammeADMM, problem: Programme, thetas: Theta, states: Any
) -> Float[Array, " instance"]:
    prepared = rule.prepare()
    return jax.vmap(lambda theta, state: prepared.loss(Oracle(problem, theta), state))(
        thetas, states
    )


@eqx.filter_jit
def _points(rule: ProgrammeADMM, states: Any) -> Float[Array, "instance n"]:
    return jax.vmap(rule.prepare().point)(states)


@eqx.filter_jit
def _starts(problem: Programme, thetas: Theta) -> Float[Array, "instance n"]:
    return jax.vmap(lambda theta: ravel_pytree(problem.start(theta))[0])(thetas)
