"""Training a small network: its instances, its loss, its tuned opponent, and a whole run."""

import jax
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from scipy import stats

from surestep import paper
from surestep.base.errors import ConfigurationError
from surestep.base.keys import named_key
from surestep.paper.network import PRESETS, NetworkSettings, NetworkTraining, Weights
from surestep.problem.base import instance
from surestep.problem.contract import check_problem
from surestep.problem.datasets import PriorSet, TestSet
from surestep.problem.draw import draw
from surestep.problem.goal import Goal
from surestep.rollout.batched import losses_at
from surestep.rules import LBFGS, Adam, GradientDescent, Preconditioned
from surestep.run.pipeline import learn
from surestep.train.tuning import TuningSettings

PROBLEM = NetworkTraining.create(NetworkSettings(), 0)
TINY = PRESETS["tiny"]


@pytest.fixture(scope="module")
def experiment():
    return paper.build(TINY)


@pytest.fixture(scope="module")
def learned(experiment):
    with jax.enable_x64(True):
        return learn(TINY, experiment)


def test_instances_are_noisy_points_of_the_papers_polynomials():
    thetas = draw(PROBLEM, 2000, named_key(0, "data"))
    inputs, targets = np.asarray(thetas.inputs), np.asarray(thetas.targets)
    coefficients = np.asarray(thetas.coefficients)
    assert inputs.shape == targets.shape == (2000, 50) and coefficients.shape == (2000, 6)
    truth = np.stack(
        [np.polynomial.polynomial.polyval(x, c) for x, c in zip(inputs, coefficients, strict=True)]
    )
    cases = (
        (inputs, stats.uniform(-2, 4)),
        (coefficients, stats.uniform(-5, 10)),
        (targets - truth, stats.norm()),
    )
    for values, law in cases:
        assert stats.kstest(values.ravel(), law.cdf).pvalue > 1e-3
    np.testing.assert_allclose(
        PROBLEM.truth_losses(thetas), np.mean((truth - targets) ** 2, axis=1), rtol=1e-9
    )


def test_every_instance_starts_from_the_same_normal_weights():
    theta = PROBLEM.sample(named_key(0, "one"))
    start = PROBLEM.start(theta)
    shapes = [part.shape for part in start]
    assert shapes == [(50, 5), (50,), (50,), ()]
    flat = np.asarray(ravel_pytree(start)[0])
    assert flat.size == 351
    assert stats.kstest(flat, stats.norm().cdf).pvalue > 1e-3
    other = PROBLEM.start(PROBLEM.sample(named_key(1, "other")))
    np.testing.assert_array_equal(flat, ravel_pytree(other)[0])
    again, another = (NetworkTraining.create(NetworkSettings(), seed) for seed in (0, 1))
    np.testing.assert_array_equal(again.initial.inner, PROBLEM.initial.inner)
    assert np.all(np.asarray(another.initial.inner) != np.asarray(PROBLEM.initial.inner))


def reference_loss(x, theta):
    """The paper's network, point by point."""
    total = 0.0
    for t, y in zip(np.asarray(theta.inputs), np.asarray(theta.targets), strict=True):
        features = np.array([t, t**2, t**3, t**4, t**5])
        hidden = np.clip(np.asarray(x.inner) @ features + np.asarray(x.inner_bias), 0, None)
        total += (np.asarray(x.outer) @ hidden + float(x.outer_bias) - y) ** 2
    return total / len(theta.inputs)


def test_the_loss_is_that_of_the_paper():
    theta = PROBLEM.sample(named_key(0, "one"))
    for x in (PROBLEM.initial, Weights(*(0.3 * part + 0.1 for part in PROBLEM.initial))):
        assert PROBLEM.loss(x, theta) == pytest.approx(reference_loss(x, theta), rel=1e-12)


def test_the_gradient_is_that_of_finite_differences():
    theta = PROBLEM.sample(named_key(0, "one"))
    flat, unravel = ravel_pytree(PROBLEM.initial)
    gradient = np.asarray(jax.grad(lambda v: PROBLEM.loss(unravel(v), theta))(flat))
    loss = jax.jit(jax.vmap(lambda v: PROBLEM.loss(unravel(v), theta)))
    step = 1e-6
    nudges = step * np.eye(351)
    slopes = (np.asarray(loss(flat + nudges)) - np.asarray(loss(flat - nudges))) / (2 * step)
    np.testing.assert_allclose(gradient, slopes, rtol=1e-5, atol=1e-5 * np.abs(gradient).max())


def test_the_problem_keeps_its_contract():
    check_problem(PROBLEM, draw(PROBLEM, 10, named_key(0, "data")), 4)


def test_the_second_moment_of_the_goal_is_that_of_a_large_sample():
    thetas = draw(PROBLEM, 20_000, named_key(0, "data"))
    losses = np.asarray(losses_at(GradientDescent(0.0), PROBLEM, thetas, (1,), 2000))[:, 0]
    error = 4 * losses.std() / losses.size**0.5
    assert PROBLEM.mean_start_loss() == pytest.approx(losses.mean(), abs=error)
    assert error < 0.03 * losses.mean()
    half, quarter = Goal(0.25, 0.5), Goal(0.25, 0.25)
    assert PROBLEM.goal_second_moment(half) == PROBLEM.mean_start_loss() / 16
    moment = PROBLEM.goal_second_moment(quarter)
    assert moment is not None and moment > np.mean((0.25 * losses**0.25) ** 2)
    assert PROBLEM.goal_second_moment(Goal(0.25, 0.75)) is None


@pytest.mark.parametrize(
    "changes",
    [
        {"points": 0},
        {"degree": 0},
        {"hidden": 0},
        {"interval": 0.0},
        {"spread": -1.0},
        {"noise": -1.0},
        {"adam": TuningSettings(values=1)},
    ],
)
def test_impossible_families_are_refused(changes):
    with pytest.raises(ConfigurationError, match=rf"problem\.{next(iter(changes))}"):
        NetworkTraining.create(NetworkSettings(**changes), 0)


def test_the_paper_preset_has_the_papers_numbers():
    paper = PRESETS["paper"]
    assert (paper.horizon, paper.goal, paper.evaluate.limit) == (100, Goal(0.25, 0.5), 5000)
    assert (paper.locate.steps, paper.sample.samples) == (200_000, 100)
    assert paper.problem == NetworkSettings(50, 5, 50, 2.0, 5.0, 1.0, TuningSettings())
    assert paper.problem.adam == TuningSettings(1e-4, 1.0, 100)


def test_the_experiment_has_a_tuned_adam_and_the_papers_teacher(experiment):
    adam, teacher = experiment.baselines["Adam"], experiment.teacher
    assert isinstance(experiment.baselines["L-BFGS"], LBFGS)
    assert isinstance(teacher, GradientDescent) and teacher.step_size == 1e-5
    thetas = PriorSet.draw(experiment.problem, TINY.sizes.prior, TINY.seed).thetas
    means = [
        float(losses_at(Adam(rate), experiment.problem, thetas, (TINY.horizon,), 64).mean())
        for rate in TINY.problem.adam.grid
    ]
    assert adam.learning_rate == TINY.problem.adam.grid[np.argmin(means)]
    with jax.enable_x64(True):
        rule = experiment.rule(0)
    assert isinstance(rule, Preconditioned)
    assert rule.gradient_scaling.size == 6 * 3 + 6 + 6 + 1


def test_the_tuned_rate_comes_out_again(experiment):
    assert paper.build(TINY).baselines["Adam"] == experiment.baselines["Adam"]


def test_a_tiny_run_learns_a_rule_that_is_ahead_of_adam(learned):
    evaluation = learned.evaluation
    assert evaluation.solvers == ["learned", "Adam"]
    ours, adams = evaluation.losses[:, :, TINY.horizon].mean(axis=1)
    assert ours < 0.5 * adams
    assert evaluation.success.successes >= 0.9 * evaluation.success.trials
    assert evaluation.above == "the true polynomial's loss"


def test_accuracies_are_counted_from_the_true_polynomials_loss(learned):
    test = TestSet.draw(learned.problem, TINY.sizes.test, TINY.seed)
    for i in range(3):
        theta = instance(test.thetas, i)
        truth = np.polynomial.polynomial.polyval(
            np.asarray(theta.inputs), np.asarray(theta.coefficients)
        )
        expected = np.mean((truth - np.asarray(theta.targets)) ** 2)
        assert learned.evaluation.references[i] == pytest.approx(expected, rel=1e-9)
