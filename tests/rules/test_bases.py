"""The rules of the presets `best`: what they are before training, and that they stay sound."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from surestep import paper
from surestep.base.errors import ConfigurationError
from surestep.base.keys import named_key
from surestep.paper.lasso import Lasso, LassoSettings
from surestep.paper.quadratics import QuadraticsSettings
from surestep.problem.draw import draw, working_precision
from surestep.rollout.batched import rollouts
from surestep.rollout.loop import Rollout
from surestep.rules import (
    LBFGS,
    ConjugateGradients,
    LearnedPrimalDual,
    MetricConjugateGradients,
    PreconditionedConjugateGradients,
    PrimalDual,
    ProximalGradient,
    Safeguarded,
    SafeguardSettings,
    Started,
)
from surestep.rules.base import Rule, hyper_of, require_fit
from surestep.train.common_start import CommonStartSettings
from surestep.train.experiment import Accuracies

PICTURES = paper.build(paper.preset("image", "tiny")).problem
QUADRATICS = paper.build(paper.preset("quadratics", "tiny")).problem
NAMES = ("quadratics", "image", "lasso", "network", "mnist")


def run(rule: Rule, problem, iterations: int, size: int = 4) -> Rollout:
    with working_precision(problem):
        thetas = draw(problem, size, named_key(3, "instances"))
        return rollouts(rule, problem, thetas, iterations, size)


def test_an_untrained_primal_dual_rule_is_the_classical_one():
    base = PrimalDual(6.0)
    with working_precision(PICTURES):
        rule = LearnedPrimalDual.around(base, 5)
    learned, classical = run(rule, PICTURES, 20), run(base, PICTURES, 20)
    np.testing.assert_array_equal(learned.losses, classical.losses)
    np.testing.assert_array_equal(learned.gradients, classical.gradients)


def test_whatever_was_learned_a_primal_dual_rule_ends_in_the_minimum():
    """Its early numbers are wild, and it is the classical method from the sixth iteration on."""
    with working_precision(PICTURES):
        rule = LearnedPrimalDual(jax.random.normal(jax.random.key(0), (2, 5, 5)), 6.0)
    wild, trusted = run(rule, PICTURES, 1500), run(LBFGS(), PICTURES, 200)
    assert np.max(wild.losses[:, 6]) > 1.5 * np.min(trusted.losses[:, -1])
    np.testing.assert_allclose(
        np.min(wild.losses, axis=1), np.min(trusted.losses, axis=1), rtol=1e-3
    )


def test_a_learned_metric_is_a_metric_of_conjugate_gradients():
    with working_precision(QUADRATICS):
        logs = jax.random.normal(jax.random.key(1), (8,))
        learned = MetricConjugateGradients(logs)
        classical = PreconditionedConjugateGradients(jnp.exp(logs))
    assert hyper_of(learned).size == 8
    found, expected = run(learned, QUADRATICS, 12), run(classical, QUADRATICS, 12)
    np.testing.assert_allclose(found.losses, expected.losses, rtol=1e-9, atol=1e-20)
    assert np.all(np.diff(found.losses, axis=1) <= 1e-18)


def test_conjugate_gradients_stay_at_the_minimum_however_long_they_run():
    """Their recurrences go on shrinking there, down to noise that led to losses of 1e143."""
    hard = paper.build(
        dataclasses.replace(
            paper.preset("quadratics", "tiny"), problem=QuadraticsSettings(dimension=40)
        )
    )
    metric = hard.baselines["preconditioned CG"]
    for rule in (metric, ConjugateGradients()):
        losses = np.asarray(run(rule, hard.problem, 3000).losses)
        assert np.all(losses[:, -1] < 1e-18)
        assert np.all(losses[:, 1:] <= losses[:, :-1] * (1 + 1e-8))


def test_a_proximal_gradient_step_is_that_of_numpy_and_monotone():
    problem = Lasso.create(LassoSettings(rows=6, columns=15, start=5.0), 0)
    step = 1 / problem.smoothness
    result = run(ProximalGradient(step), problem, 30, size=1)
    theta = problem.sample(jax.random.fold_in(named_key(3, "instances"), 0))
    A, b, x = (np.asarray(a) for a in (problem.matrix, theta.target, problem.origin))
    for _ in range(30):
        moved = x - step * A.T @ (A @ x - b)
        x = np.sign(moved) * np.maximum(np.abs(moved) - step * float(theta.weight), 0)
    np.testing.assert_allclose(result.x[0], x, rtol=1e-9, atol=1e-12)
    assert np.all(np.diff(result.losses, axis=1) <= 1e-9)
    assert result.gradients[0, -1] == 30


def test_relative_accuracies_are_shares_of_the_reference():
    references = np.array([10.0, 200.0])
    shares = Accuracies((0.1, 0.01), relative=True).targets(references)
    np.testing.assert_allclose(shares, [[11, 220], [10.1, 202]])
    np.testing.assert_allclose(Accuracies((0.1,)).targets(references), [[10.1, 200.1]])


@pytest.mark.parametrize("name", NAMES)
def test_every_problem_has_the_paper_s_rule_guarded_and_a_residual_one(name):
    tiny = paper.preset(name, "tiny")
    if name == "mnist":
        # How good the common start is does not matter here.
        start = CommonStartSettings(instances=2, steps=3)
        tiny = dataclasses.replace(tiny, problem=dataclasses.replace(tiny.problem, start=start))
    kinds = {}
    for kind in ("paper", "guarded", "residual"):
        experiment = paper.build(dataclasses.replace(tiny, rule=kind))
        with working_precision(experiment.problem):
            rule = experiment.rule(0)
        require_fit(rule, experiment.problem)
        kinds[kind] = type(rule)
        assert (experiment.teacher is None) == (kind == "residual")
        if experiment.informed is not None:
            assert isinstance(rule, Started)
            for told in experiment.informed(rule).values():
                assert isinstance(told, Started)
                assert told.shift is rule.shift
    assert kinds["guarded"] is Safeguarded
    assert len(set(kinds.values())) == 3


@pytest.mark.parametrize("name", NAMES)
def test_the_preset_best_is_valid_and_learns_by_merit(name):
    best = paper.preset(name, "best")
    best.validate()
    assert best.locate.keep == "best"
    assert best.population.members > 1


def test_safeguards_are_made_from_settings_and_refuse_nonsense():
    made = SafeguardSettings(3.0, 7, 0.1).around(ProximalGradient(0.1), ProximalGradient(0.1))
    assert (made.factor, made.patience, made.decrease) == (3.0, 7, 0.1)
    with pytest.raises(ConfigurationError, match="patience"):
        SafeguardSettings(patience=0).validate()
