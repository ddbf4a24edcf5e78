"""A network's start: its formula, its precision, and what it is fitted to."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from surestep.auto import starts
from surestep.auto.candidates import Candidate
from surestep.auto.survey import survey
from surestep.problem.base import Problem
from surestep.problem.datasets import PriorSet
from surestep.problem.draw import draw
from surestep.problem.oracle import Oracle
from surestep.problem.penalties import Box
from surestep.rollout.program import Program
from surestep.rules import FistaWithRestart, Fixed, NetworkStart, ProximalGradient
from surestep.rules.base import hyper_of

RNG = np.random.default_rng(4)
A = RNG.normal(size=(6, 4)) / 2
NONNEGATIVE = Problem.of(
    lambda x, theta: 0.5 * jnp.sum((A @ x - theta) ** 2), np.full(4, 0.5),
    sample=lambda key: jax.random.normal(key, (6,)), penalty=Box(0.0, np.inf),
)  # fmt: skip
L = float(np.linalg.eigvalsh(A.T @ A)[-1])


def numbers(*shape):
    return Fixed(jnp.asarray(RNG.normal(size=shape)))


def test_the_start_is_the_formula_put_through_the_proximal_map():
    with jax.enable_x64(True):
        rule = NetworkStart(
            ProximalGradient(0.1), numbers(4), numbers(4, 6), numbers(3, 6), numbers(3),
            numbers(4, 3), 0.2,
        )  # fmt: skip
        theta = NONNEGATIVE.sample(jax.random.key(0))
        oracle = Oracle(NONNEGATIVE, theta)
        found = rule.point(rule.init(oracle, oracle.start))
        f = np.asarray(theta)
        b, w, i, t, o = (
            np.asarray(getattr(rule, name).array)
            for name in ("bias", "weights", "inner", "thresholds", "outer")
        )
        expected = np.maximum(0.5 + b + w @ f + o @ np.maximum(i @ f + t, 0), 0)
        np.testing.assert_allclose(found, expected, rtol=1e-12)
        # What is resumed begins where it is told to, and the network is nothing to be learned.
        np.testing.assert_array_equal(rule.point(rule.resume(oracle, oracle.start)), oracle.start)
        assert hyper_of(dataclasses.replace(rule, rule=ProximalGradient(0.1))).size == 0


@pytest.fixture(scope="module")
def fitted():
    found = survey(NONNEGATIVE, PriorSet.draw(NONNEGATIVE, 24, 0))
    base = Candidate("FISTA", FistaWithRestart(1 / L))
    with jax.enable_x64(True):
        program = Program.of(base.rule, NONNEGATIVE, 64)
    learned = starts.from_network(NONNEGATIVE, found, 0, base, program, 100, 20.0)
    assert learned is not None
    return found, base, program, learned


def test_a_network_predicts_solutions_of_instances_it_has_not_seen(fitted):
    *_, learned = fitted
    with jax.enable_x64(True):
        thetas = draw(NONNEGATIVE, 64, jax.random.key(9))
        exact = Program.of(FistaWithRestart(1 / L), NONNEGATIVE, 64).solve(thetas, 500, None)

        def start(theta):
            oracle = Oracle(NONNEGATIVE, theta)
            return learned.rule.start(oracle, oracle.start)

        found = np.asarray(jax.vmap(start)(thetas))
    far = np.mean(np.sum((found - exact.x) ** 2, 1))
    usual = np.mean(np.sum((np.mean(exact.x, 0) - exact.x) ** 2, 1))
    assert far < 0.02 * usual
    assert "network" in learned.name and not learned.classical


def test_it_is_fitted_to_none_of_the_instances_that_candidates_are_compared_on(fitted, monkeypatch):
    found, base, program, _ = fitted
    seen = []
    real = starts._seen

    def watched(problem, thetas, points):
        seen.append(np.asarray(thetas))
        return real(problem, thetas, points)

    monkeypatch.setattr(starts, "_seen", watched)
    starts.from_network(NONNEGATIVE, found, 0, base, program, 100, 5.0)
    surveyed = {row.tobytes() for row in np.asarray(PriorSet.draw(NONNEGATIVE, 24, 0).thetas)}
    used = {row.tobytes() for row in np.concatenate(seen)}
    assert len(used) >= 512 and not used & surveyed


def test_recorded_data_have_no_more_instances_than_there_are(fitted):
    found, base, program, _ = fitted
    few = Problem.of(
        lambda x, t: 0.5 * jnp.sum((A @ x - t["t"]) ** 2), np.full(4, 0.5),
        thetas={"t": RNG.normal(size=(300, 6))}, penalty=Box(0.0, np.inf),
    )  # fmt: skip
    assert starts.from_network(few, found, 0, base, program, 10, 5.0) is None


def test_no_time_means_no_network(fitted):
    found, base, program, _ = fitted
    assert starts.from_network(NONNEGATIVE, found, 0, base, program, 100, 1e-9) is None
