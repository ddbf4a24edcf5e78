"""ADMM behind an affine map: against NumPy, against SciPy, in files, and while it is trained."""

import dataclasses
import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import optimize

from surestep.base.errors import ConfigurationError
from surestep.base.keys import named_key
from surestep.problem import Oracle, Problem
from surestep.problem.draw import draw
from surestep.problem.structure import find_structure
from surestep.rollout.program import Program
from surestep.rules import FrontADMM, Started
from surestep.rules.base import hyper_of, solver_fingerprint, with_hyper
from surestep.solver.rule_data import pack, unpack

RANDOM = np.random.default_rng(1)
ROWS, N = 14, 5
MATRIX = RANDOM.normal(size=(ROWS, N))
HARD, EFFORT = 7.0, 0.3


def huber(x, theta):
    rest = MATRIX @ x - theta
    size = jnp.abs(rest)
    return jnp.sum(jnp.where(size < 1, rest**2 / 2, size - 0.5))


def hinge(x, theta):
    """Squares with soft bounds, and an effort that is no more than a square."""
    image = MATRIX @ x - theta
    beyond = jnp.maximum(jnp.abs(image) - 1.0, 0.0)
    effort = jnp.sum((x - theta[:N]) ** 2)
    return 0.5 * (jnp.sum(image**2) + HARD * jnp.sum(beyond**2) + EFFORT * effort)


def logistic(x, theta):
    return jnp.sum(jnp.logaddexp(0.0, -jnp.sign(theta) * (MATRIX @ x))) + 0.1 * jnp.sum(x**2)


def two_sided(x, theta):
    """Every row is there three times, with other signs and offsets."""
    image = MATRIX @ x
    above, below = jax.nn.relu(image - theta), jax.nn.relu(-2 * image - 1.0)
    return jnp.sum(above**2 + below**2 + jnp.sqrt(1 + image**2))


LOSSES = {"Huber": huber, "hinge": hinge, "logistic": logistic, "two-sided": two_sided}


def problem_of(loss, precision: Any = "float64") -> Problem:
    return Problem.of(
        loss,
        np.zeros(N),
        sample=lambda key: 2 * jax.random.normal(key, (ROWS,), precision),
        precision=precision,
    )


def front_of(problem) -> Any:
    return find_structure(problem, draw(problem, 8, named_key(0, "front"))).front


def points(rule, problem, theta, number):
    """The point after every iteration."""
    oracle = Oracle(problem, theta)
    state, found = rule.init(oracle, jnp.asarray(oracle.start)), []
    for _ in range(number):
        state = rule.step(Oracle(problem, theta), state)
        found.append(np.asarray(state.x))
    return np.stack(found)


def in_numpy(theta, penalties, relaxation, number, kept, prox, slope, effort):
    """Textbook ADMM: squares of weight `kept` and an effort stay with x, the rest is split off."""
    s = -theta
    w = (slope(s) - kept * s) / penalties
    square = MATRIX.T @ ((penalties + kept)[:, None] * MATRIX) + effort * np.eye(N)
    found = []
    for _ in range(number):
        right = MATRIX.T @ (penalties * (s - w + theta) + kept * theta) + effort * theta[:N]
        x = np.linalg.solve(square, right)
        mixed = relaxation * (MATRIX @ x - theta) + (1 - relaxation) * s + w
        s = prox(mixed, penalties)
        w = mixed - s
        found.append(x)
    return np.stack(found)


def huber_prox(v, rho):
    return np.where(np.abs(v) <= 1 + 1 / rho, rho * v / (1 + rho), v - np.sign(v) / rho)


def hinge_prox(v, rho):
    inside = np.clip(v, -1, 1)
    return inside + rho / (rho + HARD) * (v - inside)


def hinge_slope(s):
    return s + HARD * (s - np.clip(s, -1, 1))


TEXTBOOK = {
    "Huber": (0.0, huber_prox, lambda s: np.clip(s, -1, 1), 0.0),
    "hinge": (1.0, hinge_prox, hinge_slope, EFFORT),
}


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("name", TEXTBOOK)
def test_iterates_are_those_of_the_textbook(name, wide):
    problem, theta = problem_of(LOSSES[name]), 2 * RANDOM.normal(size=ROWS)
    logs = 0.5 * RANDOM.normal(size=ROWS) if wide else np.zeros(ROWS)
    rule = FrontADMM.of(front_of(problem), 1.0, 1.7, newton=12)
    if wide:
        rule = dataclasses.replace(rule, log_penalty=jnp.asarray(logs))
    kept, prox, slope, effort = TEXTBOOK[name]
    wanted = in_numpy(theta, np.exp(logs), 1.7, 15, kept, prox, slope, effort)
    for one in (rule, rule.prepare()):
        np.testing.assert_allclose(points(one, problem, theta, 15), wanted, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize(("penalty", "guarded"), [(0.05, True), (1.0, True), (1.0, False)])
@pytest.mark.parametrize("name", LOSSES)
def test_it_ends_where_scipy_ends(name, penalty, guarded):
    problem = problem_of(LOSSES[name])
    rule = FrontADMM.of(front_of(problem), penalty, guarded=guarded)
    thetas = draw(problem, 3, named_key(1, "front"))
    solved = Program.of(rule, problem, 1).solve(thetas, 2000, None)
    both = jax.jit(jax.value_and_grad(LOSSES[name]))
    for theta, value in zip(np.asarray(thetas), solved.loss, strict=True):
        wanted = optimize.minimize(
            lambda x, theta=theta: [np.asarray(one) for one in both(x, theta)],
            np.zeros(N),
            jac=True,
            method="BFGS",
            options={"gtol": 1e-9},
        )
        assert value <= wanted.fun + 1e-9 * (1 + abs(wanted.fun))


def test_one_gradient_is_counted_for_an_iteration():
    problem = problem_of(huber)
    oracle, rule = Oracle(problem, np.ones(ROWS)), FrontADMM.of(front_of(problem), 1.0)
    state = rule.init(oracle, jnp.zeros(N))
    assert oracle.spent() == (1, 0)
    rule.step(oracle, state)
    assert oracle.spent() == (2, 0)


@pytest.mark.parametrize("name", ["hinge", "two-sided"])
def test_its_derivatives_are_those_of_differences(name):
    problem, theta = problem_of(LOSSES[name]), 2 * RANDOM.normal(size=ROWS)
    rule = FrontADMM.of(front_of(problem), 0.7, newton=12)

    @jax.jit
    def end(hyper):
        moved = with_hyper(rule, hyper)
        state = moved.init(Oracle(problem, theta), jnp.zeros(N))
        for _ in range(4):
            state = moved.step(Oracle(problem, theta), state)
        return LOSSES[name](state.x, theta)

    hyper = np.asarray(hyper_of(rule))
    slope = np.asarray(jax.grad(end)(hyper))
    for place in range(2):
        step = 1e-6 * np.eye(2)[place]
        wanted = (end(hyper + step) - end(hyper - step)) / 2e-6
        np.testing.assert_allclose(slope[place], wanted, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("name", ["hinge", "two-sided"])
def test_it_comes_back_from_a_file_and_goes_on_as_before(name):
    problem = problem_of(LOSSES[name])
    rule = FrontADMM.of(front_of(problem), 0.4)
    packed = pack(rule)
    found = unpack(json.loads(json.dumps(packed.data)), packed.arrays, "file")
    assert solver_fingerprint(found) == solver_fingerprint(rule)
    # The loss is traced anew, from functions that are other objects.
    again = problem_of(lambda x, theta: 1.0 * LOSSES[name](x, theta))
    theta = RANDOM.normal(size=ROWS)
    np.testing.assert_array_equal(points(found, again, theta, 3), points(rule, problem, theta, 3))


def test_another_loss_is_refused():
    rule = FrontADMM.of(front_of(problem_of(huber)), 1.0)
    with pytest.raises(ConfigurationError, match="14 numbers"):
        rule.init(Oracle(problem_of(hinge), np.ones(ROWS)), jnp.zeros(N))


def test_single_precision_stays_single():
    problem = problem_of(
        lambda x, theta: jnp.sum(jnp.sqrt(1 + (MATRIX.astype("float32") @ x - theta) ** 2)),
        "float32",
    )
    with jax.enable_x64(False):
        rule = FrontADMM.of(front_of(problem), 0.5, kind="float32")
        oracle = Oracle(problem, np.ones(ROWS, "float32"))
        state = rule.step(oracle, rule.init(oracle, jnp.zeros(N, "float32")))
        assert {leaf.dtype for leaf in jax.tree.leaves(state)} == {np.dtype("float32")}


def test_the_check_sees_the_loss_and_its_gradient():
    """Through the image they are the loss's own."""
    for problem in map(problem_of, (hinge, two_sided, logistic)):
        with jax.enable_x64(True):
            front = find_structure(problem, draw(problem, 8, named_key(0, "check"))).front
            assert front is not None
            rule = FrontADMM.of(front, front.typical).prepare()
            theta = problem.sample(jax.random.key(5))
            oracle = Oracle(problem, theta)
            state = rule.init(oracle, oracle.start)
            for _ in range(3):
                state = rule.step(Oracle(problem, theta), state)
            asked = Oracle(problem, theta)
            value, slope = rule.stationarity(asked, state, 1.0)
            wanted = Oracle(problem, theta).value_and_gradient(state.x)
            np.testing.assert_allclose(value, wanted[0], rtol=1e-12)
            np.testing.assert_allclose(slope, wanted[1], rtol=1e-9, atol=1e-10)
            assert asked.spent() == (1, 0)
            np.testing.assert_allclose(rule.loss(asked, state), wanted[0], rtol=1e-12)
            assert asked.spent() == (1, 1)
            # A rule around it knows the same way.
            started = Started(rule, jnp.zeros(N))
            again = started.stationarity(asked, state, 1.0)
            np.testing.assert_array_equal(again[1], slope)
