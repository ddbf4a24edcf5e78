"""A check after a fixed number of iterations, and what happens to those that fail it."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from surestep.base.errors import ConfigurationError
from surestep.problem import make_problem
from surestep.problem.goal import Goal
from surestep.problem.penalties import L1
from surestep.rollout.loop import Status, advance, begin, rollout, unwatched
from surestep.rules import (
    Checked,
    FistaWithRestart,
    Frozen,
    GradientDescent,
    LearnedFista,
    Newton,
    SharedADMM,
)
from surestep.rules.base import hyper_of, with_hyper
from surestep.solver.solver import Solver

MATRIX = np.random.default_rng(0).normal(size=(8, 12)) / np.sqrt(8)
HESSIAN = MATRIX.T @ MATRIX
STEP = float(1 / np.linalg.eigvalsh(HESSIAN)[-1])
LASSO = make_problem(
    lambda x, b: 0.5 * jnp.sum((jnp.asarray(MATRIX) @ x - b) ** 2),
    np.zeros(12),
    sample=lambda key: jax.random.normal(key, (8,)),
    penalty=L1(0.1),
)
BOWL = make_problem(
    lambda x, theta: jnp.sum(jnp.cosh(theta * x) - 1),
    np.ones(3),
    sample=lambda key: jax.random.uniform(key, (3,), minval=0.5, maxval=2.0),
)


def instances(problem, number):
    return jax.vmap(problem.sample)(jax.random.split(jax.random.key(1), number))


def admm(at, **settings):
    inner = SharedADMM.of(jnp.asarray(HESSIAN), 0.3)
    return Checked(inner, FistaWithRestart(STEP), at=at, step_size=STEP, **settings)


def minimum(theta):
    long = rollout(FistaWithRestart(STEP), LASSO, theta, 5000)
    return float(long.losses[-1])


def test_shared_admm_is_the_textbooks():
    """Boyd et al., 3.4.3, written out, with the multiplier it begins with."""
    theta, rho, alpha = np.asarray(instances(LASSO, 1)[0]), 0.3, 1.6
    rule = SharedADMM.of(jnp.asarray(HESSIAN), rho, alpha)

    def soft(vector):
        return np.sign(vector) * np.maximum(np.abs(vector) - 0.1 / rho, 0)

    linear = MATRIX.T @ theta
    z, inverse = np.zeros(12), np.linalg.inv(HESSIAN + rho * np.eye(12))
    u = linear / rho - soft(linear / rho)
    progress = begin(rule, LASSO, theta)
    for _ in range(20):
        x = inverse @ (linear + rho * (z - u))
        relaxed = alpha * x + (1 - alpha) * z
        z, u = soft(relaxed + u), relaxed + u - soft(relaxed + u)
        progress = advance(rule, LASSO, theta, progress)
        np.testing.assert_allclose(progress.state.x, z, atol=1e-12)


@pytest.mark.parametrize("relaxation", [1.0, 1.8, 7.0])
def test_shared_admm_finds_the_minimum_whatever_the_penalties(relaxation):
    """Another one for each coordinate too; a relaxation that is none is cut."""
    penalties = jnp.log(jnp.asarray(np.geomspace(0.05, 3.0, 12)))
    rule = dataclasses.replace(
        SharedADMM.of(jnp.asarray(HESSIAN), 1.0, relaxation), log_penalty=penalties
    )
    theta = instances(LASSO, 3)[2]
    found = rollout(rule, LASSO, theta, 2000)
    assert found.losses[-1] == pytest.approx(minimum(theta), rel=1e-10)


def test_newton_on_a_quadratic_is_there_after_one_step():
    problem = make_problem(
        lambda x, theta: 0.5 * x @ jnp.asarray(HESSIAN + np.eye(12)) @ x - theta @ x + 9.0,
        np.ones(12),
        sample=lambda key: jax.random.normal(key, (12,)),
    )
    theta = instances(problem, 1)[0]
    wanted = np.linalg.solve(HESSIAN + np.eye(12), theta)
    for rule in (Newton(), Newton(anew=False)):
        np.testing.assert_allclose(rollout(rule, problem, theta, 1).x, wanted, rtol=1e-9)


def test_newton_steps_downhill_where_the_loss_bends_the_other_way():
    problem = make_problem(
        lambda x, theta: jnp.sum((x**2 - theta) ** 2),
        np.full(4, 0.1),
        sample=lambda key: jax.random.uniform(key, (4,), minval=0.5, maxval=1.5),
    )
    losses = rollout(Newton(), problem, instances(problem, 1)[0], 30).losses
    assert np.all(np.isfinite(losses)) and losses[1] < losses[0]
    assert losses[-1] < 1e-20


def test_an_instance_that_passes_is_left_alone():
    rule, theta = admm(40, tolerance=1e-3), instances(LASSO, 1)[0]
    bare, checked = (rollout(one, LASSO, theta, 40) for one in (rule.rule, rule))
    np.testing.assert_array_equal(bare.losses, checked.losses)
    np.testing.assert_array_equal(bare.x, checked.x)
    # The check is one gradient.
    assert checked.gradients[-1] == bare.gradients[-1] + 1


def test_an_instance_that_fails_is_rescued_in_the_iteration_of_the_check():
    rule, theta = admm(2, tolerance=1e-8, rescue=5000), instances(LASSO, 1)[0]
    found = rollout(rule, LASSO, theta, 2)
    assert found.losses[-1] == pytest.approx(minimum(theta), rel=1e-9)
    assert found.gradients[-1] > 50
    # It ends with the first of the fallback's checks that it passes.
    assert found.gradients[-1] < 2000


def test_whoever_diverges_is_rescued_from_the_start():
    wild = LearnedFista.around(FistaWithRestart(1e6), times=2)
    rule = Checked(wild, FistaWithRestart(STEP), at=400, rescue=2000, step_size=STEP)
    rule = dataclasses.replace(rule, tolerance=1e-6)
    for theta in instances(LASSO, 3):
        found = rollout(rule, LASSO, theta, 400)
        assert found.status == Status.FINISHED
        assert found.losses[-1] == pytest.approx(minimum(theta), rel=1e-6)


def test_the_loss_after_the_check_is_never_larger_than_the_starts():
    """Even of a rule that climbs, and stops where it is flat."""

    class Climbs(GradientDescent):
        def update(self, x, value, gradient, memory):
            return x + 0.5, None

    rule = Checked(Climbs(1.0), GradientDescent(0.01), at=5, rescue=10, tolerance=1e9)
    for theta in instances(BOWL, 4):
        losses = rollout(rule, BOWL, theta, 5).losses
        assert losses[-2] > losses[0] >= losses[-1]


def test_a_fallback_that_climbs_leaves_the_better_point():
    class Climbs(GradientDescent):
        def update(self, x, value, gradient, memory):
            return x + 0.5, None

    good = GradientDescent(0.05)
    rule = Checked(good, Climbs(1.0), at=5, rescue=10, tolerance=1e-9)
    for theta in instances(BOWL, 4):
        found, alone = (rollout(one, BOWL, theta, 5) for one in (rule, good))
        np.testing.assert_array_equal(found.x, alone.x)
        assert float(found.losses[-1]) == pytest.approx(float(alone.losses[-1]), rel=1e-14)


def test_a_frozen_rule_iterates_and_learns_nothing():
    """So that a rule with numbers of its own may help."""
    splitting = SharedADMM.of(jnp.asarray(HESSIAN), 0.3)
    frozen = Frozen(splitting)
    assert hyper_of(frozen).size == 0 and hyper_of(splitting).size == 2
    theta = instances(LASSO, 1)[0]
    one, other = (rollout(rule, LASSO, theta, 7) for rule in (splitting, frozen))
    np.testing.assert_array_equal(one.losses, other.losses)
    slow = LearnedFista.around(FistaWithRestart(1e-3 * STEP), times=2)
    settings = {"at": 3, "tolerance": 1e-8, "rescue": 500, "step_size": STEP}
    rule = Checked(slow, frozen, **settings)
    assert hyper_of(rule).size == 4
    with pytest.raises(ConfigurationError, match="inside a Frozen"):
        Checked(slow, splitting, **settings)
    found = Solver(LASSO, rule, 3, Goal(1.0, 1.0)).solve(np.asarray(theta)[None])
    assert float(found.loss[0]) == pytest.approx(minimum(theta), rel=1e-9)


@pytest.mark.parametrize("steps", [1, 3, 4, 9])
def test_step_by_step_is_the_same_as_all_at_once(steps):
    theta = instances(LASSO, 2)[1]
    rule = admm(4, tolerance=1e-4, rescue=100)
    progress = begin(rule, LASSO, theta)
    losses = [progress.loss]
    for _ in range(steps):
        progress = advance(rule, LASSO, theta, progress)
        losses.append(progress.loss)
    found = rollout(rule, LASSO, theta, steps)
    np.testing.assert_allclose(found.losses, losses, rtol=1e-12)
    np.testing.assert_allclose(found.x, progress.state.x, atol=1e-12)


@pytest.mark.parametrize("number", [1, 5])
@pytest.mark.parametrize("steps", [2, 6, 9])
def test_a_solver_does_what_a_rollout_shows(number, steps):
    """Checked, helped in a batch of its own, and gone on with."""
    thetas = instances(LASSO, number)
    rule = admm(6, tolerance=0.05, rescue=300)
    solver = Solver(LASSO, rule, horizon=6, goal=Goal(0.5, 1.0))
    found = solver.solve(np.asarray(thetas), iterations=steps)
    shown = [rollout(rule, LASSO, theta, steps) for theta in thetas]
    np.testing.assert_allclose(found.loss, [one.losses[-1] for one in shown], rtol=1e-10)
    np.testing.assert_allclose(found.x, [one.x for one in shown], atol=1e-9)
    if number > 1 and steps == 6:
        helped = found.iterations > 6
        assert 0 < helped.sum() < number


def test_the_hyper_is_the_rules_and_what_is_fixed_is_not_learned():
    rule = admm(3)
    assert hyper_of(rule).size == 2
    changed = with_hyper(rule, jnp.asarray([0.5, 1.1]))
    inner = changed.rule
    assert isinstance(inner, SharedADMM) and inner.log_penalty == 0.5
    np.testing.assert_array_equal(inner.hessian.array, HESSIAN)
    assert rule.bare() is rule.rule


def test_numbers_that_cannot_work_are_refused():
    for settings in ({"at": 0}, {"at": 1, "rescue": -1}, {"at": 1, "tolerance": 0.0}):
        with pytest.raises(ConfigurationError, match="a check needs"):
            admm(**settings)
    with pytest.raises(ConfigurationError, match="nothing to learn"):
        Checked(Newton(), GradientDescent(jnp.asarray(0.1)), at=1)


def test_a_batch_makes_no_array_of_batch_times_matrix():
    """Shared matrices stay shared: there is no copy of one for each instance."""
    thetas, rule = instances(LASSO, 7), admm(5).prepare()

    def solve(rule, thetas):
        return jax.vmap(lambda theta: unwatched(rule, LASSO, theta, 5).x)(thetas)

    arrays, rest = eqx.partition(rule, eqx.is_array)
    program = jax.jit(lambda arrays, thetas: solve(eqx.combine(arrays, rest), thetas))
    compiled = program.lower(arrays, thetas).compile().as_text()
    assert compiled is not None
    assert "f64[7,12,12]" not in compiled and "f64[7,8,12]" not in compiled
