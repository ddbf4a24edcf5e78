"""Families of programmes: surveyed, raced, certified."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from house.crash_child import empty
from surestep.auto.candidates import candidates, per_coordinate
from surestep.auto.choice import survey_of
from surestep.auto.fit import fit, plan_fit
from surestep.auto.programme_survey import survey_programme
from surestep.base.errors import ProblemError
from surestep.evaluate.test_set import EvaluateSettings
from surestep.problem import PriorSet, find_structure, make_programme, working_precision
from surestep.report import draw
from surestep.rules import Checked, ProgrammeADMM
from surestep.rules.base import hyper_of
from surestep.solver.load import load

RNG = np.random.default_rng(1)
SIZE, ROWS = 6, 5
ROOT = RNG.normal(size=(SIZE, SIZE))
LIMITS = RNG.normal(size=(ROWS, SIZE))


def family(**changes):
    """Controls near theta's, within limits, that add up to nothing."""
    given = {
        "P": ROOT @ ROOT.T + np.eye(SIZE),
        "q": lambda theta: -3 * theta,
        "A": np.vstack([np.ones((1, SIZE)), LIMITS]),
        "l": np.array([0.0, *np.full(ROWS, -0.1)]),
        "u": np.array([0.0, *np.full(ROWS, 0.1)]),
        "sample": lambda key: jax.random.normal(key, (SIZE,)),
        "relative": 0.0,
    }
    return make_programme(**given | changes)


def test_a_survey_solves_programmes_and_predicts_where_solutions_are():
    problem = family()
    found = survey_of(problem, 60, seed=0)
    assert found.fitted == 40
    assert found.dimension == SIZE + 2 * (ROWS + 1)
    np.testing.assert_array_equal(found.minima, 0)
    # From a predicted triple far less is left than from zeros.
    assert found.weights.shape == (found.dimension, SIZE)


def test_the_penalty_that_a_survey_finds_is_good_to_a_factor_of_ten():
    problem = family()
    data = PriorSet.draw(problem, 12, 0)
    found = survey_programme(problem, data)
    with working_precision(problem):
        (candidate,) = candidates(problem, found, find_structure(problem, data.thetas))
        assert isinstance(candidate.rule, ProgrammeADMM)
        logs = [hyper[0] for hyper in candidate.variants]
    assert min(logs) < np.log(1 / found.smoothness) < max(logs)
    # Times ten the curvature is slower by far: the penalty belongs to the family.
    scaled = family(P=1e4 * (ROOT @ ROOT.T + np.eye(SIZE)), q=lambda theta: -3e4 * theta)
    other = survey_programme(scaled, PriorSet.draw(scaled, 12, 0))
    assert other.smoothness < 1e-2 * found.smoothness


def test_training_has_a_penalty_for_each_row_and_relaxations_for_early_iterations():
    problem = family()
    data = PriorSet.draw(problem, 12, 0)
    found = survey_programme(problem, data)
    structure = find_structure(problem, data.thetas)
    (candidate,) = candidates(problem, found, structure)
    wide = per_coordinate(candidate, structure)
    assert hyper_of(candidate.rule).size == 2
    assert hyper_of(wide.rule).size == ROWS + 40


def test_programmes_that_nothing_meets_are_refused_in_words():
    impossible = family(
        A=np.vstack([np.ones((2, SIZE)), LIMITS]),
        l=np.array([0.0, 1.0, *np.full(ROWS, -0.1)]),
        u=np.array([0.5, 2.0, *np.full(ROWS, 0.1)]),
    )
    with pytest.raises(ProblemError, match="feasible and bounded"):
        survey_programme(impossible, PriorSet.draw(impossible, 12, 0), seconds=5.0)


@pytest.mark.slow
def test_fit_hands_out_a_certified_solver_of_programmes(monkeypatch, tmp_path):
    monkeypatch.setattr(draw, "draw", empty)
    problem = family()
    shown = EvaluateSettings(timed=5, limit=200, shifted=0)
    learned = fit(problem, 20.0, accuracy=1e-4, out=tmp_path, evaluate=shown)
    assert isinstance(learned.deployed, Checked)
    assert learned.deployed.tolerance == 1e-4
    missed = next(s for s in learned.certificate.statements if s.name == "missing the goal")
    assert missed.value < 0.1
    thetas = RNG.normal(size=(50, SIZE))
    solution = load(tmp_path / "solver.safetensors", problem).solve(thetas)
    assert solution.loss.max() <= 1e-4
    with working_precision(problem):
        for theta, x in zip(thetas, solution.x["x"], strict=True):
            assert problem.coefficients(jnp.asarray(theta)).violation(jnp.asarray(x)) < 2e-4


@pytest.mark.slow
def test_a_plan_says_what_was_chosen_for_programmes():
    plan = plan_fit(family(), 20.0, accuracy=1e-3)
    assert plan.words.startswith("ADMM")
    assert 1e-3 in plan.config.problem.accuracies
    assert dataclasses.asdict(plan.config.certify)["shares"] == ()
