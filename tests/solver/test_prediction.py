"""Predictions for instances at hand, and the factor that is certified for them."""

import dataclasses

import numpy as np
import pytest

import surestep as ss
from support.production import THETAS, certified_solver
from support.tiny import PROBLEM, SPLIT, TASK
from surestep.base.errors import ConfigurationError
from surestep.certify.traits import Difficulty, traits_on
from surestep.solver.prediction import STATEMENT
from surestep.storage.records import from_plain

SOLVER = certified_solver()


[STATED] = [s for s in SOLVER.certificate.statements if s.name == STATEMENT]
DIFFICULTY = from_plain(Difficulty, STATED.details["predictor"])


def test_predictions_are_those_that_the_certificate_was_made_with():
    """Run, verification and solver compute features in one way."""
    train = SPLIT.train
    known = TASK.start_losses(train), TASK.thresholds(train)
    certified_with = traits_on((DIFFICULTY,), PROBLEM, train, *known)[:, 0]
    found = SOLVER.predict(train.thetas)
    np.testing.assert_allclose(found.expected, certified_with, rtol=1e-12)
    assert found.share == STATED.details["share"] and found.factor == STATED.value
    np.testing.assert_allclose(found.most, STATED.value * certified_with, rtol=1e-12)
    assert found.what == "loss after 10 iterations"


def test_the_factor_is_an_order_statistic_of_train_instances_and_holds_on_others():
    train, test = SPLIT.train.thetas, SPLIT.test.thetas
    shares = [float(s) for s, one in STATED.details["factors"].items() if one is not None]
    ratios = SOLVER.solve(train).loss / SOLVER.predict(train).expected
    for share in shares:
        factor = SOLVER.predict(train, share).factor
        assert np.min(np.abs(ratios / factor - 1)) < 1e-9
        assert np.mean(ratios <= factor * (1 + 1e-9)) > share
        seen = SOLVER.solve(test).loss <= SOLVER.predict(test, share).most
        # Certified shares are lower bounds; the test set is a sample of 250.
        assert np.mean(seen) >= share - 0.05
    assert len(shares) >= 2


def test_a_solver_from_a_file_predicts_the_same(tmp_path):
    SOLVER.save(tmp_path / "solver.safetensors")
    again = ss.load(tmp_path / "solver.safetensors", PROBLEM)
    np.testing.assert_array_equal(again.predict(THETAS).most, SOLVER.predict(THETAS).most)


def test_without_a_certified_factor_nothing_is_predicted():
    with pytest.raises(ConfigurationError, match=r"share of 0\.99 .* there is one for 0\.5"):
        SOLVER.predict(THETAS, share=0.99)
    bare = dataclasses.replace(SOLVER, certificate=None, posterior=None)
    with pytest.raises(ConfigurationError, match="nothing is certified of predictions"):
        bare.predict(THETAS)


def test_instances_of_another_structure_are_refused():
    with pytest.raises(ConfigurationError, match="must have the structure"):
        SOLVER.predict(np.ones((3, 4)))
