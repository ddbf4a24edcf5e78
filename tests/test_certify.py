"""The posterior and the paper's bound, from stored losses, against a transcription."""

import json

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from surestep.certificate import (
    Certificate,
    certificate,
    hyper_fingerprint,
    percent,
    rounded_up,
)
from surestep.errors import ConfigurationError, ProblemError, RunFolderError
from surestep.problems.quadratics import Quadratics
from surestep.rollout import losses_at
from surestep.rule import with_hyper
from surestep.stages.certify import CertifySettings, certify, kept_iterations, prior_lambdas
from surestep.stages.sample import sample
from tiny import CONFIG, PROBLEM, SPLIT, TASK, changed, located

RULE = located()
PRIOR = sample(changed(CONFIG.sample, samples=4), TASK, RULE, SPLIT.prior, SPLIT.validation, 0)
FOUND = certify(CONFIG.certify, TASK, RULE, PRIOR, SPLIT.train)


def test_agrees_with_the_papers_formulas_written_out():
    N = SPLIT.train.size
    g = np.array([float(0.5 * np.sum(np.asarray(b) ** 2)) for b in SPLIT.train.thetas.target])
    np.testing.assert_allclose(FOUND.thresholds, g, rtol=1e-12)  # the tiny goal is the start's loss
    losses = FOUND.losses[:, :, -1]
    shifted = PRIOR.prior_risks - PRIOR.prior_risks.min()
    log_prior = -shifted - np.log(np.sum(np.exp(-shifted)))
    best = np.inf
    for lam in FOUND.lambdas:
        terms = []
        for j in range(4):
            p = PRIOR.probabilities[j]
            inside = losses[j] <= g
            risk = np.sum(losses[j][inside]) / N / p
            moment = np.sum(g[inside] ** 2) / N / p**2 / N
            terms.append(log_prior[j] - lam * risk - lam**2 / 2 * moment)
        # Far from the best lambda the exponentials underflow: take the largest one out.
        kappa = max(terms) + np.log(np.sum(np.exp(np.array(terms) - max(terms))))
        best = min(best, -(kappa - np.log(len(FOUND.lambdas) / 0.05)) / lam)
    assert best == pytest.approx(FOUND.bound, rel=1e-9)
    assert FOUND.mode == int(np.argmax(FOUND.log_posterior))
    assert np.exp(FOUND.log_posterior).sum() == pytest.approx(1)


def test_the_deployed_rule_has_a_bound_of_its_own():
    """A point mass is a posterior: its divergence is minus its log prior weight."""
    j, N = FOUND.mode, SPLIT.train.size
    price = np.log(len(FOUND.lambdas) / 0.05) - PRIOR.log_prior[j]
    values = [
        FOUND.risks[j] + price / lam + lam / 2 * FOUND.second_moments[j] / N
        for lam in FOUND.lambdas
    ]
    assert FOUND.point_bound == pytest.approx(min(values), rel=1e-12)
    assert FOUND.point_bound >= FOUND.bound


@pytest.mark.parametrize(
    ("epsilon", "shown"), [(0.05, "95%"), (0.001, "99.9%"), (0.005, "99.5%"), (1e-6, "99.9999%")]
)
def test_confidence_is_not_rounded_to_certainty(epsilon, shown):
    assert percent(1 - epsilon) == shown


@given(st.floats(1e-12, 1e12))
def test_a_printed_bound_is_not_below_the_bound(value):
    assert value * (1 - 1e-12) <= float(rounded_up(value)) <= value * (1 + 2e-3)


def test_a_loss_that_goes_negative_is_refused():
    """It may start out positive: only the certified losses show it."""

    class Sinking(Quadratics):
        def loss(self, x, theta):
            return super().loss(x, theta) - 20.0

    sinking = Sinking.create(CONFIG.problem, CONFIG.family_seed)
    with pytest.raises(ProblemError, match=r"fell to -.* of the TrainSet"):
        certify(CONFIG.certify, changed(TASK, problem=sinking), RULE, PRIOR, SPLIT.train)


def test_the_losses_are_those_of_the_samples_on_the_train_set():
    rule = with_hyper(RULE, jnp.asarray(PRIOR.hypers[2]))
    expected = losses_at(rule, PROBLEM, SPLIT.train.thetas, tuple(FOUND.iterations.tolist()), 7)
    np.testing.assert_allclose(FOUND.losses[2], expected, rtol=1e-9)


def test_the_lambdas_know_nothing_of_the_train_set():
    lambdas = prior_lambdas(CONFIG.certify, PRIOR, SPLIT.train.size)
    np.testing.assert_array_equal(lambdas, FOUND.lambdas)
    assert len(lambdas) == CONFIG.certify.lambdas
    # Well placed: the minimum is not at an end.
    assert lambdas[0] < FOUND.lambda_ < lambdas[-1]


def test_kept_iterations():
    assert kept_iterations(350, 35) == tuple(range(0, 351, 10))
    assert kept_iterations(10, 36) == tuple(range(11))
    assert kept_iterations(7, 1) == (0, 7)


def test_the_certificate_speaks_plainly_and_names_its_estimates(tmp_path):
    document = certificate("tiny", CONFIG.certify, TASK, SPLIT, PRIOR, FOUND)
    text = str(document)
    assert "With confidence 95%" in text
    assert "estimates in place of" in text
    assert not any(statement.rigorous for statement in document.statements)
    deployed, drawn = document.statements
    assert "the deployed rule" in deployed.sentence
    assert (deployed.value, drawn.value) == (FOUND.point_bound, FOUND.bound)
    assert document.data_sha256["train"] == SPLIT.train.sha256
    assert "test" not in document.data_sha256
    assert document.solver_sha256 == hyper_fingerprint(PRIOR.hypers[FOUND.mode])
    path = tmp_path / "certificate.json"
    document.save(path)
    assert Certificate.load(path) == document


def test_a_certificate_that_is_no_certificate_is_refused(tmp_path):
    path = tmp_path / "certificate.json"
    path.write_text("{")
    with pytest.raises(RunFolderError, match="cannot be read"):
        Certificate.load(path)
    document = certificate("tiny", CONFIG.certify, TASK, SPLIT, PRIOR, FOUND)
    document.save(path)
    plain = json.loads(path.read_text())
    plain["horizon"] = "ten"
    path.write_text(json.dumps(plain))
    with pytest.raises(RunFolderError, match=r"horizon should be of type int, not 'ten'"):
        Certificate.load(path)


@pytest.mark.parametrize("changes", [{"epsilon": 0.0}, {"epsilon": 1.0}, {"lambdas": 0}])
def test_bad_settings_are_refused(changes):
    with pytest.raises(ConfigurationError, match=r"certify\."):
        changed(CertifySettings(), **changes).validate()
