"""Rules in Optax loops: the same points as rollouts, and refusals that say why."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.flatten_util import ravel_pytree

from support import tiny
from support.catalogue import PROBLEMS
from support.iterates import iterates
from support.types import unchecked
from surestep.base.errors import ConfigurationError
from surestep.base.keys import named_key
from surestep.interop.optax import as_optax
from surestep.problem.draw import working_precision
from surestep.rules import (
    ConjugateGradients,
    Fista,
    GradientDescent,
    HeavyBall,
    ProximalGradient,
    Residual,
    Safeguarded,
    Started,
)
from surestep.rules.base import GradientRule, hyper_of, with_hyper
from surestep.run.learned import Learned

BOWL, REGRESSION, LASSO = (PROBLEMS[name] for name in ("bowl", "regression", "lasso"))
STEPS = 12


def theta_of(problem):
    return problem.sample(named_key(1, "adapters"))


def stirred(rule, size):
    """The rule with other numbers, so that what is learned of it is not silent."""
    hyper = np.asarray(hyper_of(rule))
    return with_hyper(rule, jnp.asarray(hyper + size * np.cos(np.arange(hyper.size))))


def trained_residual():
    return stirred(Residual.around(HeavyBall(0.02, 0.5), 6, named_key(0, "residual"), width=4), 0.1)


def guarded():
    """A safeguard that has something to do: the rule inside is not trained."""
    return Safeguarded(LEARNED, GradientDescent(0.4), 1.0, 2)


with working_precision(tiny.PROBLEM):
    LEARNED = stirred(tiny.RULE, 0.2)

CASES = {
    "the paper's rule": (tiny.PROBLEM, lambda: LEARNED, False),
    "heavy ball on a pytree": (BOWL.problem, lambda: HeavyBall(0.3, 0.5), False),
    "residual": (REGRESSION.problem, trained_residual, False),
    "safeguarded": (BOWL.problem, guarded, False),
    "started": (BOWL.problem, lambda: Started(HeavyBall(0.3, 0.5), jnp.full(5, 0.1)), False),
    "FISTA": (LASSO.problem, lambda: Fista(1 / LASSO.smoothness), True),
    "conjugate gradients": (REGRESSION.problem, ConjugateGradients, True),
}


def optax_points(optimizer, problem, theta, steps):
    """Anyone's loop: parameters of the problem's own form, one compiled scan."""

    def loss(params):
        return problem.loss(params, theta)

    def body(carry, _):
        params, state = carry
        value, grads = jax.value_and_grad(loss)(params)
        updates, state = optimizer.update(grads, state, params, value=value, value_fn=loss)
        params = optax.apply_updates(params, updates)
        return (params, state), ravel_pytree(params)[0]

    start = problem.start(theta)
    (_, state), points = jax.lax.scan(body, (start, optimizer.init(start)), None, length=steps)
    return points, state


@pytest.mark.parametrize("name", CASES)
def test_the_same_points_as_a_rollout(name):
    problem, make, instance = CASES[name]
    rule, theta = make(), theta_of(problem)
    optimizer = as_optax(rule, problem, theta) if instance else as_optax(rule)
    chained = optax.chain(optimizer, optax.identity())
    # Conjugate gradients are done after as many steps as there are unknowns; then rounding rules.
    steps = 5 if name == "conjugate gradients" else STEPS
    found, (state, _) = jax.jit(lambda: optax_points(chained, problem, theta, steps))()
    points, evaluations = iterates(rule, problem, theta, steps)
    scale = np.abs(points).max()
    assert np.abs(points[-1] - points[0]).max() > 1e-2
    np.testing.assert_allclose(found, points[1:], rtol=0, atol=1e-15 * scale)
    if instance or not isinstance(rule, GradientRule):
        assert state.progress.evaluations.gradients == evaluations.gradients
        assert state.progress.evaluations.values == evaluations.values


def test_step_by_step_without_compiling():
    """Plain calls, and a rule that carries on from wherever the parameters are."""
    rule, x = HeavyBall(0.1, 0.5), np.array([1.0, -2.0])
    optimizer = as_optax(rule)
    state, previous = optimizer.init(jnp.asarray(x)), x
    for _ in range(3):
        updates, state = optimizer.update(jnp.asarray(2 * x), state, jnp.asarray(x), value=x @ x)
        expected = -0.1 * 2 * x + 0.5 * (x - previous)
        np.testing.assert_allclose(jnp.asarray(updates), expected, rtol=1e-15)
        # Another part of a chain halves the update: the memory is of where the point was.
        x, previous = x + expected / 2, x


@unchecked()
def test_a_learned_rule_knows_its_problem():
    nothing: list = [None] * 4
    learned = Learned(tiny.TASK, LEARNED, *nothing)
    theta = theta_of(tiny.PROBLEM)

    @jax.jit
    def first_updates():
        start = tiny.PROBLEM.start(theta)
        value, grads = jax.value_and_grad(lambda x: tiny.PROBLEM.loss(x, theta))(start)
        return [
            optimizer.update(grads, optimizer.init(start), start, value=value)[0]
            for optimizer in (as_optax(learned), as_optax(learned, theta=theta))
        ]

    by_gradient, on_instance = first_updates()
    np.testing.assert_allclose(by_gradient, on_instance, rtol=1e-14)


def test_what_was_learned_in_float64_runs_in_a_float32_loop():
    """The user's precision is the loop's, and JAX does not complain."""

    def first_update(x) -> Any:
        optimizer = as_optax(LEARNED)
        return optimizer.update(2 * x, optimizer.init(x), x, value=x @ x)

    start = np.linspace(-1, 1, 8)
    expected, _ = jax.jit(first_update)(start)
    with jax.enable_x64(False):
        found, state = jax.jit(first_update)(start)
        assert {leaf.dtype for leaf in jax.tree.leaves((found, state))} <= {
            jnp.dtype("float32"),
            jnp.dtype("bool"),
        }
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-7)  # the point's rounding


def test_divergence_on_an_instance_ends_where_it_began():
    problem = REGRESSION.problem
    theta = theta_of(problem)
    optimizer = as_optax(ProximalGradient(1e300), problem, theta)
    params = problem.start(theta)
    state: Any
    updates, state = optimizer.update(params, optimizer.init(params), params)
    assert bool(state.progress.diverged)
    np.testing.assert_array_equal(jnp.asarray(updates), np.zeros(6))


def test_refusals_say_what_is_missing():
    theta = theta_of(REGRESSION.problem)
    x = jnp.zeros(6)
    with pytest.raises(
        ConfigurationError, match=r"ConjugateGradients.*residual.*as_optax\(rule, p"
    ):
        as_optax(ConjugateGradients())
    with pytest.raises(ConfigurationError, match="cannot run on Bowl"):
        as_optax(ConjugateGradients(), BOWL.problem, theta_of(BOWL.problem))
    with pytest.raises(ConfigurationError, match="comes with theta"):
        as_optax(Fista(0.1), REGRESSION.problem)
    with pytest.raises(ConfigurationError, match="comes with theta"):
        as_optax(Fista(0.1), theta=theta)
    with pytest.raises(ConfigurationError, match="value=value"):
        optimizer = as_optax(HeavyBall(0.1, 0.5))
        optimizer.update(x, optimizer.init(x), x)
    with pytest.raises(ConfigurationError, match="value_fn=value_fn"):
        optimizer = as_optax(Fista(0.1))
        optimizer.update(x, optimizer.init(x), x, value=1.0)
    with pytest.raises(ConfigurationError, match="Residual does not fit a variable of 4 numbers"):
        as_optax(trained_residual()).init(jnp.zeros(4))
    optimizer = as_optax(Fista(0.1), REGRESSION.problem, theta)
    with pytest.raises(ConfigurationError, match="the parameters"):
        optimizer.update(x, optimizer.init(x))
    with pytest.raises(ConfigurationError, match=r"form of Regression.start.*\(6,\)"):
        optimizer.init(jnp.zeros(5))
    with pytest.raises(ConfigurationError, match=r"computes in float64.*float32"):
        optimizer.init(jnp.zeros(6, jnp.float32))
