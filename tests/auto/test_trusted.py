"""The trusted solver: within a time, and with a number for everyone."""

import contextlib
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from surestep.auto import trusted
from surestep.auto.survey import survey
from surestep.auto.trusted import solve_all, solve_some
from surestep.problem import PriorSet, Problem, instance
from surestep.problem.penalties import Box


def curved(x, theta):
    return jnp.sum(jnp.cosh(jnp.arange(1.0, 5.0) * (x - theta))) - 4


PROBLEM = Problem.of(curved, np.zeros(4), sample=lambda key: jax.random.normal(key, (4,)))
BOXED = Problem.of(
    curved, np.zeros(4), sample=lambda key: jax.random.normal(key, (4,)), penalty=Box(-0.5, 0.5)
)
DATA = PriorSet.draw(PROBLEM, 70, 0)


class Told:
    """A reporter that remembers."""

    def __init__(self) -> None:
        self.stages, self.done, self.notes = [], 0, []

    @contextlib.contextmanager
    def stage(self, name, total, unit, done=0):
        self.stages.append((name, total, unit))
        yield self

    def advance(self, amount, note=""):
        self.done += amount
        self.notes.append(note)

    def say(self, text):
        raise AssertionError(text)


def test_with_time_enough_all_are_solved():
    told = Told()
    found = solve_some(PROBLEM, 20.0, DATA.thetas, report=told)
    assert found.points.shape == (70, 4)
    np.testing.assert_allclose(found.points, DATA.thetas, atol=1e-6)
    np.testing.assert_allclose(found.losses, 0.0, atol=1e-12)
    assert 0 < found.pace < 1
    assert told.stages == [("survey", 70, "instances")]
    assert told.done == 70
    assert any("iteration 50" in note for note in told.notes)


@pytest.mark.parametrize("problem", [PROBLEM, BOXED])
def test_without_time_the_first_batch_is_begun_and_the_others_left_out(problem, monkeypatch):
    monkeypatch.setattr(trusted, "_BATCH", 8)
    found = solve_some(problem, 20.0, DATA.thetas, seconds=0.0)
    assert len(found.losses) == len(found.points) == len(found.starts) == 6
    assert np.all(found.losses < found.starts)


def test_pieces_of_other_lengths_compile_nothing(compilations, monkeypatch):
    first = solve_some(PROBLEM, 20.0, DATA.thetas)
    monkeypatch.setattr(trusted, "_LOOK", 7)
    with compilations() as made:
        again = solve_some(PROBLEM, 20.0, DATA.thetas)
    assert made.count == 0
    np.testing.assert_allclose(first.points, again.points, atol=1e-6)


def test_a_batch_that_takes_long_is_made_smaller(monkeypatch):
    solver = trusted._Solver(PROBLEM, 20.0, DATA.thetas, 32, Told())
    clock = iter(np.cumsum([0.0, 9.0, 0.0, 0.1, 0.0, 9.0, 0.0, 0.05]))
    monkeypatch.setattr(trusted, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    solver.settle(0.1)
    # A gradient of all took 0.1 s, so an iteration of half of them takes that.
    assert solver.batch == 16
    assert solver.pace == pytest.approx(0.05)


def test_everyone_gets_a_number_however_few_iterations_there_are():
    exact = solve_all(PROBLEM, 20.0, DATA.thetas, 1000)
    hurried = solve_all(PROBLEM, 20.0, DATA.thetas, 1, 8)
    starts = np.asarray(jax.vmap(lambda theta: curved(jnp.zeros(4), theta))(DATA.thetas))
    assert exact.shape == hurried.shape == (70,)
    assert np.all(hurried < starts)
    assert np.all(exact <= hurried + 1e-12)


def test_a_survey_that_was_cut_short_is_whole(monkeypatch):
    monkeypatch.setattr(trusted, "_BATCH", 12)
    monkeypatch.setattr(trusted, "_FEWEST", 12)
    found = survey(PROBLEM, DATA, seconds=0.0)
    few = PriorSet.draw(PROBLEM, 12, 0)
    assert found.sha256 == few.sha256
    assert len(found.minima) == len(found.starts) == len(found.slopes) == 12
    assert found.fitted == 8
    assert found.allowed == 0.0


@pytest.mark.parametrize("problem", [PROBLEM, BOXED])
def test_a_minimum_depends_on_its_instance_alone(problem):
    """Not on a clock, nor on those beside it in a batch: a certificate is checked against it."""
    together = solve_all(problem, 20.0, DATA.thetas, 300, 32)
    some = solve_all(problem, 20.0, instance(DATA.thetas, slice(20, 37)), 300, 32)
    np.testing.assert_array_equal(some, together[20:37])
