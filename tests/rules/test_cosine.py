"""The metric for pictures: diagonal for cosines."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import fft

from surestep.auto.candidates import candidates
from surestep.auto.survey import DENSE, Survey, _metric, _shape_of, side_by_side, surveyed_instances
from surestep.base.errors import ConfigurationError
from surestep.problem.base import Problem
from surestep.problem.datasets import PriorSet
from surestep.problem.form import point_size
from surestep.problem.structure import find_structure
from surestep.rollout.loop import rollout
from surestep.rules import CosineQuasiNewton, MetricQuasiNewton
from surestep.rules.cosine import transform, transformed_axes

RANDOM = np.random.default_rng(0)
SHAPE = (18, 20)


def smooth(x, theta):
    """Differences of neighbours, reflected at the edges: exactly diagonal for cosines."""
    rough = jnp.sum(jnp.diff(x, axis=0) ** 2) + jnp.sum(jnp.diff(x, axis=1) ** 2)
    return 0.5 * jnp.sum((x - theta) ** 2) + 5.0 * rough


PICTURES = Problem.of(smooth, np.zeros(SHAPE), sample=lambda key: jax.random.normal(key, SHAPE))


@pytest.mark.parametrize("shape", [(16,), (9, 12), (8, 10, 3), (3, 8, 9), (8, 9, 10)])
def test_the_transform_is_scipys(shape):
    picture = RANDOM.normal(size=shape)
    axes = transformed_axes(shape)
    assert axes == tuple(i for i, size in enumerate(shape) if size >= 8)
    expected = np.asarray(fft.dctn(picture, axes=axes, norm="ortho"))
    found = transform(jnp.asarray(picture.ravel()), shape)
    np.testing.assert_allclose(found.reshape(shape), expected, atol=1e-12)
    np.testing.assert_allclose(transform(found, shape, back=True), picture.ravel(), atol=1e-12)


def test_the_metric_of_ones_is_none_and_the_right_one_takes_newtons_step():
    ones = jnp.ones(360)
    vector = jnp.asarray(RANDOM.normal(size=360))
    np.testing.assert_allclose(CosineQuasiNewton.of(ones, SHAPE).metric(vector), vector, atol=1e-12)
    theta = jnp.asarray(RANDOM.normal(size=SHAPE))
    waves = [2 - 2 * np.cos(np.pi * np.arange(size) / size) for size in SHAPE]
    curvature = 1 + 10 * (waves[0][:, None] + waves[1])
    rule = CosineQuasiNewton.of(jnp.asarray(curvature.ravel() ** -0.5), SHAPE)
    losses = rollout(rule, PICTURES, theta, 2).losses
    best = PICTURES.loss(
        jnp.asarray(fft.idctn(fft.dctn(theta, norm="ortho") / curvature, norm="ortho")), theta
    )
    assert float(losses[1]) == pytest.approx(float(best), rel=1e-12)
    with pytest.raises(ConfigurationError, match="one number for each of"):
        CosineQuasiNewton.of(ones, (18, 19))
    with pytest.raises(ConfigurationError, match="an axis of length 8 to 1024"):
        CosineQuasiNewton.of(jnp.ones(30), (6, 5))


def found_on(problem, smoothness):
    """A survey whose metric was found and the rest made up."""
    thetas = PriorSet.draw(problem, 12, 0).thetas
    good = np.arange(12) < 8
    shape = _shape_of(problem, thetas)
    points = jnp.zeros((12, 360))
    root, shape, _ = _metric(problem, thetas, points, good, shape, smoothness, 0)
    ones, none = np.ones(12), np.zeros((360, 0))
    return Survey(360, False, smoothness, ones, 0 * ones, ones, root, shape, np.zeros(360), none,
                  np.zeros(0, np.int32), 1.0, "", 8)  # fmt: skip


def in_the_metric(problem, found):
    """The candidates that go in the metric of the survey."""
    structure = find_structure(problem, PriorSet.draw(problem, 12, 0).thetas)
    every = candidates(problem, found, structure)
    return [one.rule for one in every if "quasi-Newton in a shared metric" in one.name]


def test_pictures_are_given_a_metric_for_cosines():
    waves = [2 - 2 * np.cos(np.pi * np.arange(size) / size) for size in SHAPE]
    curvature = (1 + 10 * (waves[0][:, None] + waves[1])).ravel()
    found = found_on(PICTURES, 81.0)
    # This Hessian is diagonal for cosines, so random signs find it exactly.
    np.testing.assert_allclose(found.root**-2, curvature, rtol=1e-9)
    for rule in in_the_metric(PICTURES, found):
        assert isinstance(rule, CosineQuasiNewton) and rule.shape == SHAPE


def test_what_only_looks_like_a_picture_is_not_treated_as_one():
    """Numbers with curvatures of their own: a diagonal of pixels is exact, cosines are not."""
    scales = np.exp(RANDOM.uniform(0, 5, SHAPE))
    table = Problem.of(
        lambda x, theta: 0.5 * jnp.sum(scales * (x - theta) ** 2),
        np.zeros(SHAPE),
        sample=lambda key: jax.random.normal(key, SHAPE),
    )
    found = found_on(table, float(scales.max()))
    assert found.shape == ()
    np.testing.assert_allclose(found.root**-2, scales.ravel(), rtol=1e-9)
    rules = in_the_metric(table, found)
    assert len(rules) == 2
    for rule in rules:
        assert isinstance(rule, MetricQuasiNewton)
        np.testing.assert_allclose(rule.metric(jnp.ones(360)), scales.ravel() ** -1, rtol=1e-9)


def test_large_points_are_looked_at_in_small_numbers():
    assert point_size(PICTURES) == 360 > DENSE
    assert [surveyed_instances(n, 256) for n in (5, 10**5, 10**7)] == [256, 200, 12]
    assert [side_by_side(n, 50) for n in (5, 10**5, 10**7)] == [50, 20, 1]
