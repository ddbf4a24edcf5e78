"""Structure that is found in problems, and problems that only look as if they had it."""

from typing import Any

import jax
import jax.flatten_util
import jax.numpy as jnp
import jax.scipy.linalg
import numpy as np
import pytest

from support.catalogue import Bowl, Regression, SmallLasso
from surestep.base.keys import named_key
from surestep.paper.quadratics import Quadratics, QuadraticsSettings
from surestep.problem import structure
from surestep.problem.base import Problem, instance
from surestep.problem.degrees import ANYHOW, Degrees, degrees, loop_parts
from surestep.problem.draw import draw
from surestep.problem.penalties import L1, L2, Box, GroupL2, Nuclear, Simplex
from surestep.problem.quadratic import constant_term, linear_term, try_quadratic
from surestep.problem.structure import find_structure

RANDOM = np.random.default_rng(0)
N = 10
MATRIX = RANDOM.normal(size=(12, N))
WIDE = RANDOM.normal(size=(4, N))
SQUARE = RANDOM.normal(size=(N, N)) + 5 * np.eye(N)
X, THETA = np.zeros(N), np.ones(N)


def problem_of(loss, x0: Any = X, width=N, **options: Any):
    kind = options.get("precision", "float64")
    return Problem.of(
        loss, x0, sample=lambda key: jax.random.normal(key, (width,), kind), lower=None, **options
    )


def found(problem, size=20) -> Any:
    return find_structure(problem, draw(problem, size, named_key(0, "structure")))


@jax.custom_jvp
def clipped(x):
    """The identity, with a derivative that it does not have far away."""
    return x


@clipped.defjvp
def _clipped_jvp(primals, tangents):
    return primals[0], jnp.where(jnp.abs(primals[0]) < 1e30, 1.0, 0.0) * tangents[0]


def by_scan(x, theta):
    def turn(state, row):
        state = 0.9 * state + row
        return state, state - theta[0]

    return jnp.sum(jax.lax.scan(turn, jnp.zeros(()), x)[1] ** 2)


def growing(x, theta):
    """The third turn of its loop is a cube."""
    return jnp.sum(jax.lax.fori_loop(0, 3, lambda i, v: v * x, jnp.ones_like(x))) + theta[0]


def by_cases(x, theta):
    return jax.lax.cond(theta[0] > 0, lambda: jnp.sum(x**2), lambda: jnp.sum((x - theta) ** 2))


SHARED = {
    "least squares": lambda x, t: 0.5 * jnp.sum((MATRIX @ x - jnp.tile(t, 2)[:12]) ** 2),
    "a squared norm": lambda x, t: jnp.linalg.norm(SQUARE @ x - t) ** 2,
    "squared absolute values": lambda x, t: jnp.sum(jnp.abs(SQUARE @ x - t) ** 2),
    "a power": lambda x, t: jnp.mean(jnp.power(x - t, 2.0)),
    "inner products": lambda x, t: jnp.vdot(x, SQUARE @ x) - x @ t,
    "einsum": lambda x, t: jnp.einsum("i,ij,j", x - t, SQUARE, x - t),
    "variance": lambda x, t: jnp.var(x - t),
    "Fourier": lambda x, t: jnp.sum(jnp.abs(jnp.fft.rfft(x - t)) ** 2),
    "a convolution": lambda x, t: jnp.sum((jnp.convolve(x, np.arange(3.0), "same") - t) ** 2),
    "differences": lambda x, t: jnp.sum((x - t) ** 2) + jnp.sum(jnp.diff(x) ** 2),
    "a solve": lambda x, t: jnp.sum((jnp.linalg.solve(SQUARE, x) - t) ** 2),
    "a triangular solve": lambda x, t: jnp.sum(
        jax.scipy.linalg.solve_triangular(SQUARE, x - t) ** 2
    ),
    "picked": lambda x, t: jnp.sum(x[np.array([0, 3, 3])] ** 2) + x[2] * t[0],
    "placed": lambda x, t: jnp.sum(jnp.zeros(20).at[5:15].add(x - t) ** 2),
    "a recursion": by_scan,
    "rematerialised": lambda x, t: jax.checkpoint(lambda v: jnp.sum((v - t) ** 2))(x),
    "shapes of x": lambda x, t: jnp.sum(jnp.where(jnp.ones_like(x) > 0, (x - t) ** 2, x)),
}
OWN = {
    "weights": lambda x, t: jnp.sum(t**2 * (x - 1) ** 2),
    "a where on theta": lambda x, t: jnp.sum(jnp.where(t > 0, x**2, 2 * x**2)),
    "cases": by_cases,
    "rounding only": lambda x, t: jnp.sum(x**2) * (1 + 1e-18 * t[0]),
    "division": lambda x, t: jnp.sum((x - t) ** 2) / (1 + t[0] ** 2),
}
NOT = {
    "Huber": lambda x, t: jnp.sum(jnp.where(abs(x - t) < 9, (x - t) ** 2, 18 * abs(x - t) - 81)),
    "pseudo-Huber": lambda x, t: 1e16 * jnp.sum(jnp.sqrt(1 + ((x - t) / 1e8) ** 2) - 1),
    "squared hinge": lambda x, t: jnp.sum(jnp.maximum(x - t + 1e9, 0) ** 2),
    "a cube": lambda x, t: jnp.sum((x - t) ** 2) + 1e-8 * jnp.sum(x**3),
    "a tiny cube": lambda x, t: jnp.sum((x - t) ** 2) + 1e-300 * jnp.sum(x**3),
    "absolute values": lambda x, t: jnp.sum((x - t) ** 2) + 1e-20 * jnp.sum(jnp.abs(x)),
    "a norm": lambda x, t: jnp.sum((x - t) ** 2) + 1e-20 * jnp.linalg.norm(x),
    "a narrow bump": lambda x, t: jnp.sum((x - t) ** 2) + jnp.exp(-1e12 * (x[0] - 3.7) ** 2),
    "a product of roots": lambda x, t: jnp.linalg.norm(x) * jnp.linalg.norm(x - t),
    "a cube by turns": growing,
    "its own derivative": lambda x, t: jnp.sum((clipped(x) - t) ** 2),
    "a stopped gradient": lambda x, t: jnp.sum(x * jax.lax.stop_gradient(x)) + t[0],
    "rounded": lambda x, t: jnp.sum((x - jnp.round(x)) ** 2) + t[0] + jnp.sum(x**2),
    "whole numbers": lambda x, t: jnp.sum(x**2) + jnp.sum(x.astype(int)) * t[0],
    "sorted": lambda x, t: jnp.sum((jnp.sort(x) - t) ** 2),
    "clipped": lambda x, t: jnp.sum((jnp.clip(x, -1e30, 1e30) - t) ** 2),
    "a cond on x": lambda x, t: jax.lax.cond(
        x[0] < 1e30, lambda: jnp.sum((x - t) ** 2), lambda: 0.0
    ),
    "places that x chooses": lambda x, t: t[jnp.argmax(x)] + jnp.sum(x**2),
    "logistic": lambda x, t: jnp.sum(jnp.logaddexp(0, x * t)),
    "not finite far out": lambda x, t: jnp.sum((x - t) ** 2) + 0 * jnp.sum(jnp.exp(x)),
}


@pytest.mark.parametrize("name", SHARED)
def test_quadratics_with_one_hessian_are_proved_to_be_such(name):
    proved = degrees(SHARED[name], X, THETA)
    assert proved is not None
    assert proved.powers[2] == 0 and proved.powers[1] <= 1


@pytest.mark.parametrize("name", OWN)
def test_a_hessian_that_theta_may_change_is_not_shared(name):
    proved = degrees(OWN[name], X, THETA)
    assert proved is not None
    assert proved.powers[2] > 0
    some = found(problem_of(OWN[name]))
    assert some.quadratic and not some.shared and some.shared_hessian is None
    assert not some.affine_in_theta


@pytest.mark.parametrize("name", NOT)
def test_what_is_not_quadratic_everywhere_is_not_quadratic(name):
    assert degrees(NOT[name], X, THETA) is None
    some = found(problem_of(NOT[name]))
    assert not some.quadratic and not some.shared and some.shared_hessian is None


def test_gradients_that_are_not_affine_in_theta():
    for loss in (
        lambda x, t: jnp.sum((x - t**2) ** 2),
        lambda x, t: jnp.sum((x - jnp.where(t > 0, t, 2 * t)) ** 2),
        lambda x, t: jnp.sum((x - t[jnp.argmax(t)]) ** 2),
        lambda x, t: jnp.sum((x - jnp.abs(t)) ** 2),
    ):
        some = found(problem_of(loss))
        assert some.shared and not some.affine_in_theta


NOT["overflowing"] = lambda x, t: jnp.sum((x - t) ** 2) + 1e-30 * jnp.sum(jnp.exp(x))
LIARS = (
    "overflowing",
    "Huber",
    "pseudo-Huber",
    "a cube",
    "rounded",
    "logistic",
    "not finite far out",
    "a norm",
)


@pytest.mark.parametrize("name", LIARS)
def test_numbers_alone_tell_most_of_them_apart(name):
    """Were the proof ever wrong, the trial would still be in its way."""
    loss = NOT[name]
    if name == "a norm":
        loss = lambda x, t: jnp.sum((x - t) ** 2) + jnp.linalg.norm(x)  # noqa: E731
    problem = problem_of(loss)
    errors = try_quadratic(problem, draw(problem, 4, named_key(0, "structure")))
    assert not errors.quadratic <= 1e-9


def test_numbers_see_one_instance_that_bends_otherwise(monkeypatch):
    problem = problem_of(lambda x, t: jnp.sum((x - 1) ** 2) * jnp.where(t[0] > 40, 1 + 1e-8, 1.0))
    thetas = np.zeros((16, N))
    thetas[7] = 50.0
    monkeypatch.setattr(structure, "degrees", lambda *_: Degrees((0, 0, 0)))
    assert find_structure(problem, np.zeros((16, N))).shared
    assert not find_structure(problem, thetas).shared
    monkeypatch.setattr(structure, "degrees", lambda *_: Degrees((ANYHOW, ANYHOW, ANYHOW)))
    assert not find_structure(problem, np.zeros((16, N))).shared


def assert_terms_agree(problem, some: Any, size=3, rtol=1e-9):
    """`x'Hx / 2 - c'x + d` is the smooth part, inside compiled and batched programs."""
    thetas = draw(problem, size, named_key(1, "structure"))
    part = getattr(problem, "smooth", problem.loss)
    first = problem.start(instance(thetas, 0))
    flat, unravel = jax.flatten_util.ravel_pytree(first)
    x = RANDOM.normal(size=flat.size).astype(flat.dtype)
    terms = jax.jit(jax.vmap(lambda t: (linear_term(problem, t), constant_term(problem, t))))
    linear, constant = (np.asarray(term, np.float64) for term in terms(thetas))
    wanted = jax.vmap(lambda t: jax.value_and_grad(part)(unravel(jnp.asarray(x)), t))(thetas)
    values = x @ some.shared_hessian @ x / 2 - linear @ x + constant
    np.testing.assert_allclose(values, wanted[0], rtol=rtol)
    slopes = np.stack([
        jax.flatten_util.ravel_pytree(instance(wanted[1], i))[0] for i in range(size)
    ])  # fmt: skip
    np.testing.assert_allclose(
        x @ some.shared_hessian - linear, slopes, rtol=rtol, atol=rtol * np.abs(slopes).max()
    )


def test_least_squares_show_their_hessian_and_its_rank():
    some = found(problem_of(SHARED["least squares"]))
    assert some.shared and some.affine_in_theta and some.convex and not some.separable
    assert some.dimension == N and some.matrix is None and some.convolution is None
    np.testing.assert_allclose(some.shared_hessian, MATRIX.T @ MATRIX, atol=1e-12)
    problem = problem_of(lambda x, t: 1.5 * jnp.sum((WIDE @ x - t) ** 2), width=4, penalty=L1(0.1))
    wide = found(problem)
    assert wide.matrix is not None and wide.matrix.shape == (4, N) and wide.composite
    np.testing.assert_allclose(wide.matrix.T @ wide.matrix, 3 * WIDE.T @ WIDE, atol=1e-12)
    assert_terms_agree(problem, wide)
    bent = found(problem_of(lambda x, t: x[0] ** 2 - x[1] * x[2] + x @ t))
    assert bent.shared and not bent.convex and bent.matrix is None
    flat = found(problem_of(lambda x, t: x @ t))
    assert flat.shared and flat.convex and not np.any(flat.shared_hessian)


def test_points_and_instances_of_any_form():
    def loss(x, theta):
        rows = theta["rows"] + 0.0  # whole numbers
        inner = jnp.sum((x["a"] @ jnp.asarray(WIDE[:2, :2]) - theta["t"]) ** 2)
        return inner + (x["b"] - rows[0]) ** 2 + x["b"] * x["a"][0, 0]

    def sample(key):
        return {
            "t": jax.random.normal(key, (3, 2)),
            "rows": jax.random.randint(key, (2,), 0, 9),
            "on": jax.random.bernoulli(key),
        }

    problem = Problem.of(
        loss,
        lambda theta: {"a": 1e3 * theta["t"], "b": jnp.where(theta["on"], 1.0, -1.0)},
        sample=sample,
        lower=None,
    )
    some = found(problem)
    assert some.shared and some.affine_in_theta and some.dimension == 7
    assert_terms_agree(problem, some)

    def chosen(x, theta):
        return jnp.sum(x["a"] ** 2) - x["b"] * theta["t"][theta["rows"][0] % 3, 0] + x["b"] ** 2

    some = found(Problem.of(chosen, problem.start, sample=sample, lower=None))
    assert some.shared and not some.affine_in_theta
    single = problem_of(lambda x, t: 3 * (x - t[0]) ** 2, x0=np.zeros(()))
    some = found(single)
    assert some.shared and some.separable and some.dimension == 1
    np.testing.assert_allclose(some.shared_hessian, [[6.0]])
    np.testing.assert_allclose(some.diagonal, [6.0])
    assert_terms_agree(single, some)


def test_float32_has_its_own_rounding():
    matrix = MATRIX.astype("float32")
    with jax.enable_x64(False):
        problem = problem_of(
            lambda x, t: 0.5 * jnp.sum((matrix @ x - t) ** 2), np.zeros(N), 12, precision="float32"
        )
        some = found(problem)
        assert some.shared and some.affine_in_theta and some.convex
        assert_terms_agree(problem, some, rtol=1e-4)
    np.testing.assert_allclose(some.shared_hessian, matrix.T @ matrix, rtol=1e-5, atol=1e-4)
    # Numbers that a float64 problem rounds to float32 are no quadratic of float64 precision.
    rounding = problem_of(lambda x, t: jnp.sum((x.astype("float32") - t) ** 2))
    assert not found(rounding).quadratic


def test_catalogued_problems():
    regression = found(Regression.create())
    assert regression.shared and regression.affine_in_theta and not regression.penalty_separable
    lasso = found(SmallLasso.create())
    assert lasso.shared and lasso.penalty_separable and lasso.composite
    assert not found(Bowl()).quadratic
    own = found(Quadratics.create(QuadraticsSettings(), 0), 3)
    assert own.quadratic and not own.shared


def test_convolutions_are_found_in_pictures_and_signals():
    shape = (9, 12, 2)

    def around(x, theta):
        return jnp.sum((0.5 * x + 0.25 * jnp.roll(x, 1, 0) + 0.25 * jnp.roll(x, 3, 1) - theta) ** 2)

    def mirrored(x, theta):
        down, across = jnp.diff(x, axis=0), jnp.diff(x, axis=1)
        return jnp.sum((x - theta) ** 2) + 3 * jnp.sum(down**2) + jnp.sum(across**2)

    def uneven(x, theta):
        return mirrored(x, theta) + 1e-8 * x[3, 3, 0] ** 2

    for loss, basis in ((around, "fourier"), (mirrored, "cosines"), (uneven, None)):
        problem = Problem.of(
            loss, np.zeros(shape), sample=lambda key: jax.random.normal(key, shape)
        )
        some = found(problem)
        assert some.shared and some.convex
        if basis is None:
            assert some.convolution is None
            continue
        assert some.convolution is not None
        assert some.convolution.basis == basis and some.convolution.axes == (0, 1)
        hessian = some.convolution.products(np.eye(some.dimension))
        np.testing.assert_allclose(hessian, some.shared_hessian, atol=1e-12)


def test_a_large_picture_needs_no_matrix():
    shape = (64, 65)
    problem = Problem.of(
        lambda x, t: jnp.sum((x - t) ** 2) + jnp.sum(jnp.diff(x, axis=1) ** 2),
        np.zeros(shape),
        sample=lambda key: jax.random.normal(key, shape),
    )
    some = found(problem, 3)
    assert some.shared and some.shared_hessian is None and some.convex and some.affine_in_theta
    assert some.convolution is not None and some.convolution.basis == "cosines"
    assert np.min(some.convolution.spectrum) == pytest.approx(2.0)
    large = found(problem_of(lambda x, t: jnp.sum((x - t[0]) ** 4), np.zeros(5000)))
    assert large.separable and not large.quadratic and large.diagonal is None
    large = found(problem_of(lambda x, t: 3 * jnp.sum((x - t[0]) ** 2), np.zeros(5000)), 3)
    assert large.separable and large.convex and large.shared
    np.testing.assert_allclose(large.diagonal, np.full(5000, 6.0))


@pytest.mark.parametrize(
    ("loss", "separable"),
    [
        (lambda x, t: jnp.sum(t**2 * (x - t) ** 2), True),
        (lambda x, t: jnp.sum(jnp.exp(x) - t * x) + x @ (SQUARE @ t), True),
        (lambda x, t: jnp.vdot(x - t, x - t) / (1 + t[0] ** 2), True),
        (lambda x, t: jnp.sum(jnp.where(x > t, x**2, 0)), True),
        (lambda x, t: jnp.sum(x**2) ** 2 + t[0], False),
        (lambda x, t: jnp.sum(jnp.diff(x) ** 4) + t[0], False),
        (lambda x, t: jnp.sum(x * x[::-1]) * t[0], False),
        (lambda x, t: jnp.vdot(x, SQUARE @ x) * t[0], False),
        (lambda x, t: jnp.sum(jnp.where(x[0] > t, x**2, 0)), False),
        (lambda x, t: jnp.sum(jnp.outer(x, x)) * t[0] ** 2, False),
        (lambda x, t: jnp.sum(x).astype(int) * 1.0 + t[0], False),
    ],
)
def test_separable_losses(loss, separable):
    assert found(problem_of(loss)).separable == separable


@pytest.mark.parametrize(
    ("penalty", "separable"),
    [
        (L1(0.1), True),
        (L1(lambda theta: theta[0] ** 2), True),
        (Box(-1.0, 1.0), True),
        (L2(0.1), False),
        (Simplex(), False),
        (GroupL2(0.1), False),
        (Nuclear(0.1), False),
    ],
)
def test_penalties_that_act_by_coordinates(penalty, separable):
    x0 = np.full(N, 0.1)
    loss = lambda x, t: jnp.sum(jnp.exp(x)) + t[0]  # noqa: E731
    if isinstance(penalty, GroupL2 | Nuclear):
        x0 = x0.reshape(5, 2)
    assert found(problem_of(loss, x0, penalty=penalty)).penalty_separable == separable


def test_pytrees_are_penalised_leaf_by_leaf():
    x0 = {"a": np.zeros((2, 3)), "b": np.zeros(4)}
    problem = problem_of(lambda x, t: jnp.sum(x["a"] ** 4) + t[0], x0, penalty=L1(0.2))
    assert found(problem).penalty_separable

    class Swapped(L1):
        def prox(self, x, step, theta):
            return super().prox(x[::-1], step, theta)

    problem = problem_of(lambda x, t: jnp.sum(x**4) + t[0], penalty=Swapped(0.2))
    assert not found(problem).penalty_separable


def test_what_was_found_in_words():
    wide = problem_of(lambda x, t: jnp.sum((WIDE @ x - t) ** 2), width=4, penalty=Box(0.0, 1.0))
    assert found(wide).words == (
        "the smooth part is quadratic in x, with the same Hessian on every instance: it can be "
        "factored once",
        "its gradient is affine in theta",
        "the Hessian has rank 4 of 10",
        "prox acts coordinate by coordinate",
    )
    assert found(problem_of(OWN["weights"])).words == (
        "the loss is quadratic in x, with a Hessian that theta may change",
        "the loss is a sum of functions of one coordinate each",
    )
    ring = problem_of(lambda x, t: jnp.sum((x + jnp.roll(x, 1) - t) ** 2))
    assert "the Hessian is a convolution of shape 10, diagonal for Fourier's basis" in (
        found(ring).words
    )
    assert found(problem_of(NOT["pseudo-Huber"])).words == (
        "the loss is a sum of functions of one coordinate each",
    )
    assert found(problem_of(lambda x, t: jnp.log1p(jnp.sum((x - t) ** 2)))).words == ()


def test_the_parts_of_a_loop_are_told_from_its_ranks():
    def loop(x, rows):
        def turn(carry, row):
            first, second = carry
            return (first + row * x, 2 * second), (second, row)

        return jax.lax.scan(turn, (jnp.zeros(3), 1.0), rows)

    (scan,) = [
        operation
        for operation in jax.make_jaxpr(loop)(jnp.ones(3), jnp.ones((4, 3))).eqns
        if operation.primitive.name == "scan"
    ]
    assert loop_parts(scan) == (1, 3)
    assert len(scan.invars) == 4
