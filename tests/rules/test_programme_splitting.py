"""ADMM for programmes, against iterations written out in NumPy and against other solvers."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize
import scipy.sparse
from jax.flatten_util import ravel_pytree

from surestep.base.errors import ConfigurationError
from surestep.problem import Oracle, make_problem, make_programme, working_precision
from surestep.rollout.loop import unwatched
from surestep.rules import ProgrammeADMM
from surestep.rules.base import hyper_of, missing_needs

RNG = np.random.default_rng(3)
N, EQUAL, FREE = 8, 2, 6
ROOT = RNG.normal(size=(N, N))
P = ROOT @ ROOT.T / N
A = RNG.normal(size=(EQUAL + FREE, N))
WIDTH = np.abs(A[EQUAL:] @ np.linalg.pinv(A[:EQUAL])).sum(axis=1)
Q = RNG.normal(size=N)


def right_side(key):
    return jax.random.uniform(key, (EQUAL,), minval=-1.0)


def bounds(theta, lowest):
    edge = -jnp.inf if lowest else 1.0
    return jnp.concatenate([theta, edge * jnp.asarray(WIDTH if edge == 1.0 else np.ones(FREE))])


QP = make_programme(
    P=P, q=Q, A=A, l=lambda t: bounds(t, True), u=lambda t: bounds(t, False),
    sample=right_side, relative=0.0,
)  # fmt: skip


def solved(problem, rule, theta, number):
    """Loss and point after so many iterations."""
    with working_precision(problem):
        theta = jnp.asarray(theta)
        ended = jax.jit(lambda t: unwatched(rule.prepare(), problem, t, number))(theta)
        unravel = ravel_pytree(problem.start(theta))[1]
        return float(ended.loss), jax.tree.map(np.asarray, unravel(ended.x))


def rule_of(problem, penalty=0.3, **changes):
    with working_precision(problem):
        theta = problem.sample(jax.random.key(0))
        return dataclasses.replace(ProgrammeADMM.of(problem, penalty, theta=theta), **changes)


def transcribed(theta, penalties, relaxations):
    """The method as in OSQP's paper (section 3), with one matrix of all conditions.

    Equalities have an infinite penalty and their proximal term is 0.
    """
    split = A[EQUAL:]
    kkt = np.block([
        [P, split.T, A[:EQUAL].T],
        [split, -np.diag(1 / penalties), np.zeros((FREE, EQUAL))],
        [A[:EQUAL], np.zeros((EQUAL, FREE + EQUAL))],
    ])  # fmt: skip
    z, y = np.zeros(FREE), np.zeros(FREE)
    for relaxation in relaxations:
        known = np.concatenate([-Q, z - y / penalties, theta])
        multiplier = np.linalg.solve(kkt, known)[N : N + FREE]
        image = z + (multiplier - y) / penalties
        mixed = relaxation * image + (1 - relaxation) * z
        inside = np.minimum(mixed + y / penalties, WIDTH)
        z, y = inside, y + penalties * (mixed - inside)
    return z, y


def test_iterates_are_those_of_the_method_as_published():
    penalties = RNG.uniform(0.1, 1.0, FREE)
    relaxations = np.array([1.8, 1.2, 1.6])
    with jax.enable_x64(True):
        rule = rule_of(
            QP, log_penalty=jnp.log(jnp.asarray(penalties)), relaxation=jnp.asarray(relaxations)
        )
        theta = np.array([0.3, -0.8])
        for number in (1, 2, 5, 9):
            steps = relaxations[np.minimum(np.arange(number), 2)]
            z, y = transcribed(theta, penalties, steps)
            point = solved(QP, rule, theta, number)[1]
            np.testing.assert_allclose(point["z"][EQUAL:], z, atol=1e-10)
            np.testing.assert_allclose(point["y"][EQUAL:], y, atol=1e-10)


def test_equalities_hold_and_multipliers_fit_in_every_iterate():
    theta = np.array([0.9, 0.1])
    with working_precision(QP):
        c = QP.coefficients(jnp.asarray(theta))
    for number in (0, 1, 7):
        point = solved(QP, rule_of(QP), theta, number)[1]
        np.testing.assert_allclose(A[:EQUAL] @ point["x"], theta, atol=1e-10)
        with working_precision(QP):
            assert float(c.residuals(point, 0.0)[2]) < 1e-12


def minimum(theta):
    """By SciPy's sequential quadratic programming."""
    return scipy.optimize.minimize(
        lambda x: 0.5 * x @ P @ x + Q @ x, np.linalg.pinv(A[:EQUAL]) @ theta,
        jac=lambda x: P @ x + Q, method="SLSQP", options={"ftol": 1e-15, "maxiter": 1000},
        constraints=[
            {"type": "eq", "fun": lambda x: A[:EQUAL] @ x - theta, "jac": lambda _: A[:EQUAL]},
            {"type": "ineq", "fun": lambda x: WIDTH - A[EQUAL:] @ x, "jac": lambda _: -A[EQUAL:]},
        ],
    ).fun  # fmt: skip


def test_it_converges_to_the_minimum_whatever_the_penalties():
    theta = np.array([-0.6, 0.7])
    with working_precision(QP):
        c = QP.coefficients(jnp.asarray(theta))
    least = minimum(theta)
    for penalty in (0.05, 0.5):
        loss, point = solved(QP, rule_of(QP, penalty), theta, 3000)
        with working_precision(QP):
            assert loss < 1e-9
            assert float(c.objective(point["x"])) == pytest.approx(least, abs=1e-6)
            assert abs(float(c.gap(point))) < 1e-7


def test_a_linear_programme_is_solved():
    problem = make_programme(
        q=lambda theta: theta, A=np.vstack([np.ones((1, 5)), np.eye(5)]),
        l=np.array([1.0, 0, 0, 0, 0, 0]), u=np.array([1.0, *np.full(5, np.inf)]),
        sample=lambda key: jax.random.normal(key, (5,)), relative=0.0,
    )  # fmt: skip
    theta = np.array([0.5, -0.3, 0.2, 1.0, 0.1])
    loss, point = solved(problem, rule_of(problem, 1.0), theta, 500)
    assert loss < 1e-8
    np.testing.assert_allclose(point["x"], [0, 1, 0, 0, 0], atol=1e-7)


def test_second_order_cones_are_solved():
    """The point of a ball around theta with the least first coordinate."""
    problem = make_programme(
        q=np.array([1.0, 0, 0]), A=np.vstack([np.zeros((1, 3)), -np.eye(3)]),
        b=lambda theta: jnp.concatenate([jnp.ones(1), -theta]), cones={"second_order": 4},
        sample=lambda key: jax.random.normal(key, (3,)), relative=0.0,
    )  # fmt: skip
    assert problem.cones == (4,)
    loss, point = solved(problem, rule_of(problem, 1.0), np.array([2.0, 1.0, -1.0]), 300)
    assert loss < 1e-8
    np.testing.assert_allclose(point["x"], [1.0, 1.0, -1.0], atol=1e-6)


def test_matrices_may_differ_from_instance_to_instance():
    rows = lambda theta: jnp.concatenate([theta[None], jnp.eye(4)])  # noqa: E731
    problem = make_programme(
        P=np.eye(4), q=-np.ones(4), A=rows, l=np.array([1.0, *np.zeros(4)]),
        u=np.array([1.0, *np.full(4, 5.0)]), relative=0.0,
        sample=lambda key: jax.random.uniform(key, (4,), minval=0.5, maxval=2.0),
    )  # fmt: skip
    with pytest.raises(ConfigurationError, match="of one instance"):
        ProgrammeADMM.of(problem)
    rule = rule_of(problem, 1.0)
    assert rule.hessian is None
    for theta in (np.array([1.0, 2.0, 0.5, 1.5]), np.array([0.6, 0.7, 1.9, 1.0])):
        loss, point = solved(problem, rule, theta, 500)
        least = scipy.optimize.minimize(
            lambda x: 0.5 * x @ x - x.sum(), np.full(4, 0.2), jac=lambda x: x - 1,
            bounds=[(0, 5)] * 4, constraints={"type": "eq", "fun": lambda x, t=theta: t @ x - 1},
            options={"ftol": 1e-15},
        )  # fmt: skip
        assert loss < 1e-8
        np.testing.assert_allclose(point["x"], least.x, atol=1e-6)


def test_equalities_that_follow_from_others_are_split_off():
    twice = np.vstack([A[:EQUAL], A[0] + A[1], A[EQUAL:]])
    more = lambda b: jnp.concatenate([b[:EQUAL], b[:1] + b[1:EQUAL], b[EQUAL:]])  # noqa: E731
    problem = make_programme(
        P=P, q=Q, A=twice, l=lambda t: more(bounds(t, True)), u=lambda t: more(bounds(t, False)),
        sample=right_side, relative=0.0,
    )  # fmt: skip
    rule = rule_of(problem)
    assert problem.equalities == (0, 1, 2)
    assert len(rule.equal) == EQUAL
    loss, point = solved(problem, rule, np.array([0.4, 0.2]), 3000)
    reference = solved(QP, rule_of(QP), np.array([0.4, 0.2]), 3000)[1]
    assert loss < 1e-8
    np.testing.assert_allclose(point["x"], reference["x"], atol=1e-6)


def test_programmes_without_equalities_and_without_anything_else():
    box = make_programme(
        P=np.eye(3), q=lambda t: -t, A=np.eye(3), l=-np.ones(3), u=np.ones(3), sample=draw_three
    )
    loss, point = solved(box, rule_of(box, 1.0), np.array([2.0, 0.5, -3.0]), 100)
    assert loss < 1e-10
    np.testing.assert_allclose(point["x"], [1, 0.5, -1], atol=1e-9)
    plane = make_programme(
        P=np.eye(3),
        q=lambda t: -t,
        A=np.ones((1, 3)),
        l=np.ones(1),
        u=np.ones(1),
        sample=draw_three,
    )
    loss, point = solved(plane, rule_of(plane, 1.0), np.array([1.0, 2.0, 4.0]), 0)
    np.testing.assert_allclose(point["x"], np.array([1.0, 2.0, 4.0]) - 2, atol=1e-12)
    assert loss < 1e-12


def draw_three(key):
    return jax.random.normal(key, (3,))


def test_an_iteration_in_a_batch_is_one_product_and_no_matrix_is_copied():
    with working_precision(QP):
        rule = rule_of(QP).prepare()
        thetas = jax.vmap(right_side)(jax.random.split(jax.random.key(0), 16))

        def one(theta):
            oracle = Oracle(QP, theta)
            state = rule.init(oracle, oracle.start)
            return jax.lax.fori_loop(0, 5, lambda _, s: rule.step(Oracle(QP, theta), s), state).sum

        text = jax.jit(jax.vmap(one)).lower(thetas).as_text()
        loop = text[text.index("stablehlo.while") :]
        assert loop.count("stablehlo.dot_general") == 1
        assert f"16x{FREE}x{FREE}" not in text


def test_single_precision_of_products_ends_near_the_same_point():
    theta = np.array([0.4, 0.2])
    exact = solved(QP, rule_of(QP), theta, 300)[1]
    loss, point = solved(QP, rule_of(QP, single=True), theta, 300)
    assert loss < 1e-5
    np.testing.assert_allclose(point["x"], exact["x"], atol=1e-5)


def test_what_is_learned_are_penalties_and_relaxations():
    assert hyper_of(rule_of(QP)).shape == (2,)
    assert hyper_of(rule_of(QP, log_penalty=jnp.zeros(FREE))).shape == (FREE + 1,)


def test_other_problems_are_told_what_is_missing():
    other = make_problem(lambda x, t: jnp.sum((x - t) ** 2), np.zeros(3), sample=draw_three)
    assert missing_needs(rule_of(QP), other) == ["the coefficients of a Programme"]
