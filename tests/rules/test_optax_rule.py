"""Optax optimizers as rules: the points of a plain Optax loop, counted, and strict names."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.flatten_util import ravel_pytree

from support import tiny
from support.catalogue import PROBLEMS
from support.iterates import iterates
from surestep.base.errors import ConfigurationError
from surestep.base.keys import named_key
from surestep.rollout.loop import rollout
from surestep.rules import GradientDescent, Safeguarded
from surestep.rules.base import GradientRule, hyper_of, solver_fingerprint
from surestep.rules.optax_rule import OPTIMIZERS, OptaxRule, OptaxSearch, optax_rule, parse_rule

PROBLEM = PROBLEMS["bowl"].problem
STEPS = 6


def backtracking(store):
    search = optax.scale_by_backtracking_linesearch(10, max_learning_rate=4.0, store_grad=store)
    return optax.chain(optax.sgd(1.0), search)


CASES = {
    "a schedule": (optax.adam(optax.exponential_decay(0.3, 2, 0.5)), "gradient"),
    "polyak_sgd": (optax.polyak_sgd(max_learning_rate=0.3), "gradient"),
    "zoom": (optax.chain(optax.sgd(1.0), optax.scale_by_zoom_linesearch(10)), "zoom"),
    "backtracking": (backtracking(False), "values"),
    "backtracking with gradients": (backtracking(True), "both"),
}


def plain_loop(optimizer, theta, recycle, calls):
    """What Optax's manual does, on a flat vector; every call of the loss is noted."""
    start, unravel = ravel_pytree(PROBLEM.start(theta))

    def loss(x):
        jax.debug.callback(lambda: calls.append(1))
        return PROBLEM.loss(unravel(x), theta)

    evaluate = optax.value_and_grad_from_state(loss) if recycle else None

    @jax.jit
    def step(x, state):
        value, grad = evaluate(x, state=state) if evaluate else jax.value_and_grad(loss)(x)
        updates, state = optimizer.update(grad, state, x, value=value, grad=grad, value_fn=loss)
        return optax.apply_updates(x, updates), state

    points, state = [start], optimizer.init(start)
    for _ in range(STEPS):
        x, state = step(points[-1], state)
        points.append(x)
    jax.effects_barrier()
    return np.asarray(points)


@pytest.mark.parametrize("name", CASES)
def test_the_points_of_a_plain_loop(name):
    optimizer, kind = CASES[name]
    optimizer = optax.with_extra_args_support(optimizer)
    theta, calls = PROBLEM.sample(named_key(1, "optax")), []
    rule = optax_rule(optimizer)
    assert isinstance(rule, GradientRule) == (kind == "gradient")
    points, counted = iterates(rule, PROBLEM, theta, STEPS)
    expected = plain_loop(optimizer, theta, kind in ("zoom", "both"), calls)
    scale = np.abs(expected).max()
    np.testing.assert_allclose(points, expected, rtol=0, atol=2e-15 * scale)
    assert np.abs(points[-1] - points[0]).max() > 0.1

    # A rule also evaluates the last point; a loop that recycles has evaluated it already. The
    # start is evaluated once by either.
    last = 0 if kind in ("zoom", "both") else 1
    assert counted.gradients + counted.values == len(calls) + last
    if kind == "gradient":
        assert (counted.gradients, counted.values) == (STEPS + 1, 0)
    if kind in ("values", "both"):
        assert counted.gradients == STEPS + 1
        assert counted.values >= (STEPS if kind == "values" else 0)


def test_a_search_that_finds_nothing_stays_with_what_it_knows():
    """Uphill no step is good: point, value and gradient belong together all the same."""
    search = optax.scale_by_backtracking_linesearch(3, store_grad=True)
    rule = optax_rule(optax.chain(optax.sgd(-1e200), search))
    theta = PROBLEM.sample(named_key(1, "optax"))
    result = rollout(rule, PROBLEM, theta, 2)
    start, _ = ravel_pytree(PROBLEM.start(theta))
    np.testing.assert_array_equal(result.x, start)
    np.testing.assert_array_equal(result.losses, np.full(3, result.losses[0]))


def test_what_cannot_be_counted_is_refused():
    search = optax.scale_by_backtracking_linesearch(5)
    with pytest.raises(ConfigurationError, match="last part"):
        optax_rule(optax.chain(optax.sgd(1.0), search, optax.scale(0.5)))
    with pytest.raises(ConfigurationError, match=r"optax_rule\(optimizer\)"):
        OptaxRule(optax.lbfgs())
    with pytest.raises(ConfigurationError, match="OptaxRule"):
        OptaxSearch(optax.sgd(0.1))
    with pytest.raises(ConfigurationError, match="takes no options"):
        optax_rule(optax.sgd(0.1), learning_rate=0.2)


def test_rules_are_told_apart_by_their_numbers():
    made = [OptaxRule(optax.adam(rate)) for rate in (0.01, 0.02, 0.01)]
    named = [optax_rule("adam", learning_rate=rate) for rate in (0.01, 0.02, 0.01)]
    schedules = [
        OptaxRule(optax.sgd(optax.cosine_decay_schedule(0.1, steps))) for steps in (10, 11, 10)
    ]
    for first, other, same in (made, named, schedules):
        assert solver_fingerprint(first) == solver_fingerprint(same)
        assert solver_fingerprint(first) != solver_fingerprint(other)
    # Equal names are equal rules, so nothing is compiled twice.
    assert named[0] == named[2]


def test_it_has_nothing_to_learn_and_can_be_a_fallback():
    rule = optax_rule("sgd", learning_rate=0.1)
    assert hyper_of(rule).size == 0
    theta = PROBLEM.sample(named_key(1, "optax"))
    losses = rollout(Safeguarded(GradientDescent(1e9), rule, 1.0), PROBLEM, theta, 4).losses
    # Every other step is the fallback's, from the best point.
    assert losses[1] == losses[0] > losses[2] == losses[3] > losses[4]


@pytest.mark.parametrize(
    ("spec", "name"),
    [
        ("optax:adam(learning_rate=0.01)", "adam(learning_rate=0.01)"),
        ("optax:adam( b1 = .8,learning_rate=1e-2 )", "adam(b1=0.8, learning_rate=0.01)"),
        ("optax:sgd(learning_rate=0.1, momentum=0.9, nesterov=True)",
         "sgd(learning_rate=0.1, momentum=0.9, nesterov=True)"),
        ("optax:lbfgs", "lbfgs()"),
        ("optax:lbfgs(memory_size=5)", "lbfgs(memory_size=5)"),
        ("optax:polyak_sgd(f_min=-1)", "polyak_sgd(f_min=-1)"),
    ],
)  # fmt: skip
def test_experiments_name_optimizers(spec, name):
    chosen = tiny.EXPERIMENT.chosen(("heavy ball", spec))
    assert list(chosen) == ["heavy ball", spec]
    rule = chosen[spec]
    assert isinstance(rule, OptaxRule | OptaxSearch)
    assert rule.name == name


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("optax:adm(learning_rate=0.1)", "did you mean 'adam'"),
        ("optax:scale(step_size=1.0)", "no optimizer of Optax"),
        ("optax:adam(rate=0.1)", "no option of optax.adam called 'rate'"),
        ("optax:adam()", "needs learning_rate"),
        ("optax:adam(0.1)", "KEYWORD=NUMBER"),
        ("optax:adam(learning_rate=0.1, learning_rate=0.2)", "KEYWORD=NUMBER"),
        ("optax:adam(**{'learning_rate': 0.1})", "KEYWORD=NUMBER"),
        ("optax:adam(learning_rate='0.1')", "KEYWORD=NUMBER"),
        ("optax:adam(learning_rate=None)", "KEYWORD=NUMBER"),
        ("optax:adam(learning_rate=1e999)", "KEYWORD=NUMBER"),
        ("optax:adam(learning_rate=1" + 400 * "0" + ")", "KEYWORD=NUMBER"),
        ("optax:adam(learning_rate=2*3)", "KEYWORD=NUMBER"),
        ("optax:adam(learning_rate=--1)", "KEYWORD=NUMBER"),
        ("optax:adam(learning_rate=print(1))", "KEYWORD=NUMBER"),
        ("optax:__import__('os').getcwd()", "KEYWORD=NUMBER"),
        ("optax:contrib.prodigy()", "KEYWORD=NUMBER"),
        ("optax:adam(learning_rate=0.1)(1)", "KEYWORD=NUMBER"),
        ("optax:", "KEYWORD=NUMBER"),
        ("optax:" + 900 * "(", "KEYWORD=NUMBER"),
        ("optax:adam\0", "KEYWORD=NUMBER"),
        ("optax:lbfgs(memory_size=0)", "refuses these numbers"),
    ],
)
def test_anything_else_is_refused_and_nothing_is_run(spec, message, capsys):
    with pytest.raises(ConfigurationError, match=message):
        parse_rule(spec)
    assert capsys.readouterr().out == ""


def test_every_name_is_there_and_goes_downhill():
    """Each becomes a rule; one update on a bowl has no uphill direction."""
    x = jnp.asarray([1.0, -2.0, 0.5])
    needed = {"learning_rate": 0.01}
    for name in OPTIMIZERS:
        try:
            rule = optax_rule(name)
        except ConfigurationError as error:
            missing = str(error).partition("needs ")[2].split(" and ")
            rule = optax_rule(name, **{option: needed[option] for option in missing})
        if isinstance(rule, OptaxRule) and name in ("adam", "sgd", "lion", "polyak_sgd"):
            value, gradient = x @ x, 2 * x
            moved, _ = rule.update(x, value, gradient, rule.remember(x, value, gradient))
            assert moved @ moved < value, name
