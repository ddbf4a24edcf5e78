"""Verification computes the traits of train instances again."""

import numpy as np
import pytest

from support.shared import small_run
from support.tiny import EXPERIMENT, SMALL, changed
from surestep.certify.traits import Difficulty, part_features, traits_on
from surestep.run.verify.run import _finished, _shapes, _traits


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A small run as if its plan had foreseen how hard instances are."""
    folder = small_run(tmp_path_factory.mktemp("traits") / "run")
    real = _finished(folder, SMALL, EXPERIMENT)
    task, train = real.task, real.train
    size = part_features(train.thetas).shape[1] + 2
    weights = tuple(np.linspace(-0.1, 0.1, size).tolist())
    trait = Difficulty("loss", 0, 1e-9, (0.0,) * size, weights, 2.0, -30.0, 30.0)
    known = task.start_losses(train), task.thresholds(train)
    table = traits_on((trait,), EXPERIMENT.problem, train, *known)
    found = changed(real.found, evidence=changed(real.found.evidence, traits=table))
    return changed(real, plan=changed(real.plan, traits=(trait,)), found=found)


def test_traits_that_follow_from_the_instances_stand(finished):
    assert np.std(finished.found.evidence.traits) > 0
    assert _shapes(finished).stands
    assert _traits(finished).stands


def test_a_trait_that_was_changed_is_found(finished):
    evidence = finished.found.evidence
    for row in (0, 17, 63):
        table = evidence.traits.copy()
        table[row] *= 1 + 1e-6
        lied = changed(finished.found, evidence=changed(evidence, traits=table))
        check = _traits(changed(finished, found=lied))
        assert not check.stands and check.reason == "differs"


def test_traits_that_are_missing_are_found(finished):
    evidence = finished.found.evidence
    none = changed(finished.found, evidence=changed(evidence, traits=np.zeros((64, 0))))
    check = _shapes(changed(finished, found=none))
    assert not check.stands and "traits" in check.reason
