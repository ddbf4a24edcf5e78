"""A start for a whole family, against the minimum of the mean loss in closed form."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from surestep.base.errors import ConfigurationError
from surestep.base.keys import named_key
from surestep.problem.base import Problem
from surestep.problem.datasets import PriorSet
from surestep.problem.draw import draw
from surestep.rollout.loop import rollout
from surestep.rules import GradientDescent, Started
from surestep.train.common_start import CommonStartSettings, common_start

SIZE = 4
SCALES = np.array([1.0, 2.0, 0.5, 1.5])


class Scattered(Problem):
    """Distances to points that lie around one place."""

    def sample(self, key):
        return 3.0 + jax.random.normal(key, (SIZE,))

    def start(self, theta):
        return jnp.full(SIZE, 10.0)

    def loss(self, x, theta):
        return 0.5 * jnp.sum(SCALES * (x - theta) ** 2)


class Wandering(Scattered):
    def start(self, theta):
        return theta + 1.0


ALL = CommonStartSettings(instances=8, batch=8, steps=3000, learning_rate=0.05, scale=1.0)


def test_with_all_instances_in_every_step_it_ends_at_the_minimum_of_the_mean():
    shift = common_start("start", ALL, Scattered(), 1)
    seen = draw(Scattered(), 8, named_key(1, "data", "start"))
    np.testing.assert_allclose(10.0 + np.asarray(shift), np.mean(seen, axis=0), atol=1e-4)


def test_a_rule_begins_there_and_it_is_a_better_start_for_instances_it_never_saw():
    settings = CommonStartSettings(instances=20, batch=2, steps=1500, learning_rate=0.1, scale=0.5)
    rule = Started(GradientDescent(0.1), common_start("start", settings, Scattered(), 2))
    new = PriorSet.draw(Scattered(), 16, 2).thetas
    made_for = draw(Scattered(), 20, named_key(2, "data", "start"))
    assert not np.isin(np.asarray(new), np.asarray(made_for)).any()
    for theta in new:
        there = rollout(rule, Scattered(), theta, 1).losses[0]
        assert there < Scattered().loss(jnp.full(SIZE, 10.0), theta) / 5


def test_the_scale_is_applied_before_training():
    still = CommonStartSettings(instances=2, steps=1, learning_rate=1e-12, scale=0.25)
    np.testing.assert_allclose(common_start("start", still, Scattered(), 0), -7.5, rtol=1e-9)


def test_the_same_seed_gives_the_same_start_and_another_seed_another():
    short = CommonStartSettings(instances=4, steps=20)
    first, again, other = (common_start("start", short, Scattered(), seed) for seed in (5, 5, 6))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (CommonStartSettings(steps=0), r"problem\.start\.steps must be at least 1"),
        (CommonStartSettings(batch=0), r"problem\.start\.batch must be at least 1"),
        (CommonStartSettings(instances=1), r"start\.instances must be at least .*batch \(2\)"),
        (CommonStartSettings(learning_rate=0.0), r"start\.learning_rate must be positive"),
        (CommonStartSettings(learning_rate=1e308), r"diverges: try a smaller problem\.start"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings, message):
    with pytest.raises(ConfigurationError, match=message):
        common_start("problem.start", settings, Scattered(), 0)


def test_a_start_of_every_instances_own_is_refused():
    with pytest.raises(ConfigurationError, match="the same for all instances"):
        common_start("start", ALL, Wandering(), 0)
