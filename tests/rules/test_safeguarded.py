"""Safeguards: whatever a rule does, the loss never rises, and on a good path they cost nothing."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jaxtyping import Array

from support.catalogue import MATRIX, PROBLEMS
from support.traced import trace
from surestep.base.errors import ConfigurationError
from surestep.base.keys import named_key
from surestep.problem.base import Problem, instance
from surestep.problem.draw import draw
from surestep.rollout.batched import rollouts
from surestep.rollout.loop import Status, rollout
from surestep.rules import (
    ADMM,
    LBFGS,
    ConjugateGradients,
    Fista,
    GradientDescent,
    HeavyBall,
    Safeguarded,
    Scaled,
    ScaledFista,
    Started,
)
from surestep.rules.base import GradientRule, Rule, State, hyper_of

ENTRY = PROBLEMS["regression"]
REGRESSION = ENTRY.problem
STEP = float(1 / ENTRY.smoothness)
CAREFUL = GradientDescent(STEP)
LASSO = PROBLEMS["lasso"]
PROXIMAL = Fista(float(1 / LASSO.smoothness))
TIMES = 12


class Scripted(GradientRule):
    """Adds one given vector after the other, and begins again with the first when it must."""

    moves: Array

    def remember(self, x, value, gradient):
        return jnp.zeros((), jnp.int32)

    def update(self, x, value, gradient, memory):
        return x + self.moves[memory % len(self.moves)], memory + 1


class ScriptedState(State):
    x: Array
    value: Array
    time: Array


class ScriptedByValues(Rule):
    """The same, but it asks for values alone: not a gradient rule."""

    moves: Array

    def init(self, oracle, x):
        return ScriptedState(x, oracle.value(x), jnp.zeros((), jnp.int32))

    def step(self, oracle, state):
        x = state.x + self.moves[state.time % len(self.moves)]
        return ScriptedState(x, oracle.value(x), state.time + 1)


BOTH = [Scripted, ScriptedByValues]


def wild(seed):
    """Moves of every size, some of them infinite or not a number."""
    random = np.random.default_rng(seed)
    sizes = 10.0 ** random.choice([-9, -2, 0, 3, 200], size=(TIMES, 1))
    moves = sizes * random.normal(size=(TIMES, 6))
    for broken in (np.nan, np.inf, -np.inf):
        moves[random.random(TIMES) < 0.1, random.integers(6)] = broken
    return jnp.asarray(moves)


def regression(seed=1):
    return REGRESSION.sample(named_key(seed, "safeguard"))


# ---------------------------------------------------------------- what is promised for any rule


@pytest.mark.parametrize("kind", BOTH)
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**31))
def test_the_loss_never_rises_whatever_the_rule_does(kind, seed):
    with jax.enable_x64(True):
        theta = regression(seed % 7)
        rule = Safeguarded(kind(wild(seed)), CAREFUL, patience=4)
        x, losses, _, _ = trace(rule, REGRESSION, theta, 40)
        start = float(REGRESSION.loss(REGRESSION.start(theta), theta))
        assert losses[0] == pytest.approx(start, rel=1e-12)
        assert np.all(np.isfinite(losses)) and np.all(np.isfinite(x))
        assert np.all(np.diff(losses) <= 0)
        # The reported point is the one whose loss is reported.
        assert float(REGRESSION.loss(jnp.asarray(x[-1]), theta)) == pytest.approx(losses[-1])


def reference(moves, target, iterations, factor, patience, decrease):
    """What the docstring says, in plain NumPy: current points and best losses."""

    def loss(x):
        with np.errstate(all="ignore"):
            return 0.5 * np.sum((MATRIX @ x - target) ** 2)

    x = best_x = np.zeros(6)
    value = best = mark = loss(x)
    since = remaining = time = 0
    burst, bests = 1, [best]
    for _ in range(iterations):
        blown = not np.isfinite(value) or value > factor * best
        stalled = not blown and remaining == 0 and since >= patience
        if blown or stalled:
            x, since = best_x, -1
            remaining = burst if stalled else 1
            burst = 2 * burst if stalled else burst
        if remaining:
            x, remaining = x - STEP * MATRIX.T @ (MATRIX @ x - target), remaining - 1
            ended = remaining == 0
            time = 0 if ended else time
        else:
            x, ended, time = x + moves[time % len(moves)], False, time + 1
        value, since = loss(x), since + 1
        if value < best:
            best, best_x = value, x
        if value <= (1 - decrease) * mark or ended:
            mark, since = best, 0
        bests.append(best)
    return best_x, np.array(bests)


@pytest.mark.parametrize("kind", BOTH)
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**31))
def test_agrees_with_a_plain_transcription(kind, seed):
    with jax.enable_x64(True):
        theta, moves = regression(seed % 7), wild(seed)
        # Half of the rules never blow up, so that stalls are seen in a row.
        moves = moves if seed % 2 else 1e-3 * jnp.nan_to_num(jnp.sign(moves))
        rule = Safeguarded(kind(moves), CAREFUL, factor=3.0, patience=2, decrease=0.01)
        x, losses, _, _ = trace(rule, REGRESSION, theta, 40)
        expected = reference(np.asarray(moves), np.asarray(theta), 40, 3.0, 2, 0.01)
        np.testing.assert_allclose(x[-1], expected[0], rtol=1e-8, atol=1e-10)
        np.testing.assert_allclose(losses, expected[1], rtol=1e-9)


class Cliff(Problem):
    """x^2 until x leaves the unit interval; there the loss is what the instance says."""

    def sample(self, key):
        return jnp.asarray(jnp.nan)

    def start(self, theta):
        return jnp.asarray(0.9)

    def loss(self, x, theta):
        return jnp.where(jnp.abs(x) <= 1, x**2, theta)


@pytest.mark.parametrize("beyond", [np.nan, np.inf, -np.inf, 1e30])
def test_a_guarded_rollout_never_diverges(beyond):
    # The step of 1.2 takes 0.9 over the cliff, again and again.
    rule = Safeguarded(GradientDescent(1.2), GradientDescent(0.1))
    result = rollout(rule, Cliff(), jnp.asarray(beyond), 30)
    assert result.status == Status.FINISHED
    assert np.all(np.diff(np.asarray(result.losses)) <= 0)
    assert 0 <= result.losses[-1] < 0.5


def test_a_start_that_is_not_finite_is_still_a_divergence():
    class Lost(Cliff):
        def start(self, theta):
            return jnp.asarray(2.0)

    rule = Safeguarded(GradientDescent(0.1), GradientDescent(0.1))
    result = rollout(rule, Lost(), jnp.asarray(jnp.inf), 3)
    assert result.status == Status.DIVERGED


# ------------------------------------------------------------------- what it costs on a good path

CALM = {"factor": 1e6, "patience": 10**6}
GOOD = {
    "heavy ball": (HeavyBall.for_constants(ENTRY.smoothness, ENTRY.convexity), CAREFUL, ENTRY),
    "FISTA": (PROXIMAL, PROXIMAL, LASSO),
    "general fallback": (CAREFUL, Fista(STEP), ENTRY),
}


@pytest.mark.parametrize("name", GOOD)
def test_a_good_path_costs_what_the_rule_costs(name):
    rule, fallback, entry = GOOD[name]
    theta = entry.problem.sample(named_key(3, "safeguard"))
    _, alone, *counts = trace(rule, entry.problem, theta, 15)
    _, guarded, *guarded_counts = trace(
        Safeguarded(rule, fallback, **CALM), entry.problem, theta, 15
    )
    np.testing.assert_array_equal(guarded_counts, counts)
    np.testing.assert_allclose(guarded, np.minimum.accumulate(alone), rtol=1e-12)


@pytest.mark.parametrize("name", ["heavy ball", "L-BFGS"])
def test_counts_are_what_is_computed(name):
    """Losses are counted where they are computed, also where the fallback acts."""
    calls = []

    class Counted(type(PROBLEMS["bowl"].problem)):
        def loss(self, x, theta):
            jax.debug.callback(lambda: calls.append(1))
            return super().loss(x, theta)

    problem = Counted()
    theta = problem.sample(named_key(10, "bowl"))
    rule = HeavyBall(0.2, 0.5) if name == "heavy ball" else LBFGS()
    careful = GradientDescent(0.4)
    guarded = Safeguarded(rule, careful, patience=1, decrease=0.99)
    _, _, gradients, values = trace(guarded, problem, theta, 8)
    jax.effects_barrier()
    assert int(gradients[-1]) + int(values[-1]) == len(calls)
    if name == "heavy ball":
        # One gradient an iteration in any case.
        np.testing.assert_array_equal(gradients, np.arange(1, 10))


# ------------------------------------------------------------------------ what happens when it acts


@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize("far", [1e8, np.nan, np.inf])
def test_a_blow_up_is_answered_by_one_fallback_step_from_the_best_point(kind, far):
    theta = regression()
    exact = np.linalg.lstsq(MATRIX, np.asarray(theta))[0]
    # Two good moves, one that worsens the loss a little, one that blows it up; then again.
    moves = jnp.asarray(np.stack([0.3 * exact, 0.3 * exact, -0.1 * exact, np.full(6, far)]))
    x, _, _, _ = trace(Safeguarded(kind(moves), CAREFUL), REGRESSION, theta, 7)
    best = 0.6 * exact
    for i in (2, 3, 4):
        np.testing.assert_allclose(x[i], best, rtol=1e-12)
    stepped = best - STEP * MATRIX.T @ (MATRIX @ best - np.asarray(theta))
    np.testing.assert_allclose(x[5], stepped, rtol=1e-12)
    # The rule begins anew from there, with its first move.
    np.testing.assert_allclose(x[6], stepped + 0.3 * exact, rtol=1e-12)


@pytest.mark.parametrize("kind", BOTH)
def test_after_stalls_the_fallback_takes_one_step_then_two_then_four(kind):
    rule = Safeguarded(kind(jnp.zeros((1, 6))), CAREFUL, patience=3)
    _, losses, gradients, _ = trace(rule, REGRESSION, regression(), 25)
    acted = np.diff(losses) < 0
    expected = "0001" + "00011" + "0001111" + "000111111"
    assert "".join(str(int(a)) for a in acted) == expected
    if kind is Scripted:
        assert np.all(np.diff(gradients) == 1)
    else:
        # The rule asks for none, the fallback for one when it begins and one a step.
        begun = acted & ~np.concatenate([[False], acted[:-1]])
        np.testing.assert_array_equal(np.diff(gradients), acted.astype(int) + begun)


def test_a_decrease_that_is_sufficient_is_no_stall():
    """Half of the loss each time: far more than asked for, however long it goes on."""

    class Halving(Problem):
        def sample(self, key):
            return jnp.zeros(())

        def start(self, theta):
            return jnp.ones(())

        def loss(self, x, theta):
            return x**2

    halving = GradientDescent(0.25)
    guarded = Safeguarded(halving, GradientDescent(1e-12), patience=1)
    _, losses, _, _ = trace(guarded, Halving(), jnp.zeros(()), 20)
    np.testing.assert_allclose(losses, 0.25 ** np.arange(21.0), rtol=1e-12)


USELESS = {
    "does nothing": jnp.zeros((1, 6)),
    "blows up": jnp.full((1, 6), 1e9),
    "gets lost": jnp.full((1, 6), jnp.nan),
    "wanders": jnp.asarray(1e-3 * np.random.default_rng(1).normal(size=(50, 6))),
}


@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize("name", USELESS)
def test_a_useless_rule_still_ends_at_the_minimum(kind, name):
    """The minimum is positive: a stall there never shows as a blow-up."""
    theta = regression()
    rule = Safeguarded(kind(jnp.asarray(USELESS[name])), CAREFUL, patience=5)
    x, losses, _, _ = trace(rule, REGRESSION, theta, 3000)
    gradient = MATRIX.T @ (MATRIX @ x[-1] - np.asarray(theta))
    assert np.linalg.norm(gradient) < 1e-6
    assert losses[-1] == pytest.approx(REGRESSION.minimum(theta), rel=1e-12)
    assert REGRESSION.minimum(theta) > 0.1


def test_a_useless_rule_still_ends_at_the_minimum_zero():
    class Valley(Problem):
        def sample(self, key):
            return jax.random.normal(key, (6,))

        def start(self, theta):
            return jnp.zeros(6)

        def loss(self, x, theta):
            return 0.5 * jnp.sum(jnp.linspace(0.1, 1.0, 6) * (x - theta) ** 2)

    theta = Valley().sample(named_key(1, "valley"))
    rule = Safeguarded(Scripted(jnp.zeros((1, 6))), GradientDescent(1.0), patience=5)
    x, losses, _, _ = trace(rule, Valley(), theta, 1000)
    np.testing.assert_allclose(x[-1], theta, atol=1e-10)
    assert losses[-1] < 1e-20


def test_a_useless_rule_on_the_lasso_ends_at_its_minimum():
    theta = LASSO.problem.sample(named_key(1, "safeguard"))
    rule = Safeguarded(ScriptedByValues(jnp.zeros((1, 16))), PROXIMAL)
    _, losses, _, _ = trace(rule, LASSO.problem, theta, 6000)
    assert losses[-1] == pytest.approx(LASSO.problem.minimum(theta), rel=1e-9)


# ------------------------------------------------------------------------------ alone, in company


@pytest.mark.parametrize("kind", BOTH)
def test_batched_and_one_by_one_agree(kind):
    thetas = draw(REGRESSION, 3, named_key(2, "safeguard"))
    rule = Safeguarded(kind(wild(5)), CAREFUL, patience=3)
    together = rollouts(rule, REGRESSION, thetas, 30, 3)
    for i in range(3):
        x, losses, gradients, _ = trace(rule, REGRESSION, instance(thetas, i), 30)
        np.testing.assert_allclose(together.losses[i], losses, rtol=1e-10)
        np.testing.assert_allclose(together.x[i], x[-1], rtol=1e-9, atol=1e-12)
        np.testing.assert_array_equal(together.gradients[i], gradients)


@pytest.mark.parametrize("kind", BOTH)
def test_works_inside_other_coordinates_and_from_another_start(kind):
    theta = regression()
    inner = Safeguarded(kind(wild(8)), CAREFUL, patience=3)
    plain = trace(inner, REGRESSION, theta, 30)
    for wrapped in (Scaled.around(inner, 6), Started.around(inner, 6)):
        for found, wanted in zip(trace(wrapped, REGRESSION, theta, 30), plain, strict=True):
            np.testing.assert_array_equal(found, wanted)
    random = np.random.default_rng(0)
    scaled = Scaled(inner, jnp.asarray(random.uniform(-1, 0, 6)))
    shifted = Started(inner, jnp.asarray(random.normal(size=6)))
    for rule, start in ((scaled, jnp.zeros(6)), (shifted, shifted.shift)):
        _, losses, _, _ = trace(rule, REGRESSION, theta, 30)
        assert losses[0] == pytest.approx(float(REGRESSION.loss(start, theta)))
        assert np.all(np.diff(losses) <= 0) and losses[-1] < losses[0]


def test_a_learned_start_is_taken_once_not_after_every_fallback_step():
    theta = regression()
    exact = np.linalg.lstsq(MATRIX, np.asarray(theta))[0]
    shift = np.random.default_rng(0).normal(size=6)
    good = 0.2 * (exact - shift)
    rule = Started(ScriptedByValues(jnp.asarray(good[None])), jnp.asarray(shift))
    # However well the rule does, after every step of its own the fallback takes one.
    guarded = Safeguarded(rule, CAREFUL, patience=1, decrease=0.999)
    x, _, _, _ = trace(guarded, REGRESSION, theta, 3)
    moved = shift + good
    stepped = moved - STEP * MATRIX.T @ (MATRIX @ moved - np.asarray(theta))
    np.testing.assert_allclose(x, [shift, moved, stepped, stepped + good], rtol=1e-12)


def test_its_hyper_is_the_rules_and_training_sees_the_rule_alone():
    rule = Scripted(wild(0))
    guarded = Safeguarded(rule, CAREFUL)
    np.testing.assert_array_equal(hyper_of(guarded), hyper_of(rule))
    assert guarded.bare() is rule
    started = Started.around(guarded, 6).bare()
    assert isinstance(started, Started) and started.rule is rule
    twice = Safeguarded(guarded, CAREFUL)
    assert twice.bare() is rule


@pytest.mark.parametrize(
    "fallback",
    [
        HeavyBall(jnp.asarray(0.1), 0.5),
        ScaledFista(jnp.ones(6)),
        Scaled.around(CAREFUL, 6),
    ],
)
def test_a_fallback_that_would_be_trained_is_refused(fallback):
    with pytest.raises(ConfigurationError, match="nothing to learn"):
        Safeguarded(CAREFUL, fallback)


@pytest.mark.parametrize(
    "change",
    [
        {"factor": 0.9},
        {"factor": float("nan")},
        {"patience": 0},
        {"decrease": 1.0},
        {"decrease": -0.1},
        # A rule that stands still would never be seen to stall.
        {"decrease": 0.0},
        {"decrease": float("nan")},
    ],
    ids=str,
)
def test_numbers_that_make_no_sense_are_refused(change):
    with pytest.raises(ConfigurationError, match="a safeguard needs"):
        Safeguarded(CAREFUL, CAREFUL, **change)


def test_needs_are_those_of_both():
    assert set(Safeguarded(ConjugateGradients(), ADMM(1.0)).needs) == {"residual", "smooth_prox"}
    assert Safeguarded(Started.around(CAREFUL, 6), CAREFUL).learns_start
    assert not Safeguarded(CAREFUL, CAREFUL).learns_start
