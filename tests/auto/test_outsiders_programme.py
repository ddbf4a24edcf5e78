"""Solvers of other libraries bring our own residuals below the target, whatever they are called."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from surestep.auto.outsiders import outsiders
from surestep.auto.outsiders_programme import Clarabel, Osqp, Scs
from surestep.problem import make_problem, make_programme, working_precision

pytest.importorskip("osqp", reason="the extra `programmes` is not installed")
RNG = np.random.default_rng(5)
N, EQUAL, FREE = 10, 2, 8
ROOT = RNG.normal(size=(N, N))
P = ROOT @ ROOT.T / N + 0.1 * np.eye(N)
A = RNG.normal(size=(EQUAL + FREE, N))
LOW = np.array([*np.full(3, -np.inf), *np.full(FREE - 3, -0.3)])
HIGH = np.array([*np.full(5, 0.4), *np.full(FREE - 5, np.inf)])


def bounds(edge):
    return lambda t: jnp.concatenate([t["b"], jnp.asarray(edge)])


def draw(key):
    one, two = jax.random.split(key)
    return {"q": jax.random.normal(one, (N,)), "b": 0.1 * jax.random.normal(two, (EQUAL,))}


def quadratic(**changes):
    """Rows of all kinds: equalities, one bound, two bounds."""
    given = {
        "P": P, "q": lambda t: 3 * t["q"], "A": A, "l": bounds(LOW), "u": bounds(HIGH),
        "sample": draw,
    }  # fmt: skip
    return make_programme(**given | changes)


def conic():
    """The lowest point of the part of a ball around `q` that two half-spaces leave."""
    cut = RNG.normal(size=(2, 4))
    a = np.vstack([np.ones((1, 4)), cut, np.zeros((1, 4)), -np.eye(4)])
    return make_programme(
        P=np.diag([0.0, 0, 0, 1]), q=np.array([1.0, 0.5, 0, 0]), A=a,
        b=lambda t: jnp.concatenate([jnp.sum(t)[None], cut @ t + 0.1, jnp.ones(1), -t]),
        cones={"zero": 1, "nonnegative": 2, "second_order": 5},
        sample=lambda key: jax.random.normal(key, (4,)),
    )  # fmt: skip


def instances(problem, number=6):
    with working_precision(problem):
        return [
            jax.tree.map(np.asarray, problem.sample(key))
            for key in jax.random.split(jax.random.key(1), number)
        ]


@eqx.filter_jit
def compiled_loss(problem, point, theta):
    return problem.loss(point, theta)


def loss(problem, point, theta):
    with working_precision(problem):
        return float(compiled_loss(problem, jax.tree.map(jnp.asarray, point), theta))


PROBLEMS = {
    "shared matrices": quadratic(),
    "absolute residuals": quadratic(relative=0.0),
    "matrices of their own": quadratic(A=lambda t: jnp.asarray(A).at[3, 0].add(t["q"][0])),
    "cones": conic(),
}


@pytest.mark.parametrize("name", PROBLEMS)
def test_points_meet_the_target_on_our_own_measure(name):
    problem = PROBLEMS[name]
    found = outsiders(problem)
    quadratics = {"OSQP", "OSQP from the last solution"}
    assert set(found) == {"Clarabel", "SCS"} | (set() if name == "cones" else quadratics)
    for target in (1e-3, 1e-6):
        for theta in instances(problem):
            for solver in found.values():
                assert loss(problem, solver(theta, target, target), theta) <= target


@pytest.mark.parametrize("name", PROBLEMS)
def test_all_find_the_same_solution(name):
    problem = PROBLEMS[name]
    for theta in instances(problem, 2):
        points = [solver(theta, 1e-8, 1e-8) for solver in outsiders(problem).values()]
        for point in points[1:]:
            np.testing.assert_allclose(point["x"], points[0]["x"], atol=1e-5)
            np.testing.assert_allclose(point["y"], points[0]["y"], atol=1e-4)


def test_a_solver_is_set_up_once_where_matrices_are_shared(monkeypatch):
    for kind in (Osqp, Clarabel, Scs):
        made, set_up = [], kind._set_up

        def counted(self, *given, made=made, set_up=set_up):
            made.append(1)
            return set_up(self, *given)

        monkeypatch.setattr(kind, "_set_up", counted)
        solver = kind(PROBLEMS["shared matrices"])
        first = instances(PROBLEMS["shared matrices"])
        solver(first[0], 1e-4, 1e-4)
        before = len(made)
        for theta in first:
            solver(theta, 1e-4, 1e-4)
        assert before >= 1
        assert len(made) == before


def test_from_the_last_solution_fewer_iterations_are_needed():
    problem = PROBLEMS["shared matrices"]
    theta = instances(problem)[0]
    used = {}
    for warm in (False, True):
        solver = Osqp(problem, warm=warm)
        for _ in range(2):
            solver(theta, 1e-6, 1e-6)
        used[warm] = solver._solver.solve(raise_error=False).info.iter
    assert used[True] < used[False]


def test_a_point_that_misses_is_solved_again_with_a_tighter_tolerance(monkeypatch):
    problem = PROBLEMS["shared matrices"]
    solver, asked = Clarabel(problem), []
    theta, solved = instances(problem)[0], solver._solved

    def loose(found, rows, tolerance):
        asked.append(tolerance)
        x, y = solved(found, rows, tolerance)
        return (x + 1, y) if len(asked) == 1 else (x, y)

    monkeypatch.setattr(solver, "_solved", loose)
    assert loss(problem, solver(theta, 1e-4, 1e-4), theta) < 1e-4
    assert asked[1] == pytest.approx(asked[0] / 10)
    again = len(asked)
    solver(theta, 1e-4, 1e-4)
    assert asked[again] == asked[again - 1]


def test_without_constraints_those_who_can_solve_a_linear_system():
    problem = make_programme(
        P=P, q=lambda t: t["q"], A=np.zeros((0, N)), l=np.zeros(0), u=np.zeros(0), sample=draw
    )
    theta = instances(problem, 1)[0]
    found = outsiders(problem)
    assert set(found) == {"OSQP", "OSQP from the last solution", "Clarabel"}
    for solver in found.values():
        x = solver(theta, 1e-8, 1e-8)["x"]
        np.testing.assert_allclose(x, np.linalg.solve(P, -theta["q"]), atol=1e-6)


def test_other_problems_have_no_solvers_of_programmes():
    other = make_problem(
        lambda x, t: jnp.sum((x - t) ** 2), np.zeros(3), sample=lambda key: jnp.zeros(3)
    )
    assert outsiders(other) == {}
