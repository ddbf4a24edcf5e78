"""Rules inside scipy.optimize.minimize: the points of rollouts, and SciPy's manners."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import OptimizeResult, OptimizeWarning, minimize

from support import tiny
from support.catalogue import MATRIX, PROBLEMS
from support.iterates import iterates
from support.types import unchecked
from surestep.base.errors import ConfigurationError
from surestep.base.keys import named_key
from surestep.interop.scipy import scipy_method
from surestep.rules import (
    ADMM,
    ConjugateGradients,
    Fista,
    GradientDescent,
    HeavyBall,
    Residual,
    Safeguarded,
)
from surestep.rules.base import hyper_of, with_hyper
from surestep.run.learned import Learned

ENTRY = PROBLEMS["regression"]
L = float(ENTRY.smoothness)
HEAVY = HeavyBall.for_constants(L, float(ENTRY.convexity))
TARGET = np.linspace(-1, 2, 12)
START = np.zeros(6)


class Counted:
    """Least squares in NumPy, with the points at which each function was called."""

    def __init__(self):
        self.values, self.gradients = [], []

    def fun(self, x, target=TARGET):
        self.values.append(x.tobytes())
        return 0.5 * np.sum((MATRIX @ x - target) ** 2)

    def jac(self, x, target=TARGET):
        self.gradients.append(x.tobytes())
        return MATRIX.T @ (MATRIX @ x - target)


def run(rule, counted=None, **arguments):
    counted = counted or Counted()
    return minimize(counted.fun, START, jac=counted.jac, method=scipy_method(rule), **arguments)


def learned():
    hyper = np.asarray(hyper_of(tiny.RULE))
    return with_hyper(tiny.RULE, jnp.asarray(hyper + 0.2 * np.cos(np.arange(hyper.size))))


RULES = {
    "the paper's rule": learned,
    "heavy ball": lambda: HEAVY,
    "safeguarded": lambda: Safeguarded(learned(), GradientDescent(1 / L), 1.0, 2),
    "FISTA": lambda: Fista(1 / L),
}


@pytest.mark.parametrize("name", RULES)
def test_the_points_of_a_rollout(name):
    rule, counted, points = RULES[name](), Counted(), [START]
    options = {"maxiter": 8, "gtol": 0}
    result = run(rule, counted, callback=points.append, options=options)
    expected, evaluations = iterates(rule, ENTRY.problem, jnp.asarray(TARGET), 8)
    scale = np.abs(expected).max()
    np.testing.assert_allclose(points, expected, rtol=0, atol=1e-15 * scale)
    assert scale > 1e-3

    np.testing.assert_array_equal(result.x, points[-1])
    assert result.fun == Counted().fun(result.x)
    np.testing.assert_array_equal(result.jac, Counted().jac(result.x))
    assert (result.nit, result.status, result.success) == (8, 1, False)
    assert (result.nfev, result.njev) == (len(counted.values), len(counted.gradients))
    # What the oracle counts is what was called; rules without a gradient at the end pay for it.
    at_end = 1 if name == "FISTA" else 0
    assert result.njev == evaluations.gradients + at_end
    assert result.nfev == 9


def test_it_stops_where_the_gradient_is_small():
    norms = []
    result = run(HEAVY, callback=lambda x: norms.append(np.abs(Counted().jac(x)).max()), tol=1e-4)
    assert result.success
    assert result.status == 0
    assert norms[-1] <= 1e-4 < min(norms[:-1])
    assert result.nit == len(norms)
    assert "gtol" in result.message
    reference = np.linalg.lstsq(MATRIX, TARGET)[0]
    np.testing.assert_allclose(run(HEAVY).x, reference, atol=1e-5)
    # The option is stronger than tol, as in SciPy.
    assert run(HEAVY, tol=1e-8, options={"gtol": 1e-4}).nit == result.nit
    assert minimize(
        Counted().fun, reference, jac=Counted().jac, method=scipy_method(HEAVY)
    ).nit == 0  # fmt: skip


def test_both_kinds_of_callback_and_a_stop():
    seen = []

    def whole(*, intermediate_result: OptimizeResult):
        seen.append((intermediate_result.fun, Counted().fun(intermediate_result.x)))
        if len(seen) == 3:
            raise StopIteration

    result = run(HEAVY, callback=whole)
    assert all(value == expected for value, expected in seen)
    assert (result.nit, result.status, result.success) == (3, 99, False)
    assert "StopIteration" in result.message

    def spoils(x):
        x[:] = np.nan

    assert run(HEAVY, callback=spoils).success


def test_the_functions_may_spoil_their_argument_and_take_more():
    def fun(x, target):
        value, gradient = Counted().fun(x, target), Counted().jac(x, target)
        x[:] = np.nan
        return value, gradient

    other = TARGET**2
    result = minimize(fun, START, args=(other,), jac=True, method=scipy_method(HEAVY))
    np.testing.assert_allclose(result.x, np.linalg.lstsq(MATRIX, other)[0], atol=1e-5)


def test_functions_run_in_the_users_jax():
    """Float32 for users who have not asked for float64, compiled, and no deadlock."""
    with jax.enable_x64(False):
        kinds = []

        @jax.jit
        def value_and_gradient(x):
            kinds.append(x.dtype)
            return jax.value_and_grad(lambda x: jnp.sum((x - 1.0) ** 2))(x)

        rule = Safeguarded(HeavyBall(0.1, 0.5), GradientDescent(0.1))
        options = {"maxiter": 4}
        result = minimize(
            value_and_gradient, START, jac=True, method=scipy_method(rule), options=options
        )
    assert kinds == [jnp.float32], "traced once"
    assert result.x.dtype == np.float64
    assert result.fun < 6


def test_a_rule_that_diverges_returns_its_last_good_point():
    points = []

    def fun(x):
        return np.sum(x**2) if np.abs(x).max() < 100 else np.inf

    result = minimize(
        fun,
        START + 1,
        jac=lambda x: 2 * x,
        method=scipy_method(GradientDescent(5.0)),
        callback=points.append,
    )
    assert (result.status, result.success, result.nit) == (2, False, 2)
    np.testing.assert_array_equal(points, [START - 9, START + 81])
    np.testing.assert_array_equal(result.x, START + 81)
    assert result.fun == 6 * 81**2
    broken = minimize(
        lambda x: np.nan, START, jac=lambda x: x, method=scipy_method(GradientDescent(0.1))
    )
    assert (broken.status, broken.nit) == (2, 0)


@unchecked()
def test_something_learned_makes_the_iterations_of_its_certificate():
    nothing: list = [None] * 4
    method = scipy_method(Learned(tiny.TASK, HeavyBall(1e-9, 0.0), *nothing))
    result = minimize(Counted().fun, START, jac=Counted().jac, method=method)
    assert result.nit == tiny.TASK.horizon


@pytest.mark.parametrize("rule", [ConjugateGradients(), ADMM(1.0)])
def test_rules_that_need_more_than_a_function_are_refused(rule):
    with pytest.raises(ConfigurationError, match=f"{type(rule).__name__} needs more than a loss"):
        scipy_method(rule)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"bounds": [(0, 1)] * 6}, "cannot handle bounds"),
        ({"constraints": {"type": "eq", "fun": lambda x: x[0]}}, "cannot handle constraints"),
        ({"jac": None}, "give jac"),
        ({"jac": lambda x: np.zeros(5)}, r"shape \(6,\), not \(5,\)"),
        ({"fun": lambda x: x}, "one number"),
        ({"options": {"maxiter": -1}}, "must not be negative"),
        ({"tol": float("nan")}, "must not be negative"),
    ],
)
def test_what_cannot_work_is_refused(arguments, message):
    given = {"fun": Counted().fun, "x0": START, "jac": Counted().jac} | arguments
    with pytest.raises(ConfigurationError, match=message):
        minimize(**given, method=scipy_method(HEAVY))


def test_a_rule_for_another_dimension_is_refused():
    rule = Residual.around(HEAVY, 4, named_key(0, "residual"), width=4)
    with pytest.raises(ConfigurationError, match="does not fit a variable of 6 numbers"):
        run(rule)


def test_what_is_ignored_is_said():
    with pytest.warns(RuntimeWarning, match="Hessian"):
        run(HEAVY, hess=lambda x: MATRIX.T @ MATRIX)
    with pytest.warns(OptimizeWarning, match="Unknown solver options: gtoll"):
        run(HEAVY, options={"gtoll": 1.0})


def test_disp_prints_the_result(capsys):
    run(HEAVY, options={"disp": True, "maxiter": 1})
    assert "The iterations were used up" in capsys.readouterr().out
