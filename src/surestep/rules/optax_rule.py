"""Any Optax optimizer as a rule: a baseline by name, a teacher, a fallback.

Optimizers that are content with value and gradient become gradient rules (`OptaxRule`), one
gradient an iteration. Those with a line search at their end (`optax.lbfgs`) become
`OptaxSearch`, which counts what the search evaluates. `optax_rule` chooses.
"""

import ast
import functools
import hashlib
import inspect
import re
import sys
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Scalar

from surestep.base.errors import ConfigurationError, unknown
from surestep.problem import Oracle, Vector
from surestep.rules.base import GradientRule, GradientState, Rule

PREFIX = "optax:"
"""What a baseline's name begins with if it names an optimizer of Optax."""

OPTIMIZERS = (
    "adabelief", "adadelta", "adafactor", "adagrad", "adam", "adamax", "adamaxw", "adamw", "adan",
    "amsgrad", "fromage", "lamb", "lars", "lbfgs", "lion", "nadam", "nadamw",
    "novograd", "optimistic_adam_v2", "optimistic_gradient_descent", "polyak_sgd", "radam",
    "rmsprop", "rprop", "sgd", "sign_sgd", "signum", "sm3", "yogi",
)  # fmt: skip
"""The optimizers that can be named; others are given as objects: `OptaxRule(optimizer)`."""

Number = int | float | bool
Optimizer = optax.GradientTransformation | optax.GradientTransformationExtraArgs
_LARGEST = sys.float_info.max
_SEARCHES = (optax.ScaleByZoomLinesearchState, optax.ScaleByBacktrackingLinesearchState)


class OptaxRule(GradientRule):
    """An Optax optimizer that needs the value and the gradient at the current point, no more."""

    optimizer: Optimizer = eqx.field(static=True)
    name: str = eqx.field(static=True)

    def __init__(self, optimizer: Optimizer, name: str = "") -> None:
        """The optimizer, and what to call it; without a name, a hash of what it computes."""
        if _searches(optimizer):
            raise ConfigurationError(
                "this optimizer evaluates the loss at points of its own (value_fn): "
                "use optax_rule(optimizer), which counts them"
            )
        self.optimizer = optimizer
        self.name = name or _digest(optimizer)

    def remember(self, x: Vector, value: Scalar, gradient: Vector) -> Any:
        """Optax's state at the start."""
        return self.optimizer.init(x)

    def update(self, x: Vector, value: Scalar, gradient: Vector, memory: Any) -> tuple[Vector, Any]:
        """Optax's update, applied."""
        change, memory = _updated(self.optimizer, x, value, gradient, memory)
        return optax.apply_updates(x, change), memory  # pyright: ignore[reportReturnType]


class OptaxSearch(Rule):
    """An Optax optimizer that ends with a line search; what the search evaluates is counted."""

    optimizer: Optimizer = eqx.field(static=True)
    name: str = eqx.field(static=True)

    def __init__(self, optimizer: Optimizer, name: str = "") -> None:
        """The optimizer, and what to call it; without a name, a hash of what it computes."""
        if not _searches(optimizer):
            raise ConfigurationError("this optimizer has no line search: OptaxRule(optimizer)")
        _require_countable(optimizer)
        self.optimizer = optimizer
        self.name = name or _digest(optimizer)

    def init(self, oracle: Oracle, x: Vector) -> GradientState:
        """Optax's state at the start."""
        value, gradient = oracle.value_and_gradient(x)
        return GradientState(x, value, gradient, self.optimizer.init(x))

    def step(self, oracle: Oracle, state: GradientState) -> GradientState:
        """Optax's update, applied; the search has evaluated its end already."""
        change, memory = _updated(
            self.optimizer,
            state.x,
            state.value,
            state.gradient,
            state.memory,
            value_fn=oracle.unmetered_value,
        )
        x: Any = optax.apply_updates(state.x, change)
        search = _search_state(memory)
        evaluated = search.info.num_linesearch_steps
        if search.grad is None:
            # This search looks at values alone.
            oracle.spend(values=evaluated)
            return GradientState(x, *oracle.value_and_gradient(x), memory)
        if isinstance(search, optax.ScaleByBacktrackingLinesearchState):
            # Values, and a gradient with the last of them. A search that found nothing stays
            # where it was, and what it stored belongs to a point that was not taken.
            oracle.spend(values=evaluated - 1, gradients=1)
            moved = jnp.asarray(search.learning_rate) > 0
            value = jnp.where(moved, search.value, state.value)
            gradient = jnp.where(moved, jnp.asarray(search.grad), state.gradient)
            return GradientState(x, value, gradient, memory)
        oracle.spend(gradients=evaluated)
        return GradientState(x, search.value, search.grad, memory)


def optax_rule(optimizer: str | Optimizer, **options: Number) -> OptaxRule | OptaxSearch:
    """An Optax optimizer as a rule: a baseline, a teacher or a fallback.

    **Arguments:**

    - `optimizer`: the name of one of Optax's optimizers, or an optimizer that was made already. One
      with a line search becomes a rule that counts what the search evaluates.
    - `options`: with a name, the optimizer's numbers. Equal names and numbers give equal rules.

    **Returns:** a rule.

    **Raises:** `surestep.errors.ConfigurationError` if there is no such optimizer or option, if an
    optimizer that was made already comes with options, or if nobody knows how often it evaluates
    the loss.

    ```python
    import surestep as ss

    rule = ss.interop.optax_rule("adam", learning_rate=0.01)
    ```
    """
    if isinstance(optimizer, str):
        return _named(optimizer, tuple(sorted(options.items())))
    if options:
        raise ConfigurationError("an optimizer that was made already takes no options")
    return OptaxSearch(optimizer) if _searches(optimizer) else OptaxRule(optimizer)


def parse_rule(spec: str) -> OptaxRule | OptaxSearch:
    """The rule that a text names: `optax:adam(learning_rate=0.01)`, `optax:lbfgs()`.

    The text is read, not run: a name of `OPTIMIZERS` and keywords with plain numbers, True or
    False. Everything else is refused.
    """
    wrong = ConfigurationError(
        f"{spec!r} does not name an Optax optimizer: write {PREFIX}NAME(KEYWORD=NUMBER, ...)"
    )
    if not spec.startswith(PREFIX) or len(spec) > 1000:
        raise wrong
    try:
        call = ast.parse(spec.removeprefix(PREFIX), mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        raise wrong from error
    if isinstance(call, ast.Name):
        return optax_rule(call.id)
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or call.args:
        raise wrong
    options: dict[str, Number] = {}
    for keyword in call.keywords:
        number = _number(keyword.value)
        if keyword.arg is None or keyword.arg in options or number is None:
            raise wrong
        options[keyword.arg] = number
    return optax_rule(call.func.id, **options)


def _number(node: ast.expr) -> Number | None:
    """The number that was written down; None for anything else."""
    negative = False
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        negative, node = True, node.operand
    value = node.value if isinstance(node, ast.Constant) else None
    if isinstance(value, bool):
        return None if negative else value
    if not isinstance(value, int | float) or abs(value) > _LARGEST:
        return None
    return -value if negative else value


@functools.cache
def _named(name: str, options: tuple[tuple[str, Number], ...]) -> OptaxRule | OptaxSearch:
    if name not in OPTIMIZERS:
        raise ConfigurationError(unknown("optimizer of Optax", name, OPTIMIZERS))
    make = getattr(optax, name)
    parameters = inspect.signature(make).parameters
    for option, number in options:
        if option not in parameters:
            raise ConfigurationError(unknown(f"option of optax.{name}", option, tuple(parameters)))
        if not isinstance(number, bool | int | float) or not abs(number) <= _LARGEST:
            raise ConfigurationError(f"options of optimizers are finite numbers, not {number!r}")
    given = {option for option, _ in options}
    missing = [
        p.name
        for p in parameters.values()
        if p.default is p.empty and p.kind is not p.VAR_KEYWORD and p.name not in given
    ]
    if missing:
        raise ConfigurationError(f"optax.{name} needs {' and '.join(missing)}")
    try:
        optimizer = make(**dict(options))
        searches = _searches(optimizer)
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"optax.{name} refuses these numbers: {error}") from error
    words = f"{name}({', '.join(f'{option}={number!r}' for option, number in options)})"
    return OptaxSearch(optimizer, words) if searches else OptaxRule(optimizer, words)


def _updated(
    optimizer: Optimizer, x: Vector, value: Scalar, gradient: Vector, memory: Any, **more: Any
) -> tuple[Any, Any]:
    able = optax.with_extra_args_support(optimizer)
    return able.update(gradient, memory, x, value=value, grad=gradient, **more)


def _trial(optimizer: Optimizer, x: Vector, **more: Any) -> tuple[Any, Any]:
    return _updated(optimizer, x, jnp.vdot(x, x), 2 * x, optimizer.init(x), **more)


def _trial_shapes(optimizer: Optimizer, **more: Any) -> tuple[Any, Any]:
    with jax.enable_x64(True):
        x = jax.ShapeDtypeStruct((3,), jnp.float64)
        return jax.eval_shape(functools.partial(_trial, optimizer, **more), x)


@functools.lru_cache(maxsize=64)
def _searches(optimizer: Optimizer) -> bool:
    """Whether the optimizer asks for the loss as a function."""
    try:
        _trial_shapes(optimizer)
    except TypeError as error:
        if "value_fn" not in str(error):
            raise
        return True
    return False


def _require_countable(optimizer: Optimizer) -> None:
    """Refuse optimizers of which nobody knows how often they evaluate the loss."""
    _, memory = _trial_shapes(optimizer, value_fn=lambda x: jnp.vdot(x, x))
    last = memory[-1] if isinstance(memory, tuple) and not hasattr(memory, "_fields") else memory
    if not isinstance(last, _SEARCHES) or len(_search_states(memory)) != 1:
        raise ConfigurationError(
            "an optimizer that evaluates the loss by itself is counted if one of Optax's line "
            "searches is the last part of it, and only there: this one cannot be a rule"
        )


def _search_state(memory: Any) -> Any:
    return _search_states(memory)[0]


def _search_states(memory: Any) -> list[Any]:
    def found(node: Any) -> bool:
        return isinstance(node, _SEARCHES)

    return [node for node in jax.tree.leaves(memory, is_leaf=found) if found(node)]


def _digest(optimizer: Optimizer) -> str:
    """A hash of the operations and numbers that an update takes.

    Run folders and certificates tell rules apart by what their fields say, and an optimizer's
    numbers are hidden in functions.
    """
    more = {"value_fn": lambda point: jnp.vdot(point, point)} if _searches(optimizer) else {}
    with jax.enable_x64(True):
        traced = jax.make_jaxpr(functools.partial(_trial, optimizer, **more))(jnp.ones(3))
    words = re.sub(r"0x[0-9a-f]+", "", f"{traced} {traced.consts}")
    return hashlib.sha256(words.encode()).hexdigest()[:16]
