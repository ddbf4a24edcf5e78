"""Barzilai's and Borwein's steps against ones that are written out, and where they lead."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from surestep.problem.base import Problem
from surestep.problem.oracle import Oracle
from surestep.rollout.loop import rollout, unwatched
from surestep.rules import BarzilaiBorwein, Fixed, GradientDescent, HeavyBall, Predicted

RNG = np.random.default_rng(3)
ROOT = RNG.normal(size=(8, 8))
H = ROOT @ ROOT.T + np.eye(8)


def bowl(x, theta):
    return 0.5 * x @ H @ x - theta @ x + 0.1 * jnp.sum(jnp.cosh(x))


BOWL = Problem.of(bowl, np.ones(8), sample=lambda key: jax.random.normal(key, (8,)), lower=None)


def slope(x, theta):
    return H @ x - theta + 0.1 * np.sinh(x)


def by_hand(theta, metric, first, number):
    """Secant equations, with points and gradients kept."""
    x, step, found = np.ones(8), first, []
    g = slope(x, theta)
    for _ in range(number):
        moved = x - step * metric @ g
        changed = slope(moved, theta)
        s, y = moved - x, changed - g
        step = (s @ y) / (y @ metric @ y)
        x, g = moved, changed
        found.append(x)
    return np.stack(found)


@pytest.mark.parametrize("kind", ["none", "diagonal", "matrix"])
def test_steps_are_those_of_the_secant_equation(kind):
    matrix = {"none": np.eye(8), "diagonal": np.diag(1 / np.diag(H)), "matrix": np.linalg.inv(H)}
    metric = matrix[kind]
    with jax.enable_x64(True):
        given = None if kind == "none" else jnp.asarray(metric)
        if kind == "diagonal":
            given = jnp.diag(jnp.asarray(metric))
        rule = BarzilaiBorwein(0.02, None if given is None else Fixed(given))
        theta = BOWL.sample(jax.random.key(0))
        oracle = Oracle(BOWL, theta)
        state, found = rule.init(oracle, oracle.start), []
        for _ in range(6):
            state = rule.step(oracle.fresh(), state)
            found.append(np.asarray(state.x))
    np.testing.assert_allclose(found, by_hand(np.asarray(theta), metric, 0.02, 6), rtol=1e-9)


def test_it_needs_far_fewer_iterations_than_gradient_descent():
    with jax.enable_x64(True):
        theta = BOWL.sample(jax.random.key(1))
        smoothness = float(np.linalg.eigvalsh(H)[-1]) + 0.2
        short = rollout(BarzilaiBorwein(1 / smoothness), BOWL, theta, 60).losses
        plain = rollout(GradientDescent(1 / smoothness), BOWL, theta, 600).losses
    assert short[-1] <= plain[-1] + 1e-10


def test_where_the_loss_does_not_bend_upwards_the_step_stays_and_nothing_breaks():
    line = Problem.of(
        lambda x, theta: theta * jnp.sum(x), np.ones(3), sample=lambda key: jnp.ones(()), lower=None
    )
    with jax.enable_x64(True):
        end = rollout(BarzilaiBorwein(0.5), line, jnp.ones(()), 4)
    np.testing.assert_allclose(end.x, 1 - 4 * 0.5 * np.ones(3))
    hill = Problem.of(
        lambda x, theta: -theta * jnp.sum(x**2),
        np.ones(3),
        sample=lambda key: jnp.ones(()),
        lower=None,
    )
    with jax.enable_x64(True):
        end = rollout(BarzilaiBorwein(0.5), hill, jnp.ones(()), 3)
    np.testing.assert_allclose(end.x, 2.0**3 * np.ones(3))


def test_no_step_is_longer_than_it_may_be():
    flat = Problem.of(
        lambda x, theta: 1e-6 * jnp.sum((x - theta) ** 2), np.zeros(3),
        sample=lambda key: jnp.ones(3),
    )  # fmt: skip
    with jax.enable_x64(True):
        end = rollout(BarzilaiBorwein(0.1, longest=5.0), flat, jnp.ones(3), 2)
    # 2e-6 times 0.1, then 2e-6 times 0.5 at most.
    np.testing.assert_allclose(end.x, np.full(3, 2e-6 * 0.6), rtol=1e-5)


@pytest.mark.parametrize("wrapped", [False, True])
def test_losses_that_nobody_looks_at_are_not_computed_on_the_way(wrapped):
    class Watching(HeavyBall):
        watches_loss = True

    def carried(rule):
        """How many numbers go around in the loop of a compiled solve."""
        inside = Predicted.around(rule, 8) if wrapped else rule
        with jax.enable_x64(True):
            theta = BOWL.sample(jax.random.key(0))
            program = jax.jit(lambda t: unwatched(inside, BOWL, t, 7))
            text = str(program.lower(theta).compile().as_text())
        loop = next(line for line in text.splitlines() if " while(" in line)
        return loop.split(" while(")[0].count("f64[]")

    assert carried(HeavyBall(0.01, 0.5)) == carried(Watching(0.01, 0.5)) - 1


def test_the_end_knows_its_loss_though_the_way_did_not():
    with jax.enable_x64(True):
        theta = BOWL.sample(jax.random.key(2))
        whole = rollout(HeavyBall(0.02, 0.5), BOWL, theta, 9)
        end = unwatched(HeavyBall(0.02, 0.5), BOWL, theta, 9)
    np.testing.assert_allclose(end.loss, whole.losses[-1], rtol=1e-12)
    np.testing.assert_allclose(end.x, whole.x, rtol=1e-12)
