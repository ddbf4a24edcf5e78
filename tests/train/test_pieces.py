"""From piece to piece: restarts, unusable pieces, and what is learned from them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from support.tiny import RULE, SPLIT, TASK
from surestep.rules.base import hyper_of
from surestep.train.pieces import (
    Draws,
    differentiate_piece,
    draw_restarts,
    go_on,
    only_if,
    random_start,
)

THETAS = SPLIT.prior.thetas
KEYS = jax.random.split(jax.random.key(3))


def piece(length=2):
    start = random_start(RULE, TASK.problem, THETAS, jax.random.key(0))
    material = TASK.material(SPLIT.prior)
    return differentiate_piece(RULE, TASK.problem, material, hyper_of(RULE), start, length)


def moved(found, over, following=5):
    draw = Draws(jnp.asarray(following), jnp.asarray(over))
    return go_on(RULE, TASK.problem, TASK.material(SPLIT.prior), hyper_of(RULE), found, draw)


@pytest.mark.parametrize(("length", "horizon", "share"), [(1, 4, 0.25), (3, 4, 0.75), (9, 4, 1.0)])
def test_trajectories_are_as_long_as_the_horizon_on_average(length, horizon, share):
    draws = draw_restarts(KEYS, THETAS, length, horizon, (20_000,))
    assert np.mean(draws.over) == pytest.approx(share, abs=0.02)
    assert set(np.asarray(draws.following)) == set(range(SPLIT.prior.size))


def test_one_draw_is_a_number():
    draw = draw_restarts(KEYS, THETAS, 1, 4)
    assert draw.over.shape == draw.following.shape == ()


def test_a_trajectory_goes_on_where_a_usable_piece_ended():
    found = piece()
    assert bool(found.usable)
    on = moved(found, over=False)
    assert int(on.age) == 2 and int(on.index) == int(found.end.index)
    np.testing.assert_array_equal(on.progress.state.x, found.end.progress.state.x)


@pytest.mark.parametrize(("usable", "over"), [(True, True), (False, False), (False, True)])
def test_it_begins_anew_when_it_is_over_or_after_an_unusable_piece(usable, over):
    found = piece()._replace(usable=jnp.asarray(usable))
    anew = moved(found, over)
    assert int(anew.age) == 0 and int(anew.index) == 5


def test_nothing_is_learned_from_an_unusable_piece():
    broken = jnp.asarray([1.0, jnp.nan])
    kept = only_if(jnp.asarray(False), (broken, jnp.asarray(2)), (jnp.zeros(2), jnp.asarray(1)))
    np.testing.assert_array_equal(kept[0], [0.0, 0.0])
    assert int(kept[1]) == 1
