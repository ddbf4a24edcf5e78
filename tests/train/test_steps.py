"""How good a rule is, in closed form."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from support.tiny import RULE, SPLIT, TASK, TEACHER, changed
from surestep.problem.datasets import PriorSet
from surestep.rules import HeavyBall
from surestep.train import steps as training
from surestep.train.steps import hyper_at, merit, merit_of
from surestep.train.trajectory import TrainingSettings


def test_merit_of_losses_by_hand():
    # Typical: the mean of -2 and -4. Worst: the logarithm of the mean.
    losses = np.array([[1e-2], [1e-4]])
    wanted = (-3 + np.log10((1e-2 + 1e-4) / 2)) / 2
    assert merit_of(losses, 1e-300) == pytest.approx(wanted, rel=1e-12)
    # Iterations count the same.
    assert merit_of(np.hstack([losses, 10 * losses]), 1e-300) == pytest.approx(wanted + 0.5)
    # Below the floor nothing is gained, and rounding below the minimum is no loss.
    assert merit_of(np.array([[0.0], [-1e-17]]), 1e-8) == pytest.approx(-8)


def test_a_divergence_is_worse_than_any_loss_and_still_a_number():
    bad, good = np.array([[np.inf], [1.0]]), np.array([[1e9], [1.0]])
    for broken in (np.inf, np.nan):
        bad[0] = broken
        assert np.isfinite(merit_of(bad, 1e-12)) and merit_of(bad, 1e-12) > merit_of(good, 1e-12)


def test_merit_is_taken_at_a_quarter_half_and_all_of_the_horizon():
    losses = TASK.losses(TEACHER, SPLIT.prior, (2, 5, 10))
    assert TASK.horizon == 10
    wanted = np.mean((np.log10(losses).mean(0) + np.log10(losses.mean(0))) / 2)
    assert merit(TASK, TEACHER, SPLIT.prior) == pytest.approx(wanted, rel=1e-9)


def test_merit_counts_distances_where_training_does():
    minima = 0.5 * TASK.losses(TEACHER, SPLIT.prior)[:, 0]
    data = PriorSet(SPLIT.prior.thetas, minima)
    task = changed(TASK, training=TrainingSettings(distances=True))
    losses = TASK.losses(TEACHER, SPLIT.prior, (2, 5, 10)) - minima[:, None]
    assert merit(task, TEACHER, data) == pytest.approx(merit_of(losses, 1e-12), rel=1e-9)
    assert merit(TASK, TEACHER, data) == merit(TASK, TEACHER, SPLIT.prior)


def test_stored_hypers_get_the_precision_of_the_rule():
    assert hyper_at(RULE, np.zeros(3, np.float32)).dtype == jnp.float64
    assert isinstance(TEACHER, HeavyBall)


def test_an_option_that_xla_does_not_know_is_left_out(monkeypatch):
    assert training._one_after_the_other("gpu") == {}
    assert list(training._one_after_the_other("cpu").values()) == [False]
    compile_really = jax.jit

    def older(function, compiler_options):
        return compile_really(function, compiler_options={"xla_cpu_no_such_option": False})

    monkeypatch.setattr(jax, "jit", older)
    assert training._one_after_the_other("cpu") == {}
