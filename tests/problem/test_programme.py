"""Programmes: sets, residuals, and what arrays and functions are turned into."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st

from support.types import unchecked
from surestep.base.errors import ProblemError
from surestep.problem import ConstraintSet, instance, make_programme, working_precision
from surestep.problem.constraint_set import into_cone

RANDOM = np.random.default_rng(0)


def draw(key):
    return jax.random.normal(key, (4,))


def nearest(**changes):
    """The nearest point of a box, under one equality."""
    given = {
        "P": np.eye(4),
        "q": lambda theta: -theta,
        "A": np.vstack([np.ones((1, 4)), np.eye(4)]),
        "l": np.array([0.0, -1, -1, -1, -1]),
        "u": np.array([0.0, 1, 1, 1, 1]),
        "sample": draw,
    }
    return make_programme(**given | changes)


@given(st.lists(st.floats(-3, 3), min_size=1, max_size=5))
@settings(max_examples=200, deadline=None)
def test_the_nearest_point_of_a_cone_leaves_a_rest_that_is_polar_and_at_a_right_angle(values):
    """Moreau: `s - p` lies in the polar cone, and `p` and the rest are orthogonal."""
    s = np.array(values)
    p = np.asarray(into_cone(jnp.asarray(s)))
    rest = s - p
    assert p[0] >= np.linalg.norm(p[1:]) - 1e-6
    assert -rest[0] >= np.linalg.norm(rest[1:]) - 1e-6
    assert abs(p @ rest) <= 1e-5


def test_a_cones_projection_is_what_a_general_solver_finds():
    for _ in range(20):
        s = RANDOM.normal(size=4)
        found = scipy.optimize.minimize(
            lambda p, s=s: np.sum((p - s) ** 2),
            np.array([5.0, 0, 0, 0]),
            jac=lambda p, s=s: 2 * (p - s),
            constraints={"type": "ineq", "fun": lambda p: p[0] - np.sqrt(p[1:] @ p[1:] + 1e-16)},
            options={"ftol": 1e-14, "maxiter": 500},
        )
        with jax.enable_x64(True):
            np.testing.assert_allclose(into_cone(jnp.asarray(s)), found.x, atol=2e-5)


def test_support_is_the_largest_product_over_the_set():
    with jax.enable_x64(True):
        allowed = ConstraintSet(
            jnp.array([-1.0, -jnp.inf, 0.0, 0.0, 0.0]), jnp.array([2.0, 3.0, 1.0, 2.0, 3.0]), (3,)
        )
        points = np.stack(
            [
                np.asarray(allowed.project(jnp.asarray(z)))
                for z in 20 * RANDOM.normal(size=(4000, 5))
            ]
        )
        for y in ([1.0, 1.0, 2.0, 1.0, -1.0], [-2.0, 0.5, 1.0, 0.2, 0.3]):
            bound = float(allowed.support(jnp.asarray(y)))
            assert np.all(points @ y <= bound + 1e-9)
            assert np.max(points @ y) >= bound - 0.5
        assert np.isinf(allowed.support(jnp.array([1.0, -1.0, 0.0, 0.0, 0.0])))
        admissible = allowed.recede(jnp.array([1.0, -1.0, -1.0, 0.0, 0.0]))
        assert np.isfinite(allowed.support(admissible))


def test_the_loss_is_0_at_a_solution_and_is_the_largest_residual_elsewhere():
    problem = nearest(relative=0.0)
    theta = np.array([3.0, 0.2, -0.4, -0.1])
    found = scipy.optimize.minimize(
        lambda x: 0.5 * np.sum((x - theta) ** 2),
        np.zeros(4),
        jac=lambda x: x - theta,
        bounds=[(-1, 1)] * 4,
        constraints={"type": "eq", "fun": np.sum},
        options={"ftol": 1e-15},
    ).x
    with working_precision(problem):
        z = np.concatenate([[0.0], found])
        free = np.abs(found) < 1 - 1e-6
        common = np.mean((theta - found)[free])
        y = np.concatenate([[common], np.where(free, 0.0, theta - found - common)])
        point = {"x": jnp.asarray(found), "z": jnp.asarray(z), "y": jnp.asarray(y)}
        assert problem.loss(point, jnp.asarray(theta)) < 1e-6
        assert abs(problem.coefficients(jnp.asarray(theta)).gap(point)) < 1e-5
        moved = point | {"x": point["x"] + jnp.array([0.0, 0.0, 0.0, 0.25])}
        # The sum is off by 0.25, the gradient by 0.25, z by 0.25.
        assert problem.loss(moved, jnp.asarray(theta)) == pytest.approx(0.25, abs=1e-6)


def test_relative_residuals_are_those_of_osqp():
    problem = nearest(relative=1.0)
    with working_precision(problem):
        theta = jnp.asarray(RANDOM.normal(size=4))
        point = {name: jnp.asarray(RANDOM.normal(size=s)) for name, s in
                 {"x": 4, "z": 5, "y": 5}.items()}  # fmt: skip
        c = problem.coefficients(theta)
        a, x, y, z, q = (np.asarray(v) for v in
                         (c.matrix, point["x"], point["y"], point["z"], c.linear))  # fmt: skip
        top = max(np.abs(a @ x).max(), np.abs(z).max())
        primal = np.abs(a @ x - z).max() / (1 + top)
        terms = max(np.abs(x).max(), np.abs(a.T @ y).max(), np.abs(q).max())
        dual = np.abs(x + q + a.T @ y).max() / (1 + terms)
        normal = np.abs(z - np.clip(z + y, c.allowed.lower, c.allowed.upper)).max()
        expected = [primal, dual, normal / (1 + np.abs(z).max())]
        np.testing.assert_allclose(c.residuals(point, 1.0), expected, rtol=1e-12)
        assert problem.loss(point, theta) == pytest.approx(max(expected))


def test_what_no_theta_changes_is_found_and_equalities_are_too():
    problem = nearest(A=lambda theta: jnp.vstack([jnp.ones((1, 4)), jnp.eye(4)]))
    np.testing.assert_array_equal(problem.shared_matrix, np.vstack([np.ones((1, 4)), np.eye(4)]))
    assert problem.equalities == (0,)
    varying = nearest(A=lambda theta: jnp.vstack([theta[None], jnp.eye(4)]))
    assert varying.shared_matrix is None
    assert varying.shared_hessian is not None


def test_sparse_matrices_and_the_conic_form_say_the_same():
    sparse = nearest(A=scipy.sparse.csr_matrix(np.vstack([np.ones((1, 4)), np.eye(4)])))
    stacked = np.vstack([np.ones((1, 4)), np.eye(4), -np.eye(4)])
    conic = nearest(
        A=stacked, l=None, u=None, b=np.array([0.0, *np.ones(8)]),
        cones={"zero": 1, "nonnegative": 8},
    )  # fmt: skip
    assert sparse.equalities == conic.equalities == (0,)
    with working_precision(conic):
        allowed = conic.coefficients(jnp.zeros(4)).allowed
        np.testing.assert_array_equal(allowed.lower, [0.0, *np.full(8, -np.inf)])
        np.testing.assert_array_equal(allowed.upper, [0.0, *np.ones(8)])


def test_cones_may_stand_beside_bounds_on_both_sides():
    """The nearest point to 0 with `1 <= x[0] <= 2` in a ball around theta."""
    a = np.vstack([np.eye(3)[:1], np.zeros((1, 3)), -np.eye(3)])
    problem = nearest(
        P=np.eye(3), q=np.zeros(3), A=a, l=np.array([1.0, 0, 0, 0, 0]),
        u=lambda theta: jnp.concatenate([jnp.array([2.0, 5.0]), -theta[:3]]),
        cones={"second_order": 4},
    )  # fmt: skip
    assert problem.cones == (4,)
    with working_precision(problem):
        c = problem.coefficients(jnp.zeros(4))
        inside, above = jnp.array([1.5, 3.0, 0.0]), jnp.array([2.5, 5.0, 0.0])
        assert float(c.violation(inside)) == 0
        # Beyond the bound by 0.5, and a little out of the ball.
        assert float(c.violation(above)) == pytest.approx(0.5)
        assert float(c.violation(jnp.array([1.5, 6.0, 0.0]))) > 0.1


def test_recorded_instances_are_dealt_as_for_any_problem():
    problem = nearest(sample=None, thetas=RANDOM.normal(size=(100, 4)))
    assert problem.drawable == 100  # pyright: ignore
    assert instance(problem.stock, 0).shape == (4,)  # pyright: ignore


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"sample": None}, "say where instances come from"),
        ({"P": -np.eye(4)}, "positive semidefinite: its smallest eigenvalue is -1"),
        ({"P": np.eye(3)}, r"P has the shape \(3, 3\), not \(4, 4\)"),
        ({"q": np.zeros(3)}, r"q has the shape \(3,\)"),
        ({"A": np.ones(4)}, "A must be a matrix"),
        ({"l": np.full(5, 2.0)}, "l is above u in row 0 of instance 0"),
        ({"l": None}, "bounds l and u, or b and cones"),
        ({"b": np.zeros(5)}, "needs both b and cones"),
        ({"cones": {"zero": 5}}, "beside l and u cones are second_order"),
        ({"b": np.zeros(5), "cones": {"zero": 5}}, "either the bounds l and u, or b"),
        ({"l": None, "u": None, "b": np.zeros(5), "cones": {"zero": 4}}, "4 rows"),
        ({"l": None, "u": None, "b": np.zeros(5), "cones": {"exp": 5}}, "not exp"),
        ({"q": None}, "needs q and A"),
        ({"relative": -1.0}, "relative must be at least 0"),
        ({"precision": "float16"}, "precision must be"),
    ],
)
@unchecked()
def test_what_cannot_be_is_refused_in_words(changes, words):
    with pytest.raises(ProblemError, match=words):
        nearest(**changes)
