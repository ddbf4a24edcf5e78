"""ADMM behind an affine map, as a candidate: where it is offered, tuned and trained."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from support.types import unchecked
from surestep.auto.candidates import candidates, per_coordinate, tuned
from surestep.base.keys import named_key
from surestep.problem.base import Problem
from surestep.problem.draw import draw
from surestep.problem.structure import find_structure
from surestep.rules import FrontADMM, Predicted
from surestep.rules.base import hyper_of

MATRIX = np.random.default_rng(0).normal(size=(9, 4))
LOSSES = {
    "convex": lambda x, theta: jnp.sum(jnp.sqrt(1 + (MATRIX @ x - theta) ** 2)),
    "not convex": lambda x, theta: jnp.sum(jnp.log1p((MATRIX @ x - theta) ** 2)),
    "not determined": lambda x, theta: jnp.sum(jnp.sqrt(1 + (MATRIX[:3] @ x - theta[:3]) ** 2)),
    "not separable": lambda x, theta: jax.nn.logsumexp(MATRIX @ x - theta),
}


class Found:
    """As much of a survey as candidates of smooth problems look at."""

    composite, smoothness, unit, dimension, shape = False, 10.0, 1.0, 4, ()
    root = np.eye(4)


@functools.cache
def offered(name):
    problem = Problem.of(LOSSES[name], np.zeros(4), sample=lambda key: jax.random.normal(key, (9,)))
    structure = find_structure(problem, draw(problem, 8, named_key(0, "front")))
    with unchecked():  # a survey of the test's own
        every = candidates(problem, Found(), structure)  # pyright: ignore[reportArgumentType]
    return problem, structure, [one for one in every if isinstance(one.rule, FrontADMM)]


@pytest.mark.parametrize("name", LOSSES)
def test_it_is_offered_where_it_leads_to_the_minimum(name):
    assert len(offered(name)[2]) == (name == "convex")


def test_its_variants_are_penalties_and_relaxations():
    problem, structure, (candidate,) = offered("convex")
    assert candidate.classical and candidate.trainable and structure.front is not None
    penalties = {float(np.exp(one[0])) for one in candidate.variants}
    assert min(penalties) < 0.1 * structure.front.typical < 10 * structure.front.typical
    assert max(penalties) > 10 * structure.front.typical
    changed = tuned(candidate, candidate.variants[-1], problem).rule
    np.testing.assert_allclose(hyper_of(changed), candidate.variants[-1])


def test_penalties_are_trained_row_by_row():
    _, structure, (candidate,) = offered("convex")
    wide = per_coordinate(candidate, structure).rule
    assert isinstance(wide, FrontADMM) and wide.log_penalty.shape == (9,)
    predicted = Predicted(candidate.rule, jnp.zeros(4), jnp.zeros((4, 0)), jnp.zeros(0, jnp.int32))
    inside = per_coordinate(dataclasses.replace(candidate, rule=predicted), structure).rule
    assert isinstance(inside, Predicted) and isinstance(inside.rule, FrontADMM)
    assert inside.rule.log_penalty.shape == (9,)
