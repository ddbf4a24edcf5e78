"""One table: every classical rule on every problem it fits."""

import jax.numpy as jnp
import numpy as np
import pytest

from support.catalogue import NEAR_ON_LASSO, PROBLEMS, rules_for
from surestep.base.errors import ConfigurationError
from surestep.base.keys import named_key
from surestep.problem.base import instance
from surestep.problem.draw import draw
from surestep.problem.oracle import Oracle
from surestep.rollout.batched import rollouts
from surestep.rollout.loop import Status, rollout
from surestep.rules import Coordinatewise
from surestep.rules.base import missing_needs, require_fit

PAIRS = [
    (problem, rule)
    for problem, entry in PROBLEMS.items()
    for rule, (solver, _, _) in rules_for(entry).items()
    if not missing_needs(solver, entry.problem)
]


@pytest.mark.parametrize(("problem_name", "rule_name"), PAIRS)
def test_finds_the_known_minimum(problem_name, rule_name, compilations):
    entry = PROBLEMS[problem_name]
    problem = entry.problem
    rule, iterations, tolerance = rules_for(entry)[rule_name]
    if problem_name == "lasso":
        tolerance = NEAR_ON_LASSO.get(rule_name, tolerance)
    thetas = draw(problem, 3, named_key(1, "catalogue"))
    result = rollouts(rule, problem, thetas, iterations, 3)
    minima = np.array([problem.minimum(instance(thetas, i)) for i in range(3)])
    gap = np.asarray(result.losses[:, -1]) - minima
    assert np.all(gap < tolerance * np.maximum(minima, 1)), gap
    assert np.all(gap > -1e-9 * np.maximum(minima, 1)), "below the minimum: a wrong reference"
    assert np.all(result.status == Status.FINISHED)

    assert result.losses.dtype == result.x.dtype == jnp.float64
    # The reported loss is the loss at the reported point.
    for i in range(3):
        oracle = Oracle(problem, instance(thetas, i))
        np.testing.assert_allclose(result.losses[i, -1], oracle.value(result.x[i]), rtol=1e-12)

    with compilations() as again:
        rollouts(rule, problem, draw(problem, 3, named_key(2, "catalogue")), iterations, 3)
    assert again.count == 0


NO_GRADIENT_AT_THE_START = (
    "Nesterov",
    "Nesterov, own step",
    "FISTA",
    "FISTA with restart",
    "scaled FISTA",
    "ADMM",
)


@pytest.mark.parametrize(("problem_name", "rule_name"), PAIRS)
def test_counts_gradients(problem_name, rule_name):
    """One gradient an iteration; a line search at least one, and one for the start."""
    entry = PROBLEMS[problem_name]
    rule, _, _ = rules_for(entry)[rule_name]
    theta = entry.problem.sample(named_key(1, "catalogue"))
    gradients = np.asarray(rollout(rule, entry.problem, theta, 5).gradients)
    spent = np.diff(gradients)
    assert gradients[0] == (0 if rule_name in NO_GRADIENT_AT_THE_START else 1)
    if rule_name == "L-BFGS":
        assert np.all(spent >= 1)
    else:
        assert np.all(spent == 1)


def test_a_rule_that_does_not_fit_says_what_is_missing():
    rules = rules_for(PROBLEMS["bowl"])
    with pytest.raises(ConfigurationError, match=r"ConjugateGradients .* Bowl.*residual"):
        require_fit(rules["conjugate gradients"][0], PROBLEMS["bowl"].problem)
    with pytest.raises(ConfigurationError, match="without a non-smooth part"):
        require_fit(rules["Nesterov"][0], PROBLEMS["lasso"].problem)


@pytest.mark.parametrize("problem_name", PROBLEMS)
def test_the_learned_rule_runs_on_every_problem(problem_name):
    problem = PROBLEMS[problem_name].problem
    rule = Coordinatewise.create(named_key(0, "rule"))
    result = rollout(rule, problem, problem.sample(named_key(1, "theta")), 4)
    assert np.all(np.isfinite(result.losses))
    assert np.all(np.diff(np.asarray(result.gradients)) == 1)
