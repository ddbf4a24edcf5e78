"""Numbers at the edge: losses from 1e-300 to 1e300, NaN, infinity, no gradient, divergence.

Never a NaN in a certificate, never a crash; and what went wrong is said for each instance.
"""

import json
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import surestep
from support.tiny import CONFIG, changed, train_set
from surestep.base.errors import ProblemError
from surestep.problem.contract import check_problem
from surestep.problem.datasets import PriorSet, SealedTrainSet, SplitSizes
from surestep.problem.draw import working_precision
from surestep.problem.goal import Goal
from surestep.rules import Coordinatewise, GradientDescent
from surestep.run.fresh import certify_rule
from surestep.run.pipeline import learn
from surestep.solver.solver import Solver
from surestep.storage.records import to_json
from surestep.storage.run_folder import RunFolder
from surestep.train.constraint import Constraint
from surestep.train.experiment import Accuracies, Experiment
from surestep.train.task import Task

USUAL, NAN, INFINITE, FLAT, WILD, NAN_GRADIENT = range(6)
KINDS = {
    "usual": USUAL, "not a number": NAN, "infinite": INFINITE, "flat": FLAT, "diverging": WILD,
    "a gradient that is none": NAN_GRADIENT,
}  # fmt: skip
BAD = (NAN, INFINITE, WILD, NAN_GRADIENT)


class Edge(NamedTuple):
    scale: Any
    target: Any
    kind: Any


@jax.custom_jvp
def spoiled(value, factor):
    """A value whose derivative is another."""
    return value


@spoiled.defjvp
def _(values, tangents):
    value, factor = values
    return value, tangents[0] * factor


class Edgy(surestep.Problem):
    """A bowl of any size, which may turn into something else as soon as x has moved."""

    def sample(self, key):
        size, place, kind = jax.random.split(key, 3)
        # More small ones than large ones, so that a fixed step can reach a goal.
        scale = 10.0 ** (600 * jax.random.uniform(size) ** 3 - 300)
        chance = jax.random.uniform(kind)
        return Edge(
            scale,
            jax.random.normal(place, (3,)),
            jnp.where(chance < 0.7, USUAL, jnp.floor(6 * chance)).astype(jnp.int32),
        )

    def start(self, theta):
        return jnp.zeros(3)

    def loss(self, x, theta):
        moved = jnp.sum(jnp.abs(jax.lax.stop_gradient(x))) > 0
        bowl = theta.scale * jnp.sum((x - theta.target) ** 2)
        value = jnp.array([0.0, jnp.nan, jnp.inf, 0.0, 0.0, 0.0])[theta.kind]
        slope = jnp.array([1.0, 1.0, 1.0, 0.0, 1e200, jnp.nan])[theta.kind]
        slope = jnp.where(moved | (theta.kind == FLAT), slope, 1.0)
        return spoiled(bowl, slope) + jnp.where(moved, value, 0.0)


PROBLEM = Edgy()
SIZES = SplitSizes(40, 40, 40, 20)


def numbers(value):
    """All numbers in a plain value; words for them included."""
    if isinstance(value, dict):
        return [n for inner in value.values() for n in numbers(inner)]
    if isinstance(value, list):
        return [n for inner in value for n in numbers(inner)]
    if value in ("inf", "-inf", "nan"):
        return [float(value)]
    return [value] if isinstance(value, int | float) else []


def require_sound(document):
    plain = json.loads(to_json(document))
    found = numbers(plain)
    assert len(found) > 20
    assert not [n for n in found if math.isnan(n)]
    assert "nan" not in str(document).lower().split()
    for statement in document.statements:
        assert statement.value >= 0 or statement.name.startswith(("advantage", "saving")), statement


@pytest.fixture(scope="module")
def data():
    return PriorSet.draw(PROBLEM, 40, 0), SealedTrainSet(PROBLEM, 40, 0)


def task(**changes):
    return Task(
        PROBLEM, Goal(1.0, changes.pop("exponent", 1.0)), Constraint(), changes.pop("horizon", 5), 8
    )


def rival():
    """An experiment with one opponent, of which nothing else matters here."""
    return Experiment(
        PROBLEM, lambda key: GradientDescent(0.1), None, {"slow": GradientDescent(1e-4)},
        Accuracies((1e-2,)),
    )  # fmt: skip


@pytest.mark.parametrize("exponent", [1.0, 0.5])
def test_a_certificate_of_edgy_instances_holds_numbers_only(exponent, data):
    document = certify_rule(
        "edgy", GradientDescent(0.1), task(exponent=exponent),
        rival(), data[0], data[1], CONFIG.certify,
    )  # fmt: skip
    require_sound(document)


def one(kind, scale=1.0):
    return Edge(np.full(1, scale), np.ones((1, 3)), np.full(1, kind, np.int32))


def stacked(*instances):
    return jax.tree.map(lambda *leaves: np.concatenate(leaves), *instances)


@pytest.fixture(scope="module")
def solver():
    probes = stacked(*[one(USUAL)] * 4)
    return Solver(PROBLEM, GradientDescent(0.1), 5, Goal(1.0, 1.0), 8, None, None, probes)


def test_the_status_names_the_instance(solver):
    thetas = stacked(*(one(kind) for kind in KINDS.values()))
    solution = solver.solve(thetas)
    wrong = [index for index, kind in enumerate(KINDS.values()) if kind in BAD]
    assert solution.failed.tolist() == wrong
    assert not np.isnan(solution.loss).any()
    assert f"{len(BAD)} of {len(KINDS)}" in str(solution)


@pytest.mark.parametrize("power", [-300, -160, -20, 0, 20, 160, 300])
def test_losses_of_any_size_are_solved(power, solver):
    """A step that suits the size does the same to the loss, whatever the size."""
    scale = 10.0**power
    with working_precision(PROBLEM):
        suited = Solver(PROBLEM, GradientDescent(0.1 / scale), 5, Goal(1.0, 1.0), 8, None, None,
                        solver.probes)  # fmt: skip
    solution = suited.solve(one(USUAL, scale))
    np.testing.assert_allclose(solution.loss, 3 * scale * 0.8**10, rtol=1e-12)
    assert not len(solution.failed)


def test_learning_on_edgy_instances_ends_in_a_certificate(tmp_path):
    experiment = surestep.Experiment(
        problem=PROBLEM, create_rule=Coordinatewise.create, teacher=GradientDescent(1e-3),
        baselines={"gradient descent": GradientDescent(1e-3)},
        accuracies=surestep.Accuracies((1.0,)),
    )  # fmt: skip
    config = changed(
        CONFIG, name="edgy", problem=None, goal=Goal(10.0, 1.0), horizon=4, sizes=SIZES,
        constraint=Constraint(lower=0.3, width=0.7),
        imitate=changed(CONFIG.imitate, steps=20),
        locate=changed(CONFIG.locate, steps=20, check_every=10, chunk=10),
        sample=changed(CONFIG.sample, samples=2, burn_in=0, thinning=1),
        evaluate=changed(CONFIG.evaluate, baselines=(), limit=5, shifted=0),
    )  # fmt: skip
    folder = RunFolder(tmp_path / "run")
    learned = learn(config, experiment, folder)
    require_sound(learned.certificate)
    assert "NaN" not in folder.certificate_path.read_text()


class Broken(Edgy):
    """Not a number from the start, on instances that are known."""

    def loss(self, x, theta):
        return jnp.where(theta.target[0] > 1.5, jnp.nan, super().loss(x, theta))


def test_a_loss_that_is_none_at_the_start_names_the_instance():
    thetas = train_set(40, 0, Broken()).thetas
    first = int(np.argmax(np.asarray(thetas.target)[:, 0] > 1.5))
    assert first > 0
    with pytest.raises(ProblemError, match=f"is not a number on . of 40.*on instance {first} "):
        check_problem(Broken(), thetas, 8)
