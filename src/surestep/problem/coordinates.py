"""Coordinates: whether a traced program treats every coordinate of x by itself.

As with degrees, what cannot be proved is not so.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from surestep.problem.degrees import CALLS

FREE, SUM, MIXED = "free", "sum", "mixed"
"""A value without x; a sum of functions of one coordinate each; anything. A whole number means:
every number of the array depends on its own coordinate of that leaf of x, and on no other."""

Found = int | str

_KEEPING_ORDER = ("broadcast_in_dim", "copy", "copy_p", "expand_dims", "reshape", "squeeze")
_BY_ELEMENT = (
    "abs", "acos", "acosh", "add", "add_any", "and", "asin", "asinh", "atan", "atan2", "atanh",
    "cbrt", "ceil", "clamp", "convert_element_type", "cos", "cosh", "digamma", "div", "eq", "erf",
    "erf_inv", "erfc", "exp", "exp2", "expm1", "floor", "ge", "gt", "integer_pow", "is_finite",
    "le", "lgamma", "log", "log1p", "logistic", "lt", "max", "min", "mul", "ne", "neg", "not",
    "or", "pow", "rem", "round", "rsqrt", "select_n", "sign", "sin", "sinh", "sqrt", "square",
    "stop_gradient", "sub", "tan", "tanh", "xor",
)  # fmt: skip
_ADDING = (
    "add", "add_any", "broadcast_in_dim", "concatenate", "convert_element_type", "copy", "copy_p",
    "cumsum", "expand_dims", "neg", "pad", "reduce_sum", "reshape", "rev", "slice", "split",
    "squeeze", "stack", "sub", "tile", "transpose", "unstack",
)  # fmt: skip
"""Operations whose results are sums of multiples of their arguments."""


def acts_by_coordinates(function: Callable[[Any, Any], Any], x: Any, theta: Any) -> bool:
    """Whether every coordinate of a map of x depends on the same coordinate of x alone."""
    shapes = [leaf.shape for leaf in jax.tree.leaves(jax.eval_shape(function, x, theta))]
    if shapes != [leaf.shape for leaf in jax.tree.leaves(x)]:
        return False
    found = _found(function, x, theta, custom=True)
    return all(one in (FREE, place) for place, one in enumerate(found))


def adds_up_by_coordinates(function: Callable[[Any, Any], Any], x: Any, theta: Any) -> bool:
    """Whether a function of x is a sum of functions of one coordinate each.

    Functions that bring derivatives of their own are not trusted.
    """
    (found,) = _found(function, x, theta, custom=False)
    return found != MIXED


def _found(function: Callable[[Any, Any], Any], x: Any, theta: Any, custom: bool) -> list[Found]:
    def anew(x: Any, theta: Any) -> Any:
        return function(x, theta)

    given: list[Found] = list(range(len(jax.tree.leaves(x))))
    given += [FREE] * len(jax.tree.leaves(theta))
    return _follow(jax.make_jaxpr(anew)(x, theta), given, custom)


def _follow(program: Any, given: Sequence[Found], custom: bool) -> list[Found]:
    """What a program returns, from what it is given."""
    inner = getattr(program, "jaxpr", program)
    known: dict[Any, Found] = dict(zip(inner.invars, given, strict=True))
    known |= dict.fromkeys(inner.constvars, FREE)

    def read(variable: Any) -> Found:
        return FREE if hasattr(variable, "val") else known[variable]

    for operation in inner.eqns:
        arguments = [read(variable) for variable in operation.invars]
        known |= zip(operation.outvars, _apply(operation, arguments, custom), strict=True)
    return [read(variable) for variable in inner.outvars]


def _apply(operation: Any, given: list[Found], custom: bool) -> list[Found]:
    """What an operation makes of its arguments."""
    name, results = operation.primitive.name, operation.outvars
    if all(found == FREE for found in given):
        return [FREE] * len(results)
    if name in CALLS or (custom and name in ("custom_jvp_call", "custom_vjp_call")):
        program = operation.params.get("jaxpr", operation.params.get("call_jaxpr"))
        if program is not None and len(getattr(program, "jaxpr", program).invars) == len(given):
            return _follow(program, given, custom)
    return [_single(operation, given)] * len(results)


def _single(operation: Any, given: list[Found]) -> Found:
    name = operation.primitive.name
    moving = {found for found in given if found != FREE}
    if MIXED in moving:
        return MIXED
    if len(moving) == 1 and SUM not in moving and _one_to_one(operation, given):
        return moving.pop()
    linear = name in ("dot_general", "mul") or (name == "div" and given[1] == FREE)
    alone = sum(found != FREE for found in given) == 1
    adding = name in _ADDING and jnp.issubdtype(operation.outvars[0].aval.dtype, jnp.inexact)
    return SUM if adding or (linear and alone) or _squares(operation, given) else MIXED


def _one_to_one(operation: Any, given: list[Found]) -> bool:
    """Whether an operation works number by number, on arrays that stay in their order."""
    name, size = operation.primitive.name, operation.outvars[0].aval.size
    pairs = zip(operation.invars, given, strict=True)
    in_order = all(variable.aval.size == size for variable, found in pairs if found != FREE)
    return in_order and (name in _BY_ELEMENT or name in _KEEPING_ORDER)


def _squares(operation: Any, given: list[Found]) -> bool:
    """Whether an operation adds up products of an array's numbers with themselves."""
    if operation.primitive.name != "dot_general" or given[0] != given[1] or given[0] == SUM:
        return False
    (left, right), batched = operation.params["dimension_numbers"]
    every = tuple(range(len(operation.invars[0].aval.shape)))
    return tuple(left) == tuple(right) == every and not any(batched)
