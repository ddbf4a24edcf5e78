"""Sums of squares: whether a traced loss is one, and of which numbers.

The loss is carried out operation by operation. A value remembers of which numbers it is a sum of
squares, up to something that x does not change, as long as every operation keeps that true.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float

from surestep.problem.base import Point, Problem, Theta
from surestep.problem.degrees import CALLS
from surestep.problem.kinds import CompositeProblem

_KEEPING = ("copy", "copy_p", "expand_dims", "reduce_sum", "reshape", "squeeze", "transpose")


@dataclasses.dataclass(frozen=True)
class _Value:
    """A value of the program."""

    array: Any
    moves: bool
    """Whether it depends on x."""
    squares: tuple[Any, ...] | None = None
    """The sum of its elements is that of the squares of these, and something without x."""
    root: tuple[Any, ...] | None = None
    """The same of its own square; it is a single number then."""


def squares_of(problem: Problem, x: Point, theta: Theta) -> Float[Array, " m"] | None:
    """The numbers whose squares add up to the loss at `x`, up to a constant of the instance.

    None if the loss is not seen to be such a sum, or has a part that is not smooth. It can be
    differentiated, and traced: nothing but the loss's own operations is carried out.
    """
    if isinstance(problem, CompositeProblem):
        return None
    program = jax.make_jaxpr(problem.loss)(x, theta)
    given = [_Value(leaf, True) for leaf in jax.tree.leaves(x)]
    given += [_Value(leaf, False) for leaf in jax.tree.leaves(theta)]
    (loss,) = _follow(program, given)
    if not loss.moves or not loss.squares:
        return None
    return jnp.concatenate([jnp.ravel(piece) for piece in loss.squares])


def is_sum_of_squares(problem: Problem, theta: Theta) -> bool:
    """Whether `squares_of` finds any; nothing is computed."""
    found = jax.eval_shape(lambda given: squares_of(problem, problem.start(given), given), theta)
    return found is not None


def _follow(program: Any, given: Sequence[_Value]) -> list[_Value]:
    inner = getattr(program, "jaxpr", program)
    known: dict[Any, _Value] = dict(zip(inner.invars, given, strict=True))
    for variable, value in zip(inner.constvars, getattr(program, "consts", ()), strict=True):
        known[variable] = _Value(value, False)

    def read(variable: Any) -> _Value:
        return _Value(variable.val, False) if hasattr(variable, "val") else known[variable]

    for operation in inner.eqns:
        arguments = [read(variable) for variable in operation.invars]
        known |= zip(operation.outvars, _apply(operation, arguments), strict=True)
    return [read(variable) for variable in inner.outvars]


def _apply(operation: Any, given: list[_Value]) -> list[_Value]:
    name = operation.primitive.name
    if name in CALLS:
        program = operation.params.get("jaxpr", operation.params.get("call_jaxpr"))
        if len(getattr(program, "jaxpr", program).invars) == len(given):
            return _follow(program, given)
    parameters = operation.primitive.get_bind_params(operation.params)
    results = operation.primitive.bind(*(one.array for one in given), **parameters)
    moves = any(one.moves for one in given)
    if operation.primitive.multiple_results:
        return [_Value(result, moves) for result in results]
    if not moves:
        return [_Value(results, False)]
    squares = _squares(name, operation.params, given, jnp.size(results))
    root = given[0].squares if name == "sqrt" and jnp.size(results) == 1 else None
    return [_Value(results, True, squares, root)]


def _squares(
    name: str, parameters: dict[str, Any], given: list[_Value], size: int
) -> tuple[Any, ...] | None:
    """Of which numbers a result is the sum of squares."""
    first = given[0]
    squared = name == "square" or (name == "integer_pow" and parameters["y"] == 2)
    twice = name in ("mul", "dot_general") and first.array is given[1].array
    if name == "dot_general" and twice:
        twice = size == 1 and not parameters["dimension_numbers"][1][0]
    if squared or twice:
        return first.root or (first.array,)
    if name == "convert_element_type":
        return first.squares if jnp.issubdtype(parameters["new_dtype"], jnp.inexact) else None
    if name == "broadcast_in_dim":
        return first.squares if size == jnp.size(first.array) else None
    if name in _KEEPING:
        return first.squares
    if name in ("add", "add_any", "sub", "mul", "div"):
        return _combined(name, first, given[1], size)
    return None


def _combined(name: str, left: _Value, right: _Value, size: int) -> tuple[Any, ...] | None:
    if name == "mul" and not left.moves:
        left, right = right, left
    if name in ("mul", "div"):
        factor = None if right.moves else _number(right.array)
        if left.squares is None or factor is None or not factor > 0:
            return None
        scale = math.sqrt(factor if name == "mul" else 1 / factor)
        return tuple(scale * piece for piece in left.squares)
    sides = (left, right)
    if any(jnp.size(side.array) != size for side in sides):
        return None
    if name == "sub" and right.moves:
        return None
    if any(side.moves and side.squares is None for side in sides):
        return None
    return tuple(piece for side in sides if side.moves for piece in side.squares or ())


def _number(value: Any) -> float | None:
    """The number that a value is, if it is one and known while the program is traced."""
    if isinstance(value, Tracer) or np.size(value) == 0:
        return None
    array = np.asarray(value)
    if array.dtype.kind not in "fiu" or np.any(array != array.flat[0]):
        return None
    return float(array.flat[0])
