"""CVXPY's problems as programmes, against CVXPY's own solutions and its own arithmetic."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from support.types import unchecked
from surestep.base.errors import ConfigurationError, ProblemError
from surestep.interop.cvxpy import from_cvxpy
from surestep.interop.cvxpy_reduction import Affine
from surestep.problem import count, instance, working_precision
from surestep.rollout.loop import unwatched
from surestep.rules import ProgrammeADMM

cp: Any = pytest.importorskip("cvxpy", reason="the extra `programmes` is not installed")
RNG = np.random.default_rng(7)


@dataclasses.dataclass(frozen=True)
class Family:
    """A CVXPY problem, how its parameters are drawn, and what its reduction should share."""

    problem: Any
    sample: Any
    penalty: float
    shares: tuple[bool, bool] = (True, True)
    """Whether `P` and `A` are the same on all instances."""


def portfolio():
    """Long-only, with a factor model of the risk, which is bounded on both sides by exposures."""
    assets, factors = 12, 3
    loads = RNG.normal(size=(assets, factors))
    returns = cp.Parameter(assets, name="returns")
    cap = cp.Parameter(name="cap", nonneg=True)
    w, f = cp.Variable(assets, name="w", nonneg=True), cp.Variable(factors, name="f")
    problem = cp.Problem(
        cp.Maximize(returns @ w - cp.sum_squares(f) - 0.1 * cp.sum_squares(w) + 2),
        [cp.sum(w) == 1, f == loads.T @ w, w <= cap],
    )

    def sample(key):
        one, two = jax.random.split(key)
        return {
            "returns": jax.random.normal(one, (assets,)),
            "cap": 0.2 + 0.3 * jax.random.uniform(two),
        }

    return Family(problem, sample, 1.0)


def lasso():
    matrix = RNG.normal(size=(15, 8))
    target, weight = cp.Parameter(15, name="target"), cp.Parameter(name="weight", pos=True)
    x = cp.Variable(8, name="x")
    problem = cp.Problem(
        cp.Minimize(0.5 * cp.sum_squares(matrix @ x - target) + weight * cp.norm1(x))
    )

    def sample(key):
        one, two = jax.random.split(key)
        return {
            "target": jax.random.normal(one, (15,)),
            "weight": 0.5 + jax.random.uniform(two),
        }

    return Family(problem, sample, 1.0)


def huber():
    matrix = RNG.normal(size=(20, 4))
    target = cp.Parameter(20, name="target")
    x = cp.Variable(4, name="x")
    problem = cp.Problem(cp.Minimize(cp.sum(cp.huber(matrix @ x - target, 0.5))))
    return Family(problem, lambda key: {"target": 2 * jax.random.normal(key, (20,))}, 1.0)


def control():
    """A double integrator under input and state limits; matrices of states in CVXPY's order."""
    steps = 6
    begin = cp.Parameter(2, name="begin")
    x, u = cp.Variable((2, steps + 1), name="x"), cp.Variable((1, steps), name="u")
    a, b = np.array([[1.0, 0.5], [0, 1]]), np.array([[0.1], [0.5]])
    problem = cp.Problem(
        cp.Minimize(cp.sum_squares(x) + 0.1 * cp.sum_squares(u)),
        [x[:, 0] == begin, x[:, 1:] == a @ x[:, :-1] + b @ u, u <= 1, u >= -1, x[1] >= -1.5],
    )
    return Family(problem, lambda key: {"begin": jax.random.uniform(key, (2,), minval=-1)}, 1.0)


def robust():
    """A linear objective under a norm whose matrix is a parameter."""
    price = cp.Parameter(5, name="price")
    spread = cp.Parameter((3, 5), name="spread")
    x = cp.Variable(5, name="x")
    problem = cp.Problem(
        cp.Maximize(price @ x),
        [cp.norm(spread @ x - 0.1, 2) <= 1 - cp.sum(x), x >= 0, x <= 0.5],
    )

    def sample(key):
        one, two = jax.random.split(key)
        return {
            "price": jax.random.uniform(one, (5,)),
            "spread": 0.5 * jax.random.normal(two, (3, 5)),
        }

    return Family(problem, sample, 0.3, (True, False))


def weighed():
    """Parameters in the quadratic part, symmetric and diagonal parameters and variables."""
    weight = cp.Parameter(name="weight", nonneg=True)
    tilt = cp.Parameter((3, 3), name="tilt", symmetric=True)
    along = cp.Parameter((3, 3), name="along", diag=True)
    s, d = cp.Variable((3, 3), name="s", symmetric=True), cp.Variable((3, 3), name="d", diag=True)
    problem = cp.Problem(
        cp.Minimize(weight * cp.sum_squares(s - d) + cp.sum_squares(s) + cp.sum(tilt @ s)),
        [cp.diag(d) >= 1, cp.sum(s) + cp.sum(along @ d) == 4, s <= 2, s >= -2],
    )

    def sample(key):
        one, two, three = jax.random.split(key, 3)
        root = jax.random.normal(one, (3, 3))
        return {
            "weight": jax.random.uniform(two),
            "tilt": root + root.T,
            "along": jnp.diag(jax.random.uniform(three, (3,))),
        }

    return Family(problem, sample, 1.0, (False, False))


FAMILIES = {made.__name__: made() for made in (portfolio, lasso, huber, control, robust, weighed)}
EACH = [
    name
    if name in ("portfolio", "control", "robust")
    else pytest.param(name, marks=pytest.mark.slow)
    for name in FAMILIES
]


@functools.cache
def solved(name):
    """A family's programme, two instances, and their points after many iterations of ADMM."""
    family = FAMILIES[name]
    programme: Any = from_cvxpy(family.problem, sample=family.sample, relative=0.0)
    with working_precision(programme):
        thetas = jax.vmap(programme.sample)(jax.random.split(jax.random.key(0), 2))
        rule = ProgrammeADMM.of(programme, family.penalty, theta=instance(thetas, 0))

        @jax.jit
        def ends(thetas):
            prepared = rule.prepare()
            return jax.vmap(lambda t: unwatched(prepared, programme, t, 4000))(thetas)

        ended = ends(thetas)
        unravel = ravel_pytree(programme.start(instance(thetas, 0)))[1]
        assert np.max(ended.loss) < 1e-8
        points = jax.tree.map(np.asarray, jax.vmap(unravel)(ended.x))
    return programme, [
        (jax.tree.map(np.asarray, instance(thetas, i)), instance(points, i)) for i in range(2)
    ]


def set_parameters(problem, theta):
    for parameter in problem.parameters():
        parameter.value = np.asarray(theta[parameter.name()])


@pytest.mark.parametrize("name", EACH)
def test_solutions_are_those_of_cvxpy_in_its_own_words(name):
    problem = FAMILIES[name].problem
    programme, ends = solved(name)
    shared = programme.shared_hessian is not None, programme.shared_matrix is not None
    assert shared == FAMILIES[name].shares
    for theta, point in ends:
        set_parameters(problem, theta)
        value = problem.solve(
            solver=cp.CLARABEL, tol_gap_abs=1e-11, tol_gap_rel=1e-11, tol_feas=1e-11
        )
        assert float(programme.objective(point, theta)) == pytest.approx(value, abs=1e-6)
        named = programme.named(point)
        for variable in problem.variables():
            expected = variable.value
            expected = expected.toarray() if hasattr(expected, "toarray") else expected
            np.testing.assert_allclose(named[variable.name()], expected, atol=2e-5)
        found = programme.multipliers(point)
        assert len(found) == len(problem.constraints)
        for constraint, dual in zip(problem.constraints, found, strict=True):
            np.testing.assert_allclose(dual, constraint.dual_value, atol=1e-4)


@pytest.mark.parametrize("name", EACH)
def test_value_and_violation_are_what_cvxpy_computes_from_the_variables(name):
    """By its expressions, without any reduction."""
    problem = FAMILIES[name].problem
    programme, ends = solved(name)
    theta, point = ends[1]
    set_parameters(problem, theta)
    for variable in problem.variables():
        variable.value = programme.named(point)[variable.name()]
    computed = problem.objective.value
    assert float(programme.objective(point, theta)) == pytest.approx(computed, abs=1e-7)
    for constraint in problem.constraints:
        assert np.max(constraint.violation()) < 1e-7


def test_many_points_are_read_at_once():
    programme, _ = solved("control")
    points = {"x": RNG.normal(size=(4, programme.sizes[0]))}
    thetas = {"begin": RNG.normal(size=(4, 2))}
    named, values = programme.named(points), programme.objective(points, thetas)
    assert named["x"].shape == (4, 2, 7)
    for i in range(4):
        one = {"x": points["x"][i]}
        np.testing.assert_array_equal(named["x"][i], programme.named(one)["x"])
        value = programme.objective(one, {"begin": thetas["begin"][i]})
        assert values[i] == pytest.approx(float(value))


def test_bounds_on_both_sides_are_one_row():
    programme, _ = solved("control")
    # 2 states at the start and 12 later are equalities; 6 inputs in [-1, 1]; 7 speeds from below.
    assert len(programme.equalities) == 14
    assert programme.sizes[1] == 14 + 6 + 7
    with working_precision(programme):
        allowed = programme.coefficients({"begin": jnp.zeros(2)}).allowed
    both = np.isfinite(allowed.lower[14:]) & np.isfinite(allowed.upper[14:])
    assert np.sum(both) == 6


def test_what_no_parameter_changes_is_an_array_and_instances_do_without_cvxpy(monkeypatch):
    programme, _ = solved("portfolio")
    reduction = programme.reduction
    kinds = {name: isinstance(getattr(reduction, name), Affine) for name in
             ("hessian", "linear", "constant", "matrix", "lower", "upper")}  # fmt: skip
    # The budget's side does not move, and of the weights' two bounds only the cap does.
    assert {name for name, moves in kinds.items() if moves} == {"linear", "lower"}
    monkeypatch.setattr(cp.Problem, "get_problem_data", None)
    with working_precision(programme):
        theta = programme.sample(jax.random.key(0))
        linear = np.asarray(programme.coefficients(theta).linear)
    assert np.sum(linear != 0) == 12


def test_cones_that_the_user_writes_have_no_multipliers_here():
    """Others' rows keep their places beside them."""
    p, x = cp.Parameter(2, name="p"), cp.Variable(2, name="x")
    twice = cp.SOC(cp.Constant([1.0, 2.0]), cp.vstack([x, 2 * x]).T)
    problem = cp.Problem(cp.Maximize(p @ x), [twice, x <= 0.1, cp.SOC(p[0] + 9, x)])
    programme: Any = from_cvxpy(problem, sample=two)
    assert programme.cones == (3, 3, 3)
    first, middle, last = programme.multipliers({"y": np.arange(11.0)})
    assert first is None
    assert last is None
    np.testing.assert_array_equal(middle, [0, 1])


def test_maps_with_many_entries_are_kept_sparse(monkeypatch):
    family, (dense, ends) = FAMILIES["robust"], solved("robust")
    with working_precision(dense):
        theta = jax.tree.map(jnp.asarray, ends[0][0])
        expected = dense.coefficients(theta)
    monkeypatch.setattr("surestep.interop.cvxpy_reduction._DENSE", 0)
    sparse = from_cvxpy(family.problem, sample=family.sample)
    with working_precision(sparse):
        found = jax.vmap(sparse.coefficients)(jax.tree.map(lambda t: jnp.stack([t, t]), theta))
    for one, other in zip(jax.tree.leaves(expected), jax.tree.leaves(found), strict=True):
        if other.ndim > one.ndim:
            np.testing.assert_allclose(other[1], one)


def test_recorded_instances_and_the_users_own_values_are_kept():
    family = FAMILIES["lasso"]
    target, weight = family.problem.parameters()
    if target.name() != "target":
        target, weight = weight, target
    target.value, weight.value = np.ones(15), 3.0
    thetas = {"target": RNG.normal(size=(80, 15)), "weight": RNG.uniform(0.5, 1, size=80)}
    programme: Any = from_cvxpy(family.problem, thetas=thetas, ordered=False)
    assert count(programme.stock) == programme.drawable == 80
    assert programme.named({"x": np.zeros(programme.sizes[0])})["x"].shape == (8,)
    np.testing.assert_array_equal(target.value, np.ones(15))
    assert weight.value == 3.0


def simple(objective=None, constraints=None, **kind):
    p, x = cp.Parameter(2, name="p", **kind), cp.Variable(2, name="x")
    made = objective(p, x) if objective else cp.sum_squares(x - p)
    return cp.Problem(cp.Minimize(made), constraints(p, x) if constraints else [x >= 0])


def two(key):
    return {"p": jax.random.normal(key, (2,))}


def named_twice():
    p, x = cp.Parameter(2, name="p"), cp.Variable(2, name="x")
    return cp.Problem(cp.Minimize(cp.sum_squares(x - p)), [cp.Variable(name="x") + x >= 0])


def boolean():
    p, x = cp.Parameter(2, name="p"), cp.Variable(2, name="x", boolean=True)
    return cp.Problem(cp.Minimize(p @ x), [x <= 1])


def sparse():
    p = cp.Parameter((2, 2), name="p", sparsity=[(0, 1), (0, 1)])
    return cp.Problem(cp.Minimize(cp.sum_squares(cp.Variable((2, 2), name="x") - p)))


def semidefinite():
    p, x = cp.Parameter(2, name="p"), cp.Variable((2, 2), name="x", PSD=True)
    return cp.Problem(cp.Minimize(cp.trace(x)), [cp.diag(x) >= p])


@pytest.mark.parametrize(
    ("problem", "given", "words"),
    [
        (np.zeros(3), {}, "must be a cvxpy.Problem, not ndarray"),
        (cp.Problem(cp.Minimize(cp.sum(cp.Variable(2)))), {}, "no cvxpy.Parameter"),
        (simple(lambda p, x: -cp.sum_squares(x - p)), {}, r"not convex by its rules \(DCP\): its"),
        (simple(constraints=lambda p, x: [cp.norm(x) >= p[0]]), {}, "DCP.*constraint"),
        (simple(lambda p, x: cp.sum_squares(p[0] * p[1] * x)), {}, r"\(DPP\): its objective"),
        (simple(lambda p, x: cp.sum(cp.exp(x - p))), {}, "2 exponential cones"),
        (semidefinite(), {}, "1 semidefinite cones"),
        (boolean(), {}, "integer variables"),
        (simple(complex=True), {}, "complex parameters"),
        (named_twice(), {}, "two variables are called x"),
        (sparse(), {}, "p has a sparsity"),
        (simple(), {"sample": None}, "say where instances come from"),
        (simple(), {"thetas": {"p": np.ones((9, 2))}}, "say where instances come from"),
        (simple(), {"sample": 3}, "sample must be a function"),
        (simple(), {"sample": lambda key: jnp.zeros(2)}, r"each parameter.*\['p'\], not"),
        (simple(), {"sample": lambda key: {"q": jnp.zeros(2)}}, r"\['p'\], not \['q'\]"),
        (simple(), {"sample": lambda key: {"p": jnp.zeros(3)}}, "p cannot be what instance 0 says"),
        (simple(nonneg=True), {}, "p cannot be what instance .* nonnegative"),
    ],
)
@unchecked()
def test_what_is_no_programme_is_refused_in_words(problem, given, words):
    with pytest.raises(ProblemError, match=words):
        from_cvxpy(problem, **{"sample": two} | given)


def test_every_recorded_instance_is_what_its_parameter_says():
    recorded = RNG.uniform(0.1, 1, size=(70, 2))
    recorded[61, 1] = -0.2
    with pytest.raises(ProblemError, match="what instance 61 says"):
        from_cvxpy(simple(nonneg=True), thetas={"p": recorded})


def test_without_cvxpy_it_is_said_what_to_install(monkeypatch):
    def missing(module, *given):
        raise ImportError(module)

    monkeypatch.setattr("surestep.base.machine.importlib.import_module", missing)
    with pytest.raises(ConfigurationError, match=r"pip install 'surestep\[programmes\]'"):
        from_cvxpy(simple(), sample=two)
