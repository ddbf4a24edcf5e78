"""A rule as an Optax optimizer, for anyone's loop and for `optax.chain`.

Optax hands an optimizer the gradient at the current parameters; rules ask an oracle. Three ways
lead from one to the other:

- A gradient rule (heavy ball, the paper's learned rules, `Residual`) needs the value beside the
  gradient: `update(grads, state, params, value=value)`.
- Other rules that are content with a loss (L-BFGS, Nesterov, anything inside a safeguard or a
  learned start) take the function itself: `update(grads, state, params, value_fn=loss)`.
- Rules that ask for more (a proximal map, a residual) need a problem and one instance of it:
  `as_optax(rule, problem, theta)`. So can every other rule be run.
"""

from typing import TYPE_CHECKING, Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, PyTree

from surestep.base.errors import ConfigurationError
from surestep.interop.plain import (
    FunctionProblem,
    in_precision,
    initial_shapes,
    require_plain,
    rule_of,
)
from surestep.problem import Evaluations, Oracle, Point, Problem, Theta, as_instances
from surestep.rollout.loop import Progress, advance
from surestep.rules.base import GradientRule, GradientState, Rule, require_fit

if TYPE_CHECKING:
    from surestep.run.learned import Learned

Transformation = optax.GradientTransformationExtraArgs


class Remembered(NamedTuple):
    """What a gradient rule remembers, once it has seen the first gradient."""

    started: Bool[Array, ""]
    memory: PyTree[Any]


class Underway(NamedTuple):
    """A rollout under way, once it has seen the function: state, evaluations, divergence."""

    started: Bool[Array, ""]
    progress: Progress


def as_optax(
    rule: "Rule | Learned", problem: Problem | None = None, theta: Theta | None = None
) -> Transformation:
    """The rule as an Optax optimizer; its updates are added to the parameters, as Optax's are.

    Without a problem, `update` takes `value=` (gradient rules) or `value_fn=` (other rules). With
    a problem and an instance, each update makes one iteration of the rule from its stored state,
    whatever gradient it is given, and leads from the parameters to the point of that iteration.

    A rule that has diverged stays at its last good point if it takes `value_fn=` or a problem. A
    gradient rule goes where its numbers lead, as Optax's optimizers do (`optax.apply_if_finite`).

    **Arguments:**

    - `rule`: a rule, or a `Learned`, whose deployed rule is taken.
    - `problem`: a problem, for rules that ask for more than a loss and its gradient. That of a
      `Learned` is known: `theta` is enough.
    - `theta`: the instance of the problem.

    **Returns:** an `optax.GradientTransformationExtraArgs`.

    **Raises:** `surestep.errors.ConfigurationError` if the rule needs a problem and there is none,
    or does not fit the one that is given.

    **Example:**

    ```python
    import optax

    optimizer = ss.interop.as_optax(ss.rules.HeavyBall(step_size=0.1, momentum=0.5))
    x = jnp.ones(3)
    state = optimizer.init(x)
    for _ in range(10):
        value, gradient = jax.value_and_grad(lambda x: jnp.sum(x**2))(x)
        updates, state = optimizer.update(gradient, state, x, value=value)
        x = optax.apply_updates(x, updates)
    ```
    """
    if problem is None and theta is not None and not isinstance(rule, Rule):
        problem = rule.problem
    solver = rule_of(rule)
    if (problem is None) != (theta is None):
        raise ConfigurationError("a problem comes with theta, its instance, and theta with it")
    if problem is not None:
        require_fit(solver, problem)
        return _on_instance(solver, problem, as_instances(problem, theta))
    if isinstance(solver, GradientRule):
        return _by_gradients(solver)
    require_plain(solver, "Give the problem and an instance: as_optax(rule, problem, theta)")
    return _by_function(solver)


def _by_gradients(rule: GradientRule) -> Transformation:
    def init(params: Point) -> Remembered:
        shapes = initial_shapes(_fitted(rule, params), params)
        return Remembered(jnp.zeros((), bool), _zeros(cast(GradientState, shapes).memory))

    def update(
        updates: Point,
        state: Remembered,
        params: Point | None = None,
        *,
        value: Any = None,
        **_: Any,
    ) -> tuple[Point, Remembered]:
        _require(params, value, "value", "the loss at the parameters")
        x, unravel = ravel_pytree(params)
        gradient = ravel_pytree(updates)[0]
        value = jnp.asarray(value, x.dtype)
        fitted = _fitted(rule, params)
        memory = jax.tree.map(
            lambda old, new: jnp.where(state.started, old, new),
            state.memory,
            fitted.remember(x, value, gradient),
        )
        moved, memory = fitted.update(x, value, gradient, memory)
        return unravel(moved - x), Remembered(jnp.ones((), bool), memory)

    return Transformation(cast(Any, init), cast(Any, update))


def _by_function(rule: Rule) -> Transformation:
    def init(params: Point) -> Underway:
        shapes = initial_shapes(_fitted(rule, params), params)
        state = _zeros(shapes)
        progress = Progress(
            state, jnp.zeros((), state.x.dtype), Evaluations.none(), jnp.zeros((), bool)
        )
        return Underway(jnp.zeros((), bool), progress)

    def update(
        updates: Point,
        state: Underway,
        params: Point | None = None,
        *,
        value_fn: Any = None,
        **_: Any,
    ) -> tuple[Point, Underway]:
        _require(params, value_fn, "value_fn", "the loss as a function of the parameters")
        fitted, problem = _fitted(rule, params), FunctionProblem(value_fn)
        progress = jax.lax.cond(
            state.started,
            lambda: state.progress,
            lambda: _begin(fitted, problem, params, params),
        )
        progress = advance(fitted, problem, params, progress)
        return _move(params, progress), Underway(jnp.ones((), bool), progress)

    return Transformation(cast(Any, init), cast(Any, update))


def _on_instance(rule: Rule, problem: Problem, theta: Theta) -> Transformation:
    def init(params: Point) -> Underway:
        _require_form(problem, theta, params)
        return Underway(jnp.ones((), bool), _begin(rule, problem, theta, params))

    def update(
        updates: Point, state: Underway, params: Point | None = None, **_: Any
    ) -> tuple[Point, Underway]:
        if params is None:
            raise ConfigurationError("a rule needs the parameters: update(grads, state, params)")
        progress = advance(rule, problem, theta, state.progress)
        return _move(params, progress), Underway(state.started, progress)

    return Transformation(cast(Any, init), cast(Any, update))


def _begin(rule: Rule, problem: Problem, theta: Theta, params: Point) -> Progress:
    oracle = Oracle(problem, theta)
    state = rule.init(oracle, ravel_pytree(params)[0])
    return Progress.at(rule, oracle, state)


def _move(params: Point, progress: Progress) -> Point:
    x, unravel = ravel_pytree(params)
    return unravel(progress.state.x - x)


def _zeros(shapes: PyTree[Any]) -> PyTree[Any]:
    return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)


def _fitted(rule: Any, params: Point) -> Any:
    """The rule in the precision of the parameters."""
    return in_precision(rule, ravel_pytree(params)[0].dtype)


def _require(params: Point | None, given: Any, name: str, what: str) -> None:
    if params is None or given is None:
        raise ConfigurationError(
            f"this rule needs the parameters and {what}: "
            f"update(grads, state, params, {name}={name})"
        )


def _require_form(problem: Problem, theta: Theta, params: Point) -> None:
    wanted = jax.eval_shape(problem.start, theta)
    same = jax.tree.structure(wanted) == jax.tree.structure(params)
    shapes = [jnp.shape(leaf) for leaf in jax.tree.leaves(params)]
    if not same or shapes != [leaf.shape for leaf in jax.tree.leaves(wanted)]:
        raise ConfigurationError(
            f"the parameters must have the form of {type(problem).__name__}.start, which is "
            f"{jax.tree.map(lambda leaf: leaf.shape, wanted)}"
        )
    found = ravel_pytree(params)[0].dtype
    if found != jnp.dtype(problem.precision):
        raise ConfigurationError(
            f"{type(problem).__name__} computes in {problem.precision} and the parameters are "
            f"{found}: convert them (inside jax.enable_x64(True) for float64)"
        )
