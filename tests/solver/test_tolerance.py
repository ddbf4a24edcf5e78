"""Solving to a tolerance: who is done leaves the batch, and nobody's outcome depends on others."""

import dataclasses
import re
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from support.reach import reach
from surestep.problem import make_problem
from surestep.problem.goal import Goal
from surestep.problem.penalties import L1
from surestep.rollout.loop import Status, rollout
from surestep.rollout.program import Program
from surestep.rollout.watched import Given, going, numbers
from surestep.rules import Checked, FistaWithRestart, GradientDescent, HeavyBall, SharedADMM
from surestep.rules.base import hyper_of
from surestep.solver.posterior import Posterior
from surestep.solver.solver import Solver

ROWS, COLUMNS, LIMIT, TOLERANCE = 8, 12, 300, 2e-3
RANDOM = np.random.default_rng(0)
DICTIONARY = RANDOM.normal(size=(ROWS, COLUMNS)) / np.sqrt(ROWS)
HESSIAN = DICTIONARY.T @ DICTIONARY
STEP = float(1 / np.linalg.eigvalsh(HESSIAN)[-1])
# From ones that are done at the start to ones that take all iterations.
SIGNALS = RANDOM.normal(size=(70, ROWS)) * np.geomspace(1e-2, 30, 70)[RANDOM.permutation(70), None]


def sparse_coding(precision: Literal["float32", "float64"] = "float64"):
    return make_problem(
        lambda x, b: 0.5 * jnp.sum((jnp.asarray(DICTIONARY, b.dtype) @ x - b) ** 2),
        np.zeros(COLUMNS, precision),
        sample=lambda key: jax.random.normal(key, (ROWS,), precision),
        penalty=L1(1e-5),
        precision=precision,
    )


CODING = sparse_coding()
BOWLS = make_problem(
    lambda x, theta: jnp.sum(jnp.cosh(theta * x) - 1),
    np.ones(3),
    sample=lambda key: jax.random.uniform(key, (3,), minval=0.5, maxval=2.0),
)
CURVES = np.random.default_rng(1).uniform(0.1, 2.0, size=(70, 3))


def solver(problem, rule, **settings):
    return Solver(problem, rule, **{"horizon": LIMIT, "goal": Goal(0.5, 1.0)} | settings)


def coding(**settings):
    return solver(CODING, FistaWithRestart(STEP), **settings)


def shown_losses(rule, problem, thetas, limit=LIMIT):
    return np.stack([rollout(rule, problem, theta, limit).losses for theta in thetas])


def looks(limit):
    """After which iterations a loss that takes an evaluation is looked at, written out."""
    found = [*range(16), *range(16, 32, 2), *range(32, 64, 4), *range(64, 128, 8)]
    found += [*range(128, 256, 16), *range(256, LIMIT, 32)]
    return np.array([*(number for number in found if number < limit), limit])


def first_hits(losses, at):
    below = losses[:, at] < TOLERANCE
    return np.where(below.any(axis=1), at[below.argmax(axis=1)], at[-1]), below.any(axis=1)


def test_a_rule_that_knows_its_loss_stops_at_the_first_that_is_low_enough():
    rule = GradientDescent(0.15)
    found = solver(BOWLS, rule).solve(CURVES, tolerance=TOLERANCE)
    wanted = [reach(rule, BOWLS, theta, TOLERANCE, LIMIT) for theta in CURVES[:12]]
    for name in ("iterations", "gradients", "status"):
        np.testing.assert_array_equal(
            getattr(found, name)[:12], [getattr(end, name) for end in wanted]
        )
    np.testing.assert_allclose(found.x[:12], [end.x for end in wanted], atol=1e-10)
    assert len(set(found.iterations)) > 20
    assert {Status.REACHED, Status.LIMIT} == set(found.status)


def test_another_rule_is_looked_at_eight_times_while_its_iterations_double():
    few = SIGNALS[:20]
    found = coding().solve(few, tolerance=TOLERANCE)
    losses = shown_losses(FistaWithRestart(STEP), CODING, few)
    wanted, reached = first_hits(losses, looks(LIMIT))
    np.testing.assert_array_equal(found.iterations, wanted)
    np.testing.assert_array_equal(found.status == Status.REACHED, reached)
    np.testing.assert_allclose(found.loss, losses[np.arange(20), wanted], rtol=1e-8)
    exact, _ = first_hits(losses, np.arange(LIMIT + 1))
    assert np.all(found.iterations <= np.maximum(exact * 1.125, exact + 1))
    np.testing.assert_allclose(found.start_loss, losses[:, 0], rtol=1e-12)


@pytest.mark.parametrize("block", [256, 32, 7])
def test_easy_and_hard_instances_end_as_they_do_alone(block):
    mine = coding(block=block)
    found = mine.solve(SIGNALS, tolerance=TOLERANCE)
    assert 0 in found.iterations and LIMIT in found.iterations
    for i in range(0, 70, 6):
        alone = mine.solve_one(SIGNALS[i], tolerance=TOLERANCE)
        assert (alone.iterations, alone.gradients, alone.status) == (
            found.iterations[i],
            found.gradients[i],
            found.status[i],
        )
        np.testing.assert_allclose(alone.x, found.x[i], atol=1e-8)
        np.testing.assert_allclose(alone.loss, found.loss[i], rtol=1e-6)


def test_the_limit_is_a_look_too():
    found = coding().solve(SIGNALS, tolerance=TOLERANCE, iterations=17)
    losses = shown_losses(FistaWithRestart(STEP), CODING, SIGNALS, 17)
    assert 17 not in looks(LIMIT)
    exact, reached = first_hits(losses, np.arange(18))
    np.testing.assert_array_equal(found.iterations, exact)
    np.testing.assert_array_equal(found.status, np.where(reached, Status.REACHED, Status.LIMIT))
    assert np.any(reached & (exact == 17))


def test_it_goes_on_from_where_it_is_told():
    mine = coding()
    near = mine.solve(SIGNALS, iterations=40)
    found = mine.solve(SIGNALS, tolerance=TOLERANCE, x0=near.x)
    np.testing.assert_allclose(found.start_loss, near.loss, rtol=1e-8)
    done = near.loss < TOLERANCE
    assert 0 < done.sum() < 70
    np.testing.assert_array_equal(found.iterations == 0, done)
    np.testing.assert_array_equal(found.x[done], near.x[done])


def test_single_precision_stays_single():
    problem = sparse_coding("float32")
    signals = SIGNALS.astype(np.float32)
    found = solver(problem, FistaWithRestart(STEP)).solve(signals, tolerance=TOLERANCE)
    assert found.x.dtype == found.loss.dtype == np.float32
    exact = coding().solve(SIGNALS, tolerance=TOLERANCE)
    near = np.abs(found.iterations - exact.iterations) <= 0.15 * exact.iterations + 1
    assert near.mean() > 0.9
    assert np.all((found.loss < TOLERANCE) == (found.status == Status.REACHED))


def test_whoever_diverges_leaves_at_the_start_and_disturbs_no_other():
    thetas = np.array(CURVES)
    thetas[[3, 40, 69]] = [[40.0, 1.0, 1.0], [np.nan, 1.0, 1.0], [1.0, 30.0, 1.0]]
    mine = solver(BOWLS, GradientDescent(0.15))
    found = mine.solve(thetas, tolerance=TOLERANCE)
    assert found.failed.tolist() == [3, 40, 69]
    assert np.all(np.isinf(found.loss[found.failed])) and np.all(found.iterations[[3, 40, 69]] < 5)
    np.testing.assert_array_equal(found.x[found.failed], np.ones((3, 3)))
    usual = mine.solve(CURVES, tolerance=TOLERANCE)
    others = np.delete(np.arange(70), found.failed)
    np.testing.assert_array_equal(found.iterations[others], usual.iterations[others])
    np.testing.assert_allclose(found.x[others], usual.x[others], atol=1e-12)


def checked(at=6):
    inner = SharedADMM.of(jnp.asarray(HESSIAN), 0.3)
    fallback = FistaWithRestart(STEP)
    return Checked(inner, fallback, at=at, step_size=STEP, tolerance=0.05, rescue=40)


@pytest.mark.parametrize("at", [1, 6])
def test_a_checked_rule_is_checked_on_the_way(at):
    """Before, at and after the check; losses as a rollout shows them."""
    rule, few = checked(at), SIGNALS[:30]
    found = solver(CODING, rule, horizon=at, block=16).solve(
        few, tolerance=TOLERANCE, iterations=200
    )
    losses = shown_losses(rule, CODING, few, 200)
    wanted, reached = first_hits(losses, looks(200))
    np.testing.assert_array_equal(found.status == Status.REACHED, reached)
    np.testing.assert_allclose(found.loss, losses[np.arange(30), wanted], rtol=1e-6)
    helped = found.iterations - wanted
    assert np.all(helped >= 0) and np.all(helped % 10 == 0) and np.all(helped[wanted < at] == 0)
    assert np.any(wanted > at) and np.any(wanted <= at)


def test_a_checked_rule_shows_a_callback_every_phase():
    rule, few, seen = checked(), SIGNALS[:10], {}
    solver(CODING, rule, horizon=6).solve(
        few,
        iterations=12,
        callback=lambda i, loss, x: seen.update({i: (loss, x)}),
        every=2,
    )
    losses = shown_losses(rule, CODING, few, 12)
    assert list(seen) == [0, 2, 4, 6, 8, 10, 12]
    for iteration, (loss, _) in seen.items():
        np.testing.assert_allclose(loss, losses[:, iteration], rtol=1e-8)


def test_drawn_rules_stop_by_themselves():
    rule = HeavyBall(jnp.asarray(0.1), jnp.asarray(0.3))
    hypers = np.asarray(hyper_of(rule)) * np.array([[1.0], [0.5], [0.25]])
    drawing = solver(BOWLS, rule, posterior=Posterior(hypers, np.zeros(3)), block=32)
    found = drawing.solve(CURVES, tolerance=TOLERANCE, policy="posterior", key=jax.random.key(0))
    assert found.sample is not None and set(found.sample) == {0, 1, 2}
    for i in range(0, 70, 11):
        mine = HeavyBall(*hypers[found.sample[i]])
        wanted = reach(mine, BOWLS, CURVES[i], TOLERANCE, LIMIT)
        assert found.iterations[i] == wanted.iterations
        np.testing.assert_allclose(found.x[i], wanted.x, atol=1e-10)


def test_drawn_rules_are_checked_too():
    rule = checked()
    hypers = np.asarray(hyper_of(rule))[None]
    drawing = solver(CODING, rule, posterior=Posterior(hypers, np.zeros(1)))
    settings = {"tolerance": TOLERANCE, "iterations": 60}
    found = drawing.solve(SIGNALS, policy="posterior", key=jax.random.key(0), **settings)
    wanted = drawing.solve(SIGNALS, **settings)
    np.testing.assert_array_equal(found.iterations, wanted.iterations)
    np.testing.assert_allclose(found.x, wanted.x, atol=1e-8)
    whole = drawing.solve(SIGNALS, policy="posterior", key=jax.random.key(0), iterations=6)
    np.testing.assert_allclose(whole.loss, drawing.solve(SIGNALS, iterations=6).loss, rtol=1e-8)


def test_a_callback_sees_everyone_though_some_have_left():
    seen = {}
    mine = coding(block=32)
    found = mine.solve(
        SIGNALS,
        tolerance=TOLERANCE,
        callback=lambda i, loss, x: seen.update({i: (loss, x)}),
        every=64,
    )
    assert list(seen) == [0, 64, 128, 192, 256, 300]
    losses, points = seen[300]
    np.testing.assert_array_equal(losses, found.loss)
    np.testing.assert_array_equal(points, found.x)
    early = found.iterations <= 64
    np.testing.assert_array_equal(seen[64][0][early], found.loss[early])
    assert np.all(seen[64][0][~early] >= TOLERANCE)
    np.testing.assert_array_equal(
        mine.solve(SIGNALS, tolerance=TOLERANCE).iterations, found.iterations
    )


def test_smaller_batches_are_of_few_sizes(compilations):
    fresh = dataclasses.replace(coding(), rule=FistaWithRestart(STEP * 0.9))
    with compilations() as first:
        fresh.solve(SIGNALS, tolerance=TOLERANCE)
    with compilations() as later:
        for number in range(3):
            fresh.solve(np.roll(SIGNALS, number) * (1 + number), tolerance=TOLERANCE)
    # All together, then 16 and 4 of them.
    assert first.count <= 4 and later.count <= 1


def loops(compiled):
    """The text of every computation that a loop's body is, with what it calls."""
    parts = dict(re.findall(r"^%?([\w.\-]+) [^\n]*\{\n(.*?)^\}", compiled, re.S | re.M))
    found, waiting = set(), re.findall(r"body=%?([\w.\-]+)", compiled)
    while waiting:
        name = waiting.pop()
        if name in parts and name not in found:
            found.add(name)
            # Branches are entered only when an instance has just finished.
            waiting += re.findall(r"(?:calls|to_apply|body)=%?([\w.\-]+)", parts[name])
    return [parts[name] for name in found]


def test_no_matrix_is_copied_and_no_state_held_back():
    program = Program.of(FistaWithRestart(STEP), CODING, 256)
    batch = Given(SIGNALS[:7], None, None, None)
    go: Any = going(program.rest, "whole")
    lowered = go.lower(program.arrays, batch, numbers(0, LIMIT, 0, TOLERANCE))
    compiled = lowered.compile().as_text()
    assert compiled is not None
    for shape in ("[7,8,12]", "[7,12,8]", "[7,12,12]"):
        assert shape not in compiled
    bodies = loops(compiled)
    assert bodies and any("f64[7,12]" in body for body in bodies)
    for body in bodies:
        assert not re.search(r"f64\[7,12\]\S* select\(", body)
