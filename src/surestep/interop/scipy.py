"""A rule as a method of `scipy.optimize.minimize`, for functions written in NumPy.

The user's functions are called between the rule's steps, outside compiled programs: they may be
anything, and how often they are called is counted call by call.
"""

import contextlib
import dataclasses
import inspect
import warnings
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import PyTree, Scalar
from scipy.optimize import OptimizeResult, OptimizeWarning

from surestep.base.errors import ConfigurationError
from surestep.interop.plain import (
    FunctionProblem,
    in_precision,
    initial_shapes,
    require_plain,
    rule_of,
)
from surestep.problem import Oracle, Vector
from surestep.rules import Checked, Newton
from surestep.rules.base import GradientRule, GradientState, Rule, State

if TYPE_CHECKING:
    from surestep.run.learned import Learned

SOLVED, LIMIT, DIVERGED, STOPPED = 0, 1, 2, 99
"""Statuses of a result; SciPy's own methods have the same number for a callback that stops."""

_MESSAGES = {
    SOLVED: "No entry of the gradient is larger than gtol.",
    LIMIT: "The iterations were used up before the gradient was as small as gtol.",
    DIVERGED: "The value became infinite or not a number; x is the last point before.",
    STOPPED: "`callback` raised `StopIteration`.",
}


def scipy_method(rule: "Rule | Learned") -> "ScipyMethod":
    """The rule as a `method` of `scipy.optimize.minimize`.

    Options of `minimize` are `gtol` (1e-5, or what `tol` says: largest entry of the gradient),
    `maxiter` and `disp`. A `Learned` makes as many iterations as its certificate speaks of unless
    `maxiter` says otherwise, a rule 200 for each unknown. The certificate is about instances of
    the family from the family's start after exactly so many iterations: `options={"gtol": 0}`.

    Learned rules expect values of at least 0. Numbers are float64, as everywhere in SciPy.

    **Arguments:**

    - `rule`: a rule that is content with a loss and its gradient, or a `Learned` of one.

    **Returns:** what `minimize` takes as its `method`.

    **Raises:** `surestep.errors.ConfigurationError` if the rule asks for more. `minimize` raises it
    without `jac`, and for bounds and constraints.

    **Example:**

    ```python
    from scipy.optimize import minimize

    method = ss.interop.scipy_method(ss.rules.GradientDescent(0.1))
    found = minimize(lambda x: np.sum(x**2), np.ones(3), jac=lambda x: 2 * x, method=method)
    print(found.x, found.message)
    ```
    """
    solver = rule_of(rule)
    if isinstance(solver, Checked):
        # Who stops when is minimize's to say: the rule goes without its check.
        solver = solver.rule
    require_plain(solver, "minimize knows a function and its gradient alone")
    parts = jax.tree.leaves(solver, is_leaf=lambda part: isinstance(part, Newton))
    if any(isinstance(part, Newton) for part in parts):
        raise ConfigurationError(
            "Newton needs second derivatives: minimize knows a function and its gradient alone"
        )
    return ScipyMethod(solver, None if isinstance(rule, Rule) else rule.task.horizon)


@dataclasses.dataclass(frozen=True)
class ScipyMethod:
    """A custom method of `scipy.optimize.minimize`; `scipy_method` makes it."""

    rule: Rule
    horizon: int | None = None

    def __call__(
        self,
        fun: Callable[..., Any],
        x0: Any,
        args: tuple[Any, ...] = (),
        *,
        jac: Any = None,
        hess: Any = None,
        hessp: Any = None,
        bounds: Any = None,
        constraints: Any = (),
        callback: Callable[..., Any] | None = None,
        tol: float | None = None,
        gtol: float | None = None,
        maxiter: int | None = None,
        disp: bool = False,
        **unknown: Any,
    ) -> OptimizeResult:
        """What `minimize` calls."""
        _require_unconstrained(bounds, constraints)
        _warn_of_the_rest(hess, hessp, unknown)
        if not callable(jac):
            raise ConfigurationError(
                "a learned rule needs exact gradients: give jac, a function or True if fun "
                "returns the value and the gradient"
            )
        start = np.array(x0, np.float64)
        limit = maxiter if maxiter is not None else (self.horizon or 200 * start.size)
        small = next((number for number in (gtol, tol) if number is not None), 1e-5)
        if limit < 0 or not small >= 0:
            raise ConfigurationError(
                f"maxiter and gtol must not be negative: {limit} and {small} were given"
            )
        host = _Host(fun, jac, args)
        with jax.enable_x64(True):
            result = _minimise(self.rule, host, start, small, limit, _wrapped(callback))
        if disp:
            print(result)
        return result


def _minimise(
    rule: Rule, host: "_Host", start: np.ndarray, gtol: float, limit: int, callback: Any
) -> OptimizeResult:
    rule = in_precision(rule, np.float64)
    initial_shapes(rule, jnp.asarray(start))
    oracle = _HostOracle(host, jnp.asarray(start))
    # Rules with loops of their own (line searches) call the functions inside them, which only
    # works while these loops are Python's. Gradient rules do not, and are compiled.
    compiled = isinstance(rule, GradientRule)
    rule = _Compiled(rule) if compiled else rule
    with contextlib.nullcontext() if compiled else jax.disable_jit():
        state = rule.init(oracle, oracle.start)
        value = float(rule.loss(oracle, state))
        iterations, status = 0, None if np.isfinite(value) else DIVERGED
        while status is None:
            if gtol > 0 and np.max(np.abs(_gradient(rule, state, host)), initial=0.0) <= gtol:
                status = SOLVED
            elif iterations == limit:
                status = LIMIT
            else:
                oracle = oracle.fresh()
                moved = rule.step(oracle, cast(Any, state))
                there = float(rule.loss(oracle, moved))
                if not np.isfinite(there):
                    status = DIVERGED
                    continue
                state, value, iterations = moved, there, iterations + 1
                status = callback(_seen(rule, state, value))
    return OptimizeResult(
        **_seen(rule, state, value),
        jac=_gradient(rule, state, host),
        nit=iterations,
        nfev=host.values,
        njev=host.gradients,
        status=status,
        success=status == SOLVED,
        message=_MESSAGES[status],
    )


def _seen(rule: Rule, state: State, value: float) -> OptimizeResult:
    return OptimizeResult(x=np.array(rule.point(state)), fun=value)


def _gradient(rule: Rule, state: State, host: "_Host") -> np.ndarray:
    """The gradient at the current point; rules that did not ask for it pay for it here."""
    if isinstance(state, GradientState):
        return np.array(state.gradient)
    return host.gradient(np.asarray(rule.point(state)))


class _Compiled(GradientRule):
    """A gradient rule whose update is one compiled program, for all functions and calls."""

    rule: GradientRule

    def remember(self, x: Vector, value: Scalar, gradient: Vector) -> PyTree[Any]:
        return self.rule.remember(x, value, gradient)

    def update(
        self, x: Vector, value: Scalar, gradient: Vector, memory: Any
    ) -> tuple[Vector, PyTree[Any]]:
        return _update(self.rule, x, value, gradient, memory)


@eqx.filter_jit
def _update(rule: GradientRule, x: Vector, value: Scalar, gradient: Vector, memory: Any) -> Any:
    return rule.update(x, value, gradient, memory)


class _Host:
    """The user's functions: they are called as outside, counted, and not asked twice in a row."""

    def __init__(self, fun: Any, jac: Any, args: tuple[Any, ...]) -> None:
        self._fun, self._jac, self._args = fun, jac, args
        self.values = self.gradients = 0
        self._value: tuple[bytes, float] | None = None
        self._gradient: tuple[bytes, np.ndarray] | None = None
        settings: Any = jax.config
        self._settings = settings.jax_enable_x64, settings.jax_disable_jit

    @contextlib.contextmanager
    def _outside(self) -> Iterator[None]:
        """JAX as the user has set it up, for functions that use it."""
        wide, interpreted = self._settings
        with jax.enable_x64(wide), jax.disable_jit(interpreted):
            yield

    def value(self, x: np.ndarray) -> float:
        key = x.tobytes()
        if self._value is None or self._value[0] != key:
            self.values += 1
            with self._outside():
                found = np.asarray(self._fun(np.array(x), *self._args), np.float64)
            if found.size != 1:
                raise ConfigurationError(f"fun must return one number, not {found.shape}")
            self._value = key, float(found.item())
        return self._value[1]

    def gradient(self, x: np.ndarray) -> np.ndarray:
        key = x.tobytes()
        if self._gradient is None or self._gradient[0] != key:
            self.gradients += 1
            with self._outside():
                found = np.array(self._jac(np.array(x), *self._args), np.float64)
            if found.shape != x.shape:
                raise ConfigurationError(
                    f"jac must return an array of shape {x.shape}, not {found.shape}"
                )
            self._gradient = key, found
        return self._gradient[1].copy()

    def both(self, x: Vector) -> tuple[Scalar, Vector]:
        point = np.asarray(x)
        return jnp.asarray(self.value(point)), jnp.asarray(self.gradient(point))


class _HostOracle(Oracle):
    """Answers by calling the user's functions."""

    def __init__(self, host: _Host, start: Vector) -> None:
        self.host = host
        super().__init__(FunctionProblem(_differentiable(host)), start)

    def fresh(self) -> "_HostOracle":
        """Another one with the same functions."""
        return _HostOracle(self.host, self.theta)

    def smooth_gradient(self, x: Vector) -> Vector:
        """The gradient, without the value."""
        self.spend(gradients=1)
        return jnp.asarray(self.host.gradient(np.asarray(x)))

    def _evaluate(self, x: Vector, part: Any) -> tuple[Scalar, Vector]:
        return self.host.both(x)


def _differentiable(host: _Host) -> Callable[[Vector], Scalar]:
    """The user's function as one that JAX differentiates, by the user's gradient."""

    @jax.custom_vjp
    def loss(x: Vector) -> Scalar:
        if isinstance(x, Tracer):  # A rule that only wants to know shapes.
            return jax.pure_callback(host.value, jax.ShapeDtypeStruct((), x.dtype), x)
        return jnp.asarray(host.value(np.asarray(x)))

    def forward(x: Vector) -> tuple[Scalar, Vector]:
        return host.both(x)

    def backward(gradient: Vector, cotangent: Scalar) -> tuple[Vector]:
        return (cotangent * gradient,)

    loss.defvjp(forward, backward)
    return loss


def _wrapped(callback: Callable[..., Any] | None) -> Callable[[OptimizeResult], int | None]:
    """The callback in either form that SciPy allows; it returns a status if it wants to stop."""
    if callback is None:
        return lambda _: None
    whole = set(inspect.signature(callback).parameters) == {"intermediate_result"}

    def call(seen: OptimizeResult) -> int | None:
        try:
            callback(intermediate_result=seen) if whole else callback(np.copy(seen.x))
        except StopIteration:
            return STOPPED
        return None

    return call


def _require_unconstrained(bounds: Any, constraints: Any) -> None:
    for name, given in (("bounds", bounds is not None), ("constraints", np.any(constraints))):
        if given:
            raise ConfigurationError(f"a rule cannot handle {name}: it would ignore them")


def _warn_of_the_rest(hess: Any, hessp: Any, unknown: dict[str, Any]) -> None:
    if hess is not None or hessp is not None:
        warnings.warn(
            "a rule does not use Hessian information (hess, hessp)", RuntimeWarning, stacklevel=4
        )
    if unknown:
        names = ", ".join(sorted(unknown))
        warnings.warn(f"Unknown solver options: {names}", OptimizeWarning, stacklevel=4)
