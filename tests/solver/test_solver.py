"""The solver in use: what it computes, when it stops, and what the certificate covers."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import surestep as ss
from support.catalogue import Bowl
from support.production import THETAS, certified_solver, first
from support.types import unchecked
from surestep.base.errors import ConfigurationError
from surestep.problem.base import instance
from surestep.problem.goal import Goal
from surestep.rollout.loop import Status
from surestep.rules import GradientDescent, Started
from surestep.rules.base import with_hyper
from surestep.solver.monitor import Monitor
from surestep.solver.posterior import Posterior
from surestep.solver.solver import Solver

SOLVER = certified_solver()
HORIZON = SOLVER.horizon
DIAGONAL, TARGET = np.asarray(THETAS.diagonal), np.asarray(THETAS.target)


def losses_at(x):
    return 0.5 * np.sum((DIAGONAL * x - TARGET) ** 2, axis=1)


def heavy_ball(hyper, iterations, x=None):
    """The same method on the same quadratics, in NumPy: every point, the start first."""
    step, momentum = (np.asarray(number)[..., None] for number in np.asarray(hyper).T)
    x = np.zeros_like(TARGET) if x is None else x
    points = [x, x]
    for _ in range(iterations):
        last, before = points[-1], points[-2]
        gradient = DIAGONAL * (DIAGONAL * last - TARGET)
        points.append(last - step * gradient + momentum * (last - before))
    return np.stack(points[1:])


HYPER = np.array([SOLVER.rule.step_size, SOLVER.rule.momentum])
POINTS = heavy_ball(HYPER, 3 * HORIZON)
LOSSES = np.stack([losses_at(x) for x in POINTS])


def test_it_does_what_the_rule_does():
    found = SOLVER.solve(THETAS)
    np.testing.assert_allclose(found.x, POINTS[HORIZON], rtol=1e-12)
    np.testing.assert_allclose(found.loss, LOSSES[HORIZON], rtol=1e-12)
    np.testing.assert_allclose(found.start_loss, LOSSES[0], rtol=1e-12)
    np.testing.assert_array_equal(found.iterations, HORIZON)
    np.testing.assert_array_equal(found.gradients, HORIZON + 1)
    assert np.all(found.status == Status.FINISHED)
    assert found.covered and found.covered.reasons == ()
    assert all(type(leaf) is np.ndarray for leaf in jax.tree.leaves(vars(found)["x"]))
    assert str(found) == "6 of 6: all iterations were made\ncovered"


def test_the_older_name_of_the_policy_means_the_same():
    np.testing.assert_array_equal(
        SOLVER.solve(THETAS, policy="point").loss, SOLVER.solve(THETAS, policy="deployed").loss
    )
    assert SOLVER.monitor(policy="point") == SOLVER.monitor(policy="deployed")
    assert SOLVER.monitor(policy="point") != SOLVER.monitor(policy="posterior")


def test_the_precision_of_the_process_does_not_matter():
    """Users seldom set JAX's 64-bit flag; tests do."""
    with jax.enable_x64(False):
        settings = {"policy": "posterior", "key": jax.random.key(3)}
        found = [
            SOLVER.solve(jax.tree.map(np.asarray, THETAS), callback=lambda *_: False),
            SOLVER.solve(THETAS, **settings, monitor=SOLVER.monitor(policy="posterior")),
        ]
        fresh = dataclasses.replace(SOLVER)
        assert fresh.solve(THETAS, x0=np.zeros((6, 8))).loss.dtype == np.float64
    wanted = [SOLVER.solve(THETAS), SOLVER.solve(THETAS, **settings)]
    for one, other in zip(found, wanted, strict=True):
        assert one.covered and one.x.dtype == np.float64
        np.testing.assert_array_equal(one.x, other.x)
        np.testing.assert_array_equal(one.loss, other.loss)


def test_more_or_fewer_iterations():
    for iterations in (1, 3 * HORIZON):
        found = SOLVER.solve(THETAS, iterations=iterations)
        np.testing.assert_allclose(found.loss, LOSSES[iterations], rtol=1e-10)
        assert f"{iterations} iterations are asked for" in str(found.covered)


def test_a_tolerance_stops_every_instance_by_itself():
    tolerance = float(np.median(LOSSES[HORIZON]))
    found = SOLVER.solve(THETAS, tolerance=tolerance)
    below = LOSSES[: HORIZON + 1] < tolerance
    first = np.where(below.any(axis=0), below.argmax(axis=0), HORIZON)
    assert len(set(first)) > 1, "the tolerance must tell instances apart"
    np.testing.assert_array_equal(found.iterations, first)
    np.testing.assert_array_equal(found.gradients, first + 1)
    np.testing.assert_allclose(found.loss, LOSSES[first, np.arange(6)], rtol=1e-12)
    wanted = np.where(below.any(axis=0), Status.REACHED, Status.LIMIT)
    np.testing.assert_array_equal(found.status, wanted)
    assert not found.covered and "with a tolerance" in str(found.covered)


def test_one_instance_is_a_row_of_the_set():
    whole = SOLVER.solve(THETAS)
    alone = SOLVER.solve_one(instance(THETAS, 4))
    assert alone.loss.shape == alone.status.shape == ()
    np.testing.assert_allclose(alone.x, whole.x[4], rtol=1e-13)
    np.testing.assert_allclose(alone.loss, whole.loss[4], rtol=1e-13)
    assert alone.covered
    assert alone.messages == [
        f"instance 0: all iterations were made ({HORIZON} iterations, loss {alone.loss:.4g})"
    ]


def test_it_starts_where_it_is_told():
    x0 = np.full_like(TARGET, 0.3)
    found = SOLVER.solve(THETAS, x0=x0)
    wanted = heavy_ball(HYPER, HORIZON, x0)
    np.testing.assert_allclose(found.x, wanted[-1], rtol=1e-12)
    np.testing.assert_allclose(found.start_loss, losses_at(x0), rtol=1e-12)
    assert "x0 is another" in str(found.covered)
    one = SOLVER.solve_one(instance(THETAS, 1), x0=x0[1])
    np.testing.assert_allclose(one.loss, found.loss[1], rtol=1e-12)


def test_a_learned_start_is_for_the_problems_start_alone():
    rule = Started(GradientDescent(1e-3), jnp.full(8, 5.0))
    solver = dataclasses.replace(SOLVER, rule=rule, certificate=None, posterior=None)
    np.testing.assert_allclose(
        solver.solve(THETAS, iterations=1).start_loss, losses_at(np.full_like(TARGET, 5.0))
    )
    elsewhere = np.full_like(TARGET, 0.3)
    np.testing.assert_allclose(
        solver.solve(THETAS, iterations=1, x0=elsewhere).start_loss, losses_at(elsewhere)
    )


def test_a_callback_sees_chunks_and_changes_nothing():
    seen = []

    def watch(iteration, losses, points):
        seen.append((iteration, losses, points))

    found = SOLVER.solve(THETAS, callback=watch, every=4)
    assert [iteration for iteration, _, _ in seen] == [0, 4, 8, 10] and HORIZON == 10
    for iteration, losses, points in seen:
        np.testing.assert_allclose(losses, LOSSES[iteration], rtol=1e-11)
        np.testing.assert_allclose(points, POINTS[iteration], rtol=1e-11, atol=1e-13)
    np.testing.assert_array_equal(found.x, SOLVER.solve(THETAS).x)
    assert found.covered and np.all(found.status == Status.FINISHED)


def test_a_callback_can_stop():
    found = SOLVER.solve(THETAS, callback=lambda i, *_: i >= 5, every=3)
    np.testing.assert_array_equal(found.iterations, 6)
    assert np.all(found.status == Status.STOPPED)
    assert "the callback asked to stop" in found.covered.reasons
    # At the end there is nothing left to stop.
    assert SOLVER.solve(THETAS, callback=lambda i, *_: i == HORIZON).covered
    alone = SOLVER.solve_one(
        instance(THETAS, 0), callback=lambda _, loss, x: loss.shape == () and x.shape == (8,)
    )
    assert alone.iterations == 0 and alone.status == Status.STOPPED


def test_tolerance_and_callback_together():
    tolerance = float(np.median(LOSSES[HORIZON]))
    whole = SOLVER.solve(THETAS, tolerance=tolerance)
    chunks = SOLVER.solve(THETAS, tolerance=tolerance, callback=lambda *_: None, every=1)
    for name in ("x", "loss", "iterations", "gradients", "status"):
        np.testing.assert_array_equal(getattr(chunks, name), getattr(whole, name))


def test_every_instance_gets_a_draw_of_its_own():
    key = jax.random.key(3)
    found = SOLVER.solve(THETAS, policy="posterior", key=key)
    assert found.covered and found.sample is not None
    assert len(set(found.sample)) > 1
    drawn = SOLVER.posterior.hypers[found.sample]
    np.testing.assert_allclose(found.x, heavy_ball(drawn, HORIZON)[-1], rtol=1e-11)
    again = SOLVER.solve(THETAS, policy="posterior", key=key)
    np.testing.assert_array_equal(again.x, found.x)


def test_draws_follow_the_weights():
    drawn = np.asarray(Posterior(np.zeros((3, 1)), np.log([0.2, 0.5, 0.3]) + 7).draw(
        jax.random.key(0), 3000
    ))  # fmt: skip
    counts = np.bincount(drawn, minlength=3)
    assert stats.chisquare(counts, 3000 * np.array([0.2, 0.5, 0.3])).pvalue > 1e-3


def broken(index):
    diagonal = np.array(DIAGONAL)
    diagonal[index] = np.nan
    return THETAS._replace(diagonal=diagonal)


def test_an_instance_that_diverges_is_named_and_disturbs_no_other():
    found = SOLVER.solve(broken(2))
    assert found.status.tolist() == [0, 0, Status.DIVERGED, 0, 0, 0]
    # Nobody looks before the end.
    assert found.iterations.tolist() == [10] * 6
    assert np.isinf(found.loss[2])
    np.testing.assert_array_equal(np.delete(found.x, 2, 0), np.delete(SOLVER.solve(THETAS).x, 2, 0))
    assert found.failed.tolist() == [2]
    assert "instance 2: the loss became infinite or not a number (10 iterations" in str(found)


def with_goal(scale):
    return dataclasses.replace(SOLVER, goal=Goal(scale, 1.0))


def test_a_monitor_is_fed_with_missed_goals():
    scale = float(np.median(LOSSES[HORIZON] / LOSSES[0]))
    monitor = SOLVER.monitor(delta=0.02)
    statement = next(s for s in SOLVER.certificate.statements if s.name == "missing the goal")
    assert (monitor.failure, monitor.delta) == (statement.value, 0.02)
    found = with_goal(scale).solve(THETAS, monitor=monitor)
    missed = LOSSES[HORIZON] > scale * LOSSES[0]
    assert 0 < missed.sum() < 6
    assert found.monitor == monitor.fed(missed)
    assert monitor.seen == 0
    assert f"was fed 6 outcomes, {missed.sum()} of them failures" in found.monitor_note
    # A rollout that diverged has missed the goal.
    assert with_goal(1.0).solve(broken(0), monitor=monitor).monitor.failures == 1
    other = SOLVER.monitor(policy="posterior")
    drawn = SOLVER.solve(THETAS, policy="posterior", key=jax.random.key(0), monitor=other)
    assert drawn.monitor.failure == statement.posterior_value and drawn.monitor.seen == 6


def test_a_monitor_is_not_fed_with_what_the_certificate_does_not_cover():
    monitor = SOLVER.monitor()
    found = SOLVER.solve(THETAS, iterations=3, monitor=monitor)
    assert found.monitor is monitor
    assert "was not fed" in found.monitor_note and "3 iterations are asked for" in str(found)
    with pytest.raises(ConfigurationError, match=r"only .* is certified for the policy 'deployed'"):
        SOLVER.solve(THETAS, monitor=Monitor(monitor.failure / 2))
    bare = dataclasses.replace(SOLVER, certificate=None, posterior=None)
    assert "no certificate" in bare.solve(THETAS, monitor=Monitor(0.01)).monitor_note
    with pytest.raises(ConfigurationError, match="nothing to monitor"):
        bare.monitor()


def as_type(kind):
    return jax.tree.map(lambda leaf: np.asarray(leaf).astype(kind), THETAS)


def test_narrower_numbers_are_solved_but_not_covered():
    found = SOLVER.solve(as_type(np.float32))
    assert found.loss.dtype == np.float64
    np.testing.assert_allclose(found.loss, LOSSES[HORIZON], rtol=1e-3)
    assert "diagonal came as float32" in str(found.covered)
    assert SOLVER.solve(jax.tree.map(np.asarray, THETAS)).covered
    # Whole numbers are numbers, but none that the family draws.
    assert "came as int64" in str(SOLVER.solve(as_type(np.int64)).covered)


def test_another_shape_is_solved_where_it_can_be_but_not_covered():
    narrow = jax.tree.map(lambda leaf: leaf[:, :5], THETAS)
    found = SOLVER.solve(narrow)
    assert found.x.shape == (6, 5)
    np.testing.assert_allclose(found.x, POINTS[HORIZON][:, :5], rtol=1e-12)
    assert "diagonal has the shape (5,), the family's instances (8,)" in str(found.covered)
    with pytest.raises(ConfigurationError, match="cannot be computed on instances of shapes"):
        SOLVER.solve(THETAS._replace(diagonal=THETAS.diagonal[:, :5]))
    started = Started(GradientDescent(1e-3), jnp.zeros(8))
    with pytest.raises(ConfigurationError, match="the rule cannot run on instances of these"):
        dataclasses.replace(SOLVER, rule=started).solve(narrow)


def test_a_certificate_of_another_rule_covers_nothing():
    other = dataclasses.replace(SOLVER, rule=with_hyper(SOLVER.rule, jnp.array([0.01, 0.5])))
    assert "the certificate is of another rule" in other.solve(THETAS).covered.reasons
    posterior = Posterior(SOLVER.posterior.hypers + 1e-9, SOLVER.posterior.log_weights)
    other = dataclasses.replace(SOLVER, posterior=posterior)
    assert other.solve(THETAS).covered
    drawn = other.solve(THETAS, policy="posterior", key=jax.random.key(0))
    assert "the posterior is not the one" in str(drawn.covered)


KEY = jax.random.key(0)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"iterations": 0}, "iterations must be at least 1, not 0"),
        ({"tolerance": 0.0}, "tolerance must be positive"),
        ({"tolerance": np.nan}, "tolerance must be positive"),
        ({"every": 0}, "every must be at least 1"),
        ({"policy": "mean"}, "'deployed' or 'posterior', not 'mean'"),
        ({"policy": "posterior"}, "a key goes with"),
        ({"key": KEY}, "a key goes with"),
        ({"x0": np.zeros(8)}, r"x0: x must have the shape \(6, 8\), not \(8,\)"),
        ({"x0": {"a": np.zeros((6, 8))}}, "x0 must have the structure x"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings, message):
    with unchecked(), pytest.raises(ConfigurationError, match=message):
        SOLVER.solve(THETAS, **settings)


@pytest.mark.parametrize(
    ("thetas", "message"),
    [
        (np.zeros((6, 8)), "must have the structure diagonal, target"),
        (instance(THETAS, 0), r"diagonal must have the shape \(instances, 8,\), not \(8,\)"),
        (first(THETAS, 0), "at least one"),
        (THETAS._replace(target=TARGET[:4]), "equally many rows"),
        (as_type(np.complex128), "diagonal must be float64, not complex128"),
    ],
)
def test_instances_that_cannot_be_are_refused(thetas, message):
    with pytest.raises(ConfigurationError, match=message):
        SOLVER.solve(thetas)


def test_solvers_that_cannot_be_are_refused():
    with pytest.raises(ConfigurationError, match="horizon and block must be at least 1"):
        dataclasses.replace(SOLVER, horizon=0)
    bare = dataclasses.replace(SOLVER, posterior=None)
    with pytest.raises(ConfigurationError, match="no posterior to draw from"):
        bare.solve(THETAS, policy="posterior", key=KEY)


def test_a_point_can_have_any_form():
    theta = np.random.default_rng(0).normal(size=(3, 2, 2))
    solver = Solver(Bowl(), GradientDescent(0.3), 60, Goal(1.0, 1.0))
    seen = []
    found = solver.solve(theta, callback=lambda *given: seen.append(given), every=60)
    assert found.x["a"].shape == (3, 2, 2) and found.x["b"].shape == (3,)
    np.testing.assert_array_equal(seen[0][2]["b"], [-1.0, -1.0, -1.0])
    np.testing.assert_allclose(found.x["b"], theta[:, 0, 0], atol=1e-9)
    # A gradient step has no memory: half the way twice is the whole way.
    half = solver.solve(theta, iterations=30)
    np.testing.assert_array_equal(solver.solve(theta, iterations=30, x0=half.x).loss, found.loss)


def test_the_second_call_compiles_nothing(compilations):
    def calls(seed):
        key = jax.random.key(seed)
        thetas = jax.tree.map(lambda leaf: np.asarray(leaf) * (1 + 0.01 * seed), THETAS)
        rule = with_hyper(SOLVER.rule, jnp.asarray([0.01, 0.5 + 0.01 * seed]))
        solver = dataclasses.replace(SOLVER, rule=rule)
        solver.solve(thetas, iterations=HORIZON + seed)
        solver.solve(thetas, tolerance=1.0 + seed)
        solver.solve(thetas, x0=np.asarray(thetas.target), callback=lambda *_: False)
        solver.solve(thetas, policy="posterior", key=key)
        SOLVER.solve(thetas, monitor=SOLVER.monitor())

    calls(0)
    with compilations() as second:
        calls(1)
    assert second.count == 0


def test_a_start_that_takes_long_is_computed_once():
    """A loop in the start, one in the solve: the check and what is handed out need no other."""

    def slow(theta):
        return jax.lax.fori_loop(0, 20, lambda _, x: jnp.cos(x) + theta, jnp.zeros(4))

    problem = ss.make_problem(
        lambda x, theta: jnp.sum(jnp.cosh(x - theta)), x0=slow,
        sample=lambda key: jax.random.normal(key, (4,)),
    )  # fmt: skip
    rule = ss.rules.Checked(
        ss.rules.HeavyBall(0.1, 0.5), ss.rules.GradientDescent(0.1), at=5, tolerance=1e-3
    )
    solver = ss.Solver(problem, rule, 5, ss.Goal(scale=0.5, exponent=1.0))
    with jax.enable_x64(True):
        theta = problem.sample(jax.random.key(0))
        program = solver._program
        head: Any = program._head
        lowered = head.lower(program.arrays, theta[None], jnp.asarray(5, jnp.int32), None)
        text = str(lowered.compile().as_text())
    assert text.count(" while(") == 2
