"""Fronts that are found in losses, and losses that only look as if they had one."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from surestep.base.keys import named_key
from surestep.problem import front as front_module
from surestep.problem.base import Problem
from surestep.problem.draw import draw
from surestep.problem.front_program import front_program
from surestep.problem.structure import find_structure

RANDOM = np.random.default_rng(0)
ROWS, N = 12, 4
MATRIX = RANDOM.normal(size=(ROWS, N))
FLOW = np.array([[1.0, 0.3], [-0.2, 0.9]])
PUSH = np.array([[0.1, 0.3], [0.4, -0.2]])
STEPS = 6
WIDE = 2 * STEPS


def problem_of(loss, n=N, width=ROWS, **options: Any):
    kind = options.get("precision", "float64")
    return Problem.of(
        loss,
        np.zeros(n),
        sample=lambda key: jax.random.normal(key, (width,), kind),
        lower=None,
        **options,
    )


def found(problem) -> Any:
    return find_structure(problem, draw(problem, 10, named_key(0, "front")))


def beyond(state):
    return jnp.sum(jnp.maximum(jnp.abs(state) - 1.0, 0.0) ** 2)


def control(x, theta):
    """Costs are the scan's rows."""

    def step(state, push):
        state = FLOW @ state + PUSH @ push
        return state, jnp.sum(state**2) + 0.1 * jnp.sum(push**2) + 20 * beyond(state)

    return jnp.sum(jax.lax.scan(step, theta, x.reshape(STEPS, 2))[1])


def control_with_total(x, theta):
    """Costs go round, and so do a discount and a counter."""
    x = x.reshape(STEPS, 2)

    def step(number, carried):
        state, total, weight = carried
        state = FLOW @ state + PUSH @ x[number]
        total = total + weight * jnp.sum(state**2) + 0.1 * jnp.sum(x[number] ** 2)
        total = total + (1 + number) * 20 * beyond(state)
        return state, total, 0.9 * weight

    return jax.lax.fori_loop(0, STEPS, step, (theta, 0.0, 1.0))[1]


def backwards(x, theta):
    """A scan in reverse, whose end matters too."""

    def step(state, push):
        state = FLOW @ state + PUSH @ push
        return state, beyond(state - theta) + jnp.sum(push**2)

    end, costs = jax.lax.scan(step, theta, x.reshape(STEPS, 2), reverse=True)
    return jnp.sum(costs) + jnp.sum(jnp.sqrt(1 + end**2))


def huber(x, theta):
    rest = MATRIX @ x - theta
    size = jnp.abs(rest)
    return jnp.sum(jnp.where(size < 1, rest**2 / 2, size - 0.5))


def logistic(x, theta):
    return jnp.sum(jnp.logaddexp(0.0, -jnp.sign(theta) * (MATRIX @ x))) + 0.1 * jnp.sum(x**2)


def two_sided(x, theta):
    """Rows that appear twice, with other signs, sizes and offsets, and one that is 0."""
    image = MATRIX @ x
    above, below = jax.nn.relu(image - theta), jax.nn.relu(-2 * image - 1.0)
    nothing = jnp.sum(jnp.exp(0.0 * x[0] + theta))
    return jnp.sum(above**2) + jnp.sum(below**2) + jnp.sum(jnp.cosh(image)) + nothing


FOUND = {
    "control": (control, WIDE, 2, (2 * WIDE, WIDE), WIDE),
    "a total that goes round": (control_with_total, WIDE, 2, (2 * WIDE, WIDE), WIDE),
    "backwards": (backwards, WIDE, 2, None, None),
    "Huber": (huber, N, ROWS, (ROWS, N), ROWS),
    "logistic": (logistic, N, ROWS, (ROWS + N, N), ROWS),
    "two-sided": (two_sided, N, ROWS, (ROWS, N), ROWS),
}


@pytest.mark.parametrize("name", FOUND)
def test_fronts_are_found(name):
    loss, n, width, shape, bent = FOUND[name]
    problem = problem_of(loss, n, width)
    structure = found(problem)
    front = structure.front
    assert front is not None and front.convex
    assert any("A x + b(theta)" in words for words in structure.words)
    if shape is not None:
        assert front.matrix.shape == shape and front.bent == bent
    # The loss and its gradient, through the front alone.
    theta = RANDOM.normal(size=width)
    program = front_program(problem, theta)
    assert program is not None
    offset = np.asarray(program.values(jnp.zeros(n), theta))
    shift = offset - front.scales * offset[front.first][front.places]
    for size in (0.1, 1.0, 30.0):
        x = size * RANDOM.normal(size=n)
        z = front.matrix @ x + offset[front.first]
        value, slope = jax.value_and_grad(
            lambda z: program.outer(theta, front.scales * z[front.places] + shift)
        )(z)
        wanted, gradient = jax.value_and_grad(loss)(x, theta)
        np.testing.assert_allclose(value, wanted, rtol=1e-12)
        np.testing.assert_allclose(slope @ front.matrix, gradient, rtol=1e-9, atol=1e-9)


def test_the_matrix_is_the_one_in_the_loss():
    front = found(problem_of(huber)).front
    np.testing.assert_allclose(front.matrix, MATRIX, rtol=1e-14)
    assert front.plain and np.all(front.curvature == 0) and 0 < front.typical <= 1


def test_curvature_that_is_everywhere_is_told():
    front = found(problem_of(control, WIDE, 2)).front
    np.testing.assert_allclose(front.curvature[: front.bent], 2.0, rtol=1e-12)
    np.testing.assert_allclose(front.curvature[front.bent :], 0.2, rtol=1e-12)


def test_no_step_of_the_outer_part_knows_the_matrix():
    """A loop's turns are computed at once, without products."""
    problem, theta = problem_of(control, WIDE, 2), np.ones(2)
    program = front_program(problem, theta)
    assert program is not None and program.size == 2 * WIDE
    text = str(jax.make_jaxpr(program.outer)(theta, np.ones(program.size)))
    assert "scan" not in text and "dot_general" not in text


def test_functions_that_are_not_convex_are_told():
    front = found(problem_of(lambda x, theta: jnp.sum(jnp.log1p((MATRIX @ x - theta) ** 2)))).front
    assert front is not None and not front.convex


def test_single_precision_has_fronts_too():
    def loss(x, theta):
        return jnp.sum(jnp.sqrt(1 + (MATRIX.astype("float32") @ x - theta) ** 2))

    front = found(problem_of(loss, precision="float32")).front
    assert front is not None and front.convex and front.matrix.shape == (ROWS, N)


def nonlinear_scan(x, theta):
    def step(state, push):
        state = jnp.tanh(FLOW @ state) + PUSH @ push
        return state, jnp.sum(state**2)

    return jnp.sum(jax.lax.scan(step, theta[:2], x.reshape(STEPS, 2))[1])


NOT_FOUND = {
    "a matrix that theta changes": lambda x, theta: huber(
        (MATRIX[:N] + theta[:N]) @ x, theta
    ),
    "softmax": lambda x, theta: jax.nn.logsumexp(MATRIX @ x - theta),
    "products of coordinates": lambda x, theta: jnp.sum((x[1:] * x[:-1] - theta[: N - 1]) ** 2),
    "norms of groups": lambda x, theta: jnp.sum(
        jnp.sqrt(1 + jnp.sum((MATRIX @ x - theta).reshape(-1, 2) ** 2, axis=1))
    ),
    "a loop that bends": nonlinear_scan,
    "a sum without a map": lambda x, theta: jnp.sum(jnp.cosh(x - theta[:N])),
    "a shared quadratic": lambda x, theta: jnp.sum((MATRIX @ x - theta) ** 2),
    "nothing that bends": lambda x, theta: x @ jnp.ones(N),
    "logarithms that end": lambda x, theta: -jnp.sum(jnp.log(MATRIX @ x + 3.0)),
}  # fmt: skip


@pytest.mark.parametrize("name", NOT_FOUND)
def test_in_doubt_there_is_none(name):
    n = N if name != "a loop that bends" else WIDE
    assert found(problem_of(NOT_FOUND[name], n)).front is None


def test_too_many_variables_are_too_many(monkeypatch):
    assert found(problem_of(huber)).front is not None
    monkeypatch.setattr(front_module, "WIDEST", N - 1)
    assert found(problem_of(huber)).front is None
