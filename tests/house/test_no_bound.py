"""Losses that may be negative and have no known lower bound: only what needs none is certified."""

import dataclasses
import json
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import surestep
from support.tiny import CONFIG, changed
from support.tiny import PROBLEM as TINY_PROBLEM
from support.types import unchecked
from surestep.auto.goals import decrease_goal
from surestep.base.errors import ConfigurationError
from surestep.base.keys import named_key
from surestep.certify.certificate import Certificate
from surestep.certify.evidence import reached_in
from surestep.certify.plan import Plan
from surestep.certify.posterior import Certified
from surestep.certify.targets import FIRST
from surestep.evaluate.test_set import EvaluateSettings
from surestep.problem.base import Problem
from surestep.problem.datasets import SealedTrainSet, SplitSizes
from surestep.problem.draw import draw
from surestep.problem.goal import Goal
from surestep.report import write_report
from surestep.rollout.batched import rollouts
from surestep.rollout.loop import rollout
from surestep.rollout.observe import Watch, observe
from surestep.rollout.rounding import close_losses
from surestep.rules import Coordinatewise, GradientDescent, Safeguarded
from surestep.rules.base import GradientRule, require_fit
from surestep.run.verify.run import verify
from surestep.storage.records import from_plain
from surestep.storage.run_folder import RunFolder
from surestep.train.trajectory import TrainingSettings


def sample(key):
    bend, pull = jax.random.split(key)
    diagonal = jax.random.uniform(bend, (3,), minval=1.0, maxval=4.0)
    return {"diagonal": diagonal, "pull": 3 * jax.random.normal(pull, (3,))}


def loss(x, theta):
    """A quadratic minus a linear term; nobody says how deep it is."""
    return 0.5 * jnp.sum(theta["diagonal"] * x**2) - theta["pull"] @ x


PROBLEM = Problem.of(loss, np.ones(3), sample=sample, lower=None, name="deep")
OPPONENT = GradientDescent(0.15)
ALLOWED = [
    "iterations until",
    "missing the goal",
    "losses over iterations",
    "sooner than gradient descent",
    "saving over gradient descent",
    "better than gradient descent",
]


def least(theta):
    return -0.5 * np.sum(np.asarray(theta["pull"]) ** 2 / np.asarray(theta["diagonal"]), axis=-1)


EXPERIMENT = surestep.Experiment(
    problem=PROBLEM,
    # Gradient descent whose step is learned: little to compile.
    create_rule=lambda key: Safeguarded(GradientDescent(jnp.asarray(0.2)), GradientDescent(0.2)),
    teacher=None,
    baselines={"gradient descent": OPPONENT},
    accuracies=surestep.Accuracies((1e-2,), least, above="the minimum"),
    minima=least,
)
SETTINGS = changed(
    CONFIG,
    name="deep",
    problem=None,
    block=256,
    sample_block=1,
    goal=Goal(0.12, 2.0, "decrease"),
    horizon=15,
    sizes=SplitSizes(40, 60, 60, 20),
    training=TrainingSettings(objective="log", distances=True, floor=1e-8),
    locate=changed(CONFIG.locate, steps=100, chunk=50, check_every=50, keep="best"),
    sample=changed(CONFIG.sample, samples=3, burn_in=0, thinning=1),
    # As if nobody knew the minima, which training and evaluation count from.
    certify=changed(CONFIG.certify, closeness=False),
    evaluate=EvaluateSettings(limit=100, timed=2, shifted=0),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A whole run, with its report."""
    folder = RunFolder(tmp_path_factory.mktemp("no_bound") / "run")
    write_report(surestep.learn(SETTINGS, EXPERIMENT, folder), folder)
    return folder


@pytest.fixture(scope="module")
def opened(folder):
    """The train set that was certified on, the plan, what was observed, and what is stated."""
    plan = from_plain(Plan, json.loads(folder.plan_path.read_text()), "plan")
    sealed = SealedTrainSet(PROBLEM, SETTINGS.sizes.train, SETTINGS.seed)
    train = sealed.open(SETTINGS.commitment(plan.sha256))
    statements = Certificate.load(folder.certificate_path).statements
    stated = {statement.name: statement for statement in statements}
    return train, plan, folder.load("certify", Certified), stated


def test_exactly_what_needs_no_bound_is_certified(folder, opened):
    *_, stated = opened
    assert list(stated) == ALLOWED
    assert all(statement.rigorous for statement in stated.values())
    assert sum(statement.epsilon for statement in stated.values()) == pytest.approx(0.05)
    words = " ".join(statement.sentence for statement in stated.values())
    assert "in expectation" not in words and "powers of ten" not in words
    page = (folder.path / "report.html").read_text()
    assert "below the loss at the start by at least" in page
    assert "clipped" not in page and "paper:" not in page


def test_the_goal_is_a_decrease_from_the_start(opened):
    train, _, found, _ = opened
    theta = {name: np.asarray(leaf) for name, leaf in train.thetas.items()}
    start = 0.5 * theta["diagonal"].sum(axis=1) - theta["pull"].sum(axis=1)
    steepness = np.linalg.norm(theta["diagonal"] - theta["pull"], axis=1)
    np.testing.assert_allclose(found.evidence.thresholds, start - 0.12 * steepness**2, rtol=1e-12)
    assert np.mean(found.evidence.thresholds < 0) > 0.5
    # The rule ends near minima that nobody told it, and nowhere below them.
    above = found.evidence.losses[found.deployed_sample, :, -1] - least(theta)
    assert above.min() > -1e-12 and np.median(above) < 1e-2


def test_certified_probabilities_are_clopper_and_pearsons(opened):
    """Counted by hand from the stored losses, and bounded by SciPy."""
    train, plan, found, stated = opened
    theirs = rollouts(OPPONENT, PROBLEM, train.thetas, plan.horizon, 60)
    np.testing.assert_allclose(found.evidence.opponent_losses[0], theirs.losses[:, -1], rtol=1e-9)
    hits = np.argmax(np.asarray(theirs.losses) <= found.evidence.thresholds[:, None], axis=1)
    assert [target.kind for target in plan.targets] == ["goal"]
    their_hits = reached_in(found.evidence.opponent_reach[0], FIRST, 0)
    np.testing.assert_array_equal(their_hits, 1 + hits)
    ours = found.evidence.losses[found.deployed_sample, :, -1]
    our_hits = reached_in(found.evidence.reach[found.deployed_sample], FIRST, 0)
    slack = next(c.slack for c in plan.claims if c.kind == "better")
    assert 0 < slack < 1e-3
    misses = {
        "missing the goal": ours > found.evidence.thresholds,
        "better than gradient descent": ours > found.evidence.opponent_losses[0] + slack,
        "sooner than gradient descent": our_hits > 1 + hits,
    }
    weight = float(np.exp(plan.log_prior[found.deployed_sample]))
    for name, missed in misses.items():
        level, count = stated[name].epsilon * weight, int(missed.sum())
        expected = stats.beta.ppf(1 - level, count + 1, train.size - count)
        assert stated[name].value == pytest.approx(float(expected), rel=1e-6)


def test_where_minima_are_known_losses_are_counted_from_them():
    """However deep they are: what lies above them is never negative."""
    known = changed(SETTINGS, certify=changed(SETTINGS.certify, closeness=True))
    stated = {s.name: s for s in surestep.learn(known, EXPERIMENT).certificate.statements}
    assert {"share left", "loss, clipped", "advantage over gradient descent"} <= set(stated)
    assert "better than gradient descent" not in stated
    for name in ("iterations until", "losses over iterations", "loss, clipped"):
        assert "the minimum" in stated[name].sentence
    assert 0 < stated["losses over iterations"].value < 1


def test_it_is_verified_and_solved(folder, opened):
    train = opened[0]
    checks = verify(folder, SETTINGS, EXPERIMENT, rerun=5, seed=0)
    assert [str(check) for check in checks if not check.stands] == []
    theta = {name: np.asarray(leaf[:7]) for name, leaf in train.thetas.items()}
    solution = surestep.load(folder.solver_path, PROBLEM).solve(theta)
    assert solution.covered
    np.testing.assert_allclose(solution.loss, least(theta), atol=0.1)


def test_other_losses_do_not_pass_for_the_stored_ones():
    stored = np.array([[4.0, -5.0, -1e-13], [np.inf, 1.0, -2.0]])
    assert close_losses(stored + 1e-9, stored, False, 1e-6).all()
    other = stored.copy()
    other[0, 1], other[1, 0] = -6.0, 7.0
    assert close_losses(other, stored, False, 1e-6).tolist() == [[True, False, True],
                                                            [False, True, True]]  # fmt: skip


class Uphill(GradientRule):
    """A rule that goes the wrong way."""

    def remember(self, x, value, gradient):
        return ()

    def update(self, x, value, gradient, memory):
        return x + 0.5 * gradient, ()


def test_a_safeguard_guards_negative_losses():
    theta = {"diagonal": jnp.full(3, 2.0), "pull": jnp.full(3, 6.0)}
    plain = rollout(GradientDescent(0.05), PROBLEM, theta, 20).losses
    guarded = Safeguarded(GradientDescent(0.05), GradientDescent(0.4), 10.0, 5)
    # A rule that goes down is left alone, below 0 too...
    np.testing.assert_array_equal(rollout(guarded, PROBLEM, theta, 20).losses, plain)
    assert plain[0] < 0
    # ... and one that climbs gives way, after one step each time.
    saved = np.asarray(
        rollout(Safeguarded(Uphill(), GradientDescent(0.4)), PROBLEM, theta, 30).losses
    )
    assert saved[-1] == pytest.approx(-27.0, abs=1e-3)
    assert np.all(np.diff(saved) <= 0)


def test_what_needs_a_bound_is_refused():
    with pytest.raises(ConfigurationError, match="it looks at its logarithm"):
        require_fit(Coordinatewise.create(jax.random.key(0)), PROBLEM)
    with pytest.raises(ConfigurationError, match="a share of the loss at the start is no goal"):
        Goal(0.1, 1.0).require_fit(PROBLEM)
    Goal(-3.0, 0.0).require_fit(PROBLEM)  # a constant, whatever its sign
    bowl = Problem.of(lambda x, t: (x - t) ** 2, 0.0, sample=jax.random.normal)
    with pytest.raises(ConfigurationError, match=r"must be positive, not -3\.0: losses are"):
        Goal(-3.0, 0.0).require_fit(bowl)
    for wrong in (Goal(0.0, 2.0, "decrease"), Goal(1.0, 3.0, "decrease"), Goal(-1.0, 1.0)):
        with pytest.raises(ConfigurationError, match="goal"):
            wrong.validate()
    training = changed(SETTINGS.training, distances=False)
    with pytest.raises(ConfigurationError, match=r"set training\.distances"):
        surestep.learn(changed(SETTINGS, training=training), EXPERIMENT)


@unchecked()  # half-made on purpose
def test_decreases_are_measured_in_the_unit_that_asks_for_most():
    @dataclasses.dataclass
    class Seen:
        starts: np.ndarray
        minima: np.ndarray
        slopes: np.ndarray

    slopes = np.array([1.0, 2.0, 4.0])
    found = decrease_goal(Seen(np.zeros(3), -3 * slopes**2, slopes))  # pyright: ignore
    assert (found.exponent, found.scale) == (2.0, pytest.approx(3 * 0.99 / 1.02, rel=1e-2))
    found = decrease_goal(Seen(np.zeros(3), -3 * np.ones(3), slopes))  # pyright: ignore
    assert found.exponent == 0.0
    with pytest.raises(ConfigurationError, match="the start is a solution already"):
        decrease_goal(Seen(np.zeros(3), np.array([-1.0, 0.0, -1.0]), slopes))  # pyright: ignore


def test_a_decrease_is_no_goal_where_losses_are_never_negative():
    with pytest.raises(ConfigurationError, match="take a share of the loss at the start"):
        Goal(1.0, 0.0, "decrease").require_fit(TINY_PROBLEM)


def test_an_infinite_loss_reaches_no_goal_even_if_the_goal_is_infinite():
    class Overflowing(Problem):
        nonnegative: ClassVar[bool] = False

        def sample(self, key):
            return jnp.ones(2)

        def start(self, theta):
            return jnp.full(2, 1e200)

        def loss(self, x, theta):
            return jnp.sum(theta * x**2)

    thetas = draw(Overflowing(), 3, named_key(0, "data"))
    goal = Goal(1.0, 0.0, "decrease")
    levels = jax.vmap(lambda theta: goal.threshold(Overflowing(), theta))(thetas)[:, None]
    assert np.all(np.isinf(levels))
    seen = observe(GradientDescent(1e-3), Overflowing(), thetas, levels, Watch((0, 2), 1), 3)
    assert np.all(np.isinf(seen.losses)) and np.all(np.isinf(seen.reach))
