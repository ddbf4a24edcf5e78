"""Newton's and Gauss-Newton's methods against steps that are made by hand."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from surestep.base.errors import ConfigurationError
from surestep.problem.base import Problem
from surestep.problem.draw import working_precision
from surestep.problem.oracle import Oracle
from surestep.rollout.loop import rollout
from surestep.rules import (
    Fixed,
    GaussNewton,
    HeavyBall,
    LearnedHeavyBall,
    MetricQuasiNewton,
    Newton,
    NewtonCG,
)
from surestep.rules import SinglePrecisionQuasiNewton as Single
from surestep.rules.quasi_newton import AbstractQuasiNewton

RNG = np.random.default_rng(1)
FEATURES = RNG.normal(size=(40, 6))


def logistic(x, theta):
    scores = FEATURES @ x
    return jnp.mean(jnp.logaddexp(0.0, scores) - theta * scores) + 0.05 * jnp.sum(x**2)


def fit(x, theta):
    return 0.5 * jnp.sum((jnp.exp(0.1 * FEATURES @ x) - theta) ** 2)


def labels(key):
    return (jax.random.uniform(key, (40,)) < 0.5).astype(float)


def outcomes(key):
    return 1 + 0.2 * jax.random.normal(key, (40,))


LOGISTIC = Problem.of(logistic, np.zeros(6), sample=labels)
FIT = Problem.of(fit, np.zeros(6), sample=outcomes)


def iterates(rule, problem, number):
    """The points of a rollout, one by one."""
    with working_precision(problem):
        theta = problem.sample(jax.random.key(0))
        oracle = Oracle(problem, theta)
        rule = rule.prepare()
        state = rule.init(oracle, oracle.start)
        found = []
        for _ in range(number):
            state = rule.step(Oracle(problem, theta), state)
            found.append(np.asarray(state.x))
        return found, lambda x: problem.loss(x, theta)


def minimum(loss):
    """By Newton steps in NumPy's arithmetic."""
    x = np.zeros(6)
    for _ in range(30):
        x = x - np.linalg.solve(np.asarray(jax.hessian(loss)(x)), np.asarray(jax.grad(loss)(x)))
    return x


@pytest.mark.parametrize("inner", [6, 9])
def test_enough_conjugate_gradients_are_newtons_step(inner):
    with jax.enable_x64(True):
        found, loss = iterates(NewtonCG(inner), LOGISTIC, 3)
        x = np.zeros(6)
        for point in found:
            x = x - np.linalg.solve(np.asarray(jax.hessian(loss)(x)), np.asarray(jax.grad(loss)(x)))
            np.testing.assert_allclose(point, x, rtol=1e-7, atol=1e-10)


def test_a_good_metric_needs_one_conjugate_gradient():
    with jax.enable_x64(True):
        _, loss = iterates(NewtonCG(1), LOGISTIC, 1)
        least = minimum(loss)
        inverse = np.linalg.inv(np.asarray(jax.hessian(loss)(least)))
        ends = {}
        for name, metric in {"none": None, "good": Fixed(jnp.asarray(inverse))}.items():
            ends[name] = iterates(NewtonCG(1, metric), LOGISTIC, 4)[0][-1]
        error = {name: np.linalg.norm(end - least) for name, end in ends.items()}
        assert error["good"] < 1e-4 < 1e-2 * 10 * error["none"]
        diagonal = Fixed(jnp.asarray(np.diag(inverse)))
        assert np.isfinite(iterates(NewtonCG(2, diagonal), LOGISTIC, 3)[0][-1]).all()


def test_a_loss_that_bends_downwards_is_followed_downhill():
    hill = Problem.of(
        lambda x, theta: jnp.sum(jnp.cos(x)) + 0.0 * theta[0], np.full(3, 0.3), sample=labels,
        lower=None,
    )  # fmt: skip
    with jax.enable_x64(True):
        found, loss = iterates(NewtonCG(3), hill, 1)
        assert loss(jnp.asarray(found[0])) < loss(jnp.full(3, 0.3))


def test_at_a_minimum_nothing_moves():
    bowl = Problem.of(lambda x, theta: jnp.sum(x**2) + 0 * theta[0], np.zeros(3), sample=labels)
    with jax.enable_x64(True):
        for rule in (NewtonCG(3), NewtonCG(3, squares=True), Newton(), Newton(False, 3)):
            np.testing.assert_array_equal(iterates(rule, bowl, 2)[0][-1], 0.0)


def test_gauss_newton_is_a_sequence_of_least_squares():
    with jax.enable_x64(True):
        found, _ = iterates(GaussNewton(0.0), FIT, 4)
        large = iterates(NewtonCG(9, squares=True), FIT, 4)[0]
        theta = np.asarray(FIT.sample(jax.random.key(0)))
        x = np.zeros(6)
        for point, other in zip(found, large, strict=True):
            values = np.exp(0.1 * FEATURES @ x)
            jacobian = 0.1 * values[:, None] * FEATURES
            x = x - np.linalg.lstsq(jacobian, values - theta, rcond=None)[0]
            np.testing.assert_allclose(point, x, rtol=1e-9, atol=1e-12)
            np.testing.assert_allclose(other, x, rtol=1e-6, atol=1e-9)
        damped = iterates(GaussNewton(0.5), FIT, 1)[0][0]
        assert np.linalg.norm(damped) < 0.8 * np.linalg.norm(found[0])


def test_gauss_newton_refuses_a_loss_that_is_no_sum_of_squares():
    with pytest.raises(ConfigurationError, match="sum of squares"):
        iterates(GaussNewton(), LOGISTIC, 1)


def test_pairs_correct_the_hessian_of_the_start():
    with jax.enable_x64(True):
        found, loss = iterates(Newton(False, 3), FIT, 12)
        chord, _ = iterates(Newton(False), FIT, 12)
        least = minimum(loss)
        np.testing.assert_allclose(found[0], chord[0], rtol=1e-12)
        error, before = (np.linalg.norm(x[-1] - least) for x in (found, chord))
        assert error < 1e-8 and error < before
    for wrong in ({"anew": True, "pairs": 2}, {"anew": False, "pairs": -1}):
        with pytest.raises(ConfigurationError, match="pairs"):
            Newton(**wrong)
    with pytest.raises(ConfigurationError, match="inner"):
        NewtonCG(0)


def test_gradients_are_counted():
    with working_precision(FIT):
        theta = FIT.sample(jax.random.key(0))
        for rule, wanted in (
            (NewtonCG(4), 3 * 5),
            (GaussNewton(), 3 * 7),
            (Newton(False, 3), 1 + 6 + 3),
        ):
            assert int(rollout(rule, FIT, theta, 3).gradients[-1]) == wanted


def test_a_prepared_metric_is_the_same_metric():
    with jax.enable_x64(True):
        root = jnp.asarray(RNG.normal(size=(6, 6)))
        rule = MetricQuasiNewton.of(root, first=0.1)
        v = jnp.asarray(RNG.normal(size=6))
        whole = rule.prepare()
        assert isinstance(whole, AbstractQuasiNewton)
        np.testing.assert_allclose(whole.metric(v), rule.metric(v), rtol=1e-12)
        fields = {f.name: getattr(rule, f.name) for f in dataclasses.fields(rule)}
        short = Single(**fields).prepare()
        assert isinstance(short, AbstractQuasiNewton)
        assert short.metric(v).dtype == jnp.float64
        np.testing.assert_allclose(short.metric(v), rule.metric(v), rtol=1e-4)
        assert np.any(np.asarray(short.metric(v)) != np.asarray(rule.metric(v)))
        flat = MetricQuasiNewton.of(jnp.ones(6))
        assert flat.prepare() is flat


def test_a_schedule_that_was_not_learned_is_the_heavy_ball():
    """And numbers that were are used in their iteration, the last for all later ones."""
    with jax.enable_x64(True):
        base = HeavyBall(0.3, 0.7)
        rule = LearnedHeavyBall.around(base, times=3)
        found, _ = iterates(rule, LOGISTIC, 6)
        np.testing.assert_allclose(found, iterates(base, LOGISTIC, 6)[0], rtol=1e-12)
        learned = LearnedHeavyBall(jnp.log(jnp.asarray([0.5, 0.1])), jnp.asarray([0.2, 5.0]))
        found, loss = iterates(learned, LOGISTIC, 3)
        x, before = np.zeros(6), np.zeros(6)
        for point, step, momentum in zip(found, (0.5, 0.1, 0.1), (0.2, 0.99, 0.99), strict=True):
            gradient = np.asarray(jax.grad(loss)(x))
            x, before = x - step * gradient + momentum * (x - before), x
            np.testing.assert_allclose(point, x, rtol=1e-12)
