"""Imitation: the distance to the teacher shrinks, whoever teaches."""

import numpy as np
import pytest

from support.tiny import CONFIG, PROBLEM, RULE, SPLIT, TASK, TEACHER, changed
from surestep.base.errors import ConfigurationError
from surestep.problem.base import instance
from surestep.rollout.loop import advance, begin
from surestep.rules import LBFGS, Adam, ConjugateGradients, Fista, GradientDescent, Nesterov
from surestep.rules.base import hyper_of
from surestep.train.imitate import imitate

TEACHERS = {
    "heavy ball": TEACHER,
    "gradient descent": GradientDescent(1 / 500),
    "Nesterov": Nesterov(1 / 500),
    "FISTA": Fista(1 / 500),
    "Adam": Adam(0.1),
    "L-BFGS": LBFGS(),
    "conjugate gradients": ConjugateGradients(),
}


@pytest.mark.parametrize("name", TEACHERS)
def test_any_classical_rule_can_teach(name):
    settings = changed(CONFIG.imitate, steps=400, length=2)
    found = imitate(settings, TASK, RULE, TEACHERS[name], SPLIT.prior, 0)
    assert found.distances[-1] < 0.6 * found.distances[0]
    assert np.all(np.isfinite(found.hyper))


def test_the_first_distance_is_that_of_the_first_iterates():
    settings = changed(CONFIG.imitate, steps=1, chunk=1)
    found = imitate(settings, TASK, RULE, TEACHER, SPLIT.prior, 0)
    theta = instance(SPLIT.prior.thetas, 0)
    pupil = advance(RULE, PROBLEM, theta, begin(RULE, PROBLEM, theta)).state.x
    teacher = advance(TEACHER, PROBLEM, theta, begin(TEACHER, PROBLEM, theta)).state.x
    assert found.distances[0] == pytest.approx(float(np.sum((pupil - teacher) ** 2)), rel=1e-9)


def test_stops_when_close_enough():
    settings = changed(CONFIG.imitate, steps=1000, tolerance=1e9, chunk=10)
    assert len(imitate(settings, TASK, RULE, TEACHER, SPLIT.prior, 0).distances) == 1


def test_no_steps_leave_the_rule_as_it_was():
    found = imitate(changed(CONFIG.imitate, steps=0), TASK, RULE, TEACHER, SPLIT.prior, 0)
    assert len(found.distances) == 0
    np.testing.assert_array_equal(found.hyper, hyper_of(RULE))


def test_bad_settings_are_refused():
    with pytest.raises(ConfigurationError, match="imitate"):
        changed(CONFIG.imitate, chunk=0).validate()
    with pytest.raises(ConfigurationError, match="imitate"):
        changed(CONFIG.imitate, learning_rate=-1.0).validate()
