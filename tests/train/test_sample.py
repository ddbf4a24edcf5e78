"""Langevin steps, the constrained chain, and the prior they make."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from support.tiny import CONFIG, SPLIT, TASK, changed, located
from surestep.base.errors import ConfigurationError, InfeasibleError
from surestep.rules.base import hyper_of, with_hyper
from surestep.train.constraint import Constraint, estimate_success
from surestep.train.langevin import StepSizes, constrained_chain, langevin_move
from surestep.train.sample import SampleSettings, sample, sublevel_risks
from surestep.train.task import Task

RULE = located()


def test_langevin_has_the_right_stationary_distribution():
    """For the potential x^2 / 2 and step h the variance is 1 / (1 - h / 4), exactly."""
    h, chains = 0.5, 20_000
    x = jnp.zeros(chains)

    def body(x, key):
        return langevin_move(key, x, x, h), None

    x, _ = jax.lax.scan(body, x, jax.random.split(jax.random.key(0), 200))
    expected = 1 / (1 - h / 4)
    assert np.var(np.asarray(x)) == pytest.approx(expected, rel=4 * np.sqrt(2 / chains))
    assert abs(float(jnp.mean(x))) < 4 * np.sqrt(expected / chains)
    fourth = np.mean(np.asarray(x) ** 4) / np.var(np.asarray(x)) ** 2
    assert fourth == pytest.approx(3.0, abs=0.2)


def test_step_sizes():
    sizes = StepSizes(1e-6)
    assert [sizes.at(t) for t in (0, 1, 9)] == pytest.approx([1e-6, 5e-7, 1e-7])
    assert StepSizes(1.0, power=0.0).at(100) == 1.0
    with pytest.raises(ConfigurationError):
        StepSizes(-1.0).validate()


def verdict(good):
    return Constraint().assess(250 if good else 0, 250)


def test_a_rejected_proposal_leaves_the_chain_where_it_was():
    inside = {1: True, 2: False, 3: True, 4: False}
    chain = constrained_chain(
        lambda t, x: x + 1, lambda t, x: verdict(inside.get(x, True)), 0, feasible=True
    )
    moves = [next(chain) for _ in range(4)]
    assert [m.accepted for m in moves] == [True, False, False, False]
    assert [m.position for m in moves] == [1, 1, 1, 1]
    assert [m.number for m in moves] == [0, 1, 2, 3]


def test_a_chain_that_starts_outside_walks_until_it_is_inside():
    chain = constrained_chain(
        lambda t, x: x + 1, lambda t, x: verdict(x in (3, 4)), 0, feasible=False
    )
    moves = [next(chain) for _ in range(6)]
    assert [m.position for m in moves] == [1, 2, 3, 4, 4, 4]
    assert [m.feasible for m in moves] == [False, False, True, True, True, True]


def test_a_chain_keeps_to_the_region_where_success_is_likely():
    """A walk on the line, success probability 0.9 for x < 1 and 0.1 beyond."""
    random = np.random.default_rng(0)
    constraint = Constraint(lower=0.6, width=0.2)

    def estimate(t, x):
        return estimate_success([random.random(200) < (0.9 if x < 1 else 0.1)], constraint)

    chain = constrained_chain(lambda t, x: x + random.normal(), estimate, 0.0, feasible=True)
    positions = np.array([next(chain).position for _ in range(400)])
    assert np.all(positions < 1)
    assert positions.min() < -3


def test_the_prior_by_hand():
    settings = changed(CONFIG.sample, samples=4, burn_in=1, thinning=2)
    prior = sample(settings, TASK, RULE, SPLIT.prior, SPLIT.validation, 0)
    assert prior.hypers.shape == (4, hyper_of(RULE).size)
    # The located rule itself, and three that two accepted moves each lead to.
    np.testing.assert_array_equal(prior.hypers[0], hyper_of(RULE))
    assert prior.accepted == 1 + 3 * 2
    assert prior.proposals == prior.accepted + prior.outside + prior.undecided
    threshold = TASK.thresholds(SPLIT.prior)
    risks = []
    for hyper, p in zip(prior.hypers, prior.probabilities, strict=True):
        losses = TASK.losses(with_hyper(RULE, jnp.asarray(hyper)), SPLIT.prior)[:, 0]
        total = sum(v for v, g in zip(losses, threshold, strict=True) if v <= g)
        risks.append(total / len(losses) / p)
    np.testing.assert_allclose(prior.prior_risks, risks, rtol=1e-12)
    weights = np.exp(-np.array(risks) + min(risks))
    np.testing.assert_allclose(np.exp(prior.log_prior), weights / weights.sum(), rtol=1e-10)
    expected = [(s + 1) / (t + 2) for s, t in zip(prior.successes, prior.trials, strict=True)]
    np.testing.assert_allclose(prior.probabilities, expected)
    assert np.all(prior.probabilities >= TASK.constraint.lower)


def test_samples_differ_by_noise_of_the_step_size():
    """Full noise: consecutive samples differ by sqrt(step) in every coordinate."""
    settings = SampleSettings(samples=7, step_sizes=StepSizes(1e-8, power=0.0))
    prior = sample(settings, TASK, RULE, SPLIT.prior, SPLIT.validation, 0)
    assert prior.outside == prior.undecided == 0
    moves = np.diff(prior.hypers, axis=0)
    assert moves.std(axis=1) == pytest.approx(1e-4, rel=0.1)
    # Independent noise: nothing is accumulated from one step to the next.
    assert np.abs(np.corrcoef(moves)[np.triu_indices(6, 1)]).max() < 0.15


def test_failures_do_not_count_into_the_sublevel_risk():
    losses = np.array([[1.0, 3.0, np.inf, 2.0]])
    threshold = np.array([2.0, 2.0, 2.0, 2.0])
    assert sublevel_risks(losses, threshold, np.array([0.5])) == pytest.approx([(1 + 2) / 4 / 0.5])


def test_a_chain_that_goes_nowhere_gives_up(monkeypatch):
    monkeypatch.setattr(Task, "success", lambda *a: TASK.constraint.assess(0, 64))
    settings = SampleSettings(samples=2, most_proposals=3)
    with pytest.raises(InfeasibleError, match="only 0 of 6 Langevin proposals"):
        sample(settings, TASK, RULE, SPLIT.prior, SPLIT.validation, 0)


def test_moves_on_the_way_inside_are_no_samples(monkeypatch):
    seen = []

    def success(task, rule, data, *name):
        seen.append(np.asarray(hyper_of(rule)))
        return task.constraint.assess(64 if len(seen) > 4 else 0, 64)

    monkeypatch.setattr(Task, "success", success)
    prior = sample(SampleSettings(samples=2), TASK, RULE, SPLIT.prior, SPLIT.validation, 0)
    # The start and three proposals are outside; the next two are the samples.
    np.testing.assert_array_equal(prior.hypers, seen[4:6])
    assert prior.proposals == 5


def test_the_start_can_be_left_out():
    settings = SampleSettings(samples=2, keep_start=False)
    prior = sample(settings, TASK, RULE, SPLIT.prior, SPLIT.validation, 0)
    assert prior.accepted == 2
    assert np.all(prior.hypers[0] != np.asarray(hyper_of(RULE)))


@pytest.mark.parametrize("changes", [{"samples": 0}, {"thinning": 0}, {"burn_in": -1}])
def test_bad_settings_are_refused(changes):
    with pytest.raises(ConfigurationError, match=r"sample\."):
        changed(SampleSettings(), **changes).validate()
