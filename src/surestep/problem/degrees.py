"""Degrees: whether a traced program is a polynomial in x, and how its parts depend on theta.

Every operation of the program is followed once. What cannot be proved counts as no polynomial: a
comparison of x, a function with derivatives of its own, an operation that is not known here.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

ABSENT, FREE, AFFINE, ANYHOW = -1, 0, 1, 2
"""How a part depends on theta: there is no such part; not at all; with degree 1; nobody knows."""


@dataclasses.dataclass(frozen=True)
class Degrees:
    """What is known of a polynomial of degree at most 2 in x."""

    powers: tuple[int, int, int]
    """How the parts of degree 0, 1 and 2 in x depend on theta."""
    root: bool = False
    """Whether this is true of the value's square, and not of the value itself."""
    number: float | None = None
    """The value itself, if it is known to be 0, 1 or 2: an exponent."""

    @property
    def moves(self) -> bool:
        """Whether it depends on x."""
        return self.powers[1:] != (ABSENT, ABSENT)

    @property
    def constant(self) -> bool:
        """Whether it depends on nothing."""
        return not self.moves and self.powers[0] <= FREE


Found = Degrees | None
"""The degrees of a value, or None: it may be anything."""

CONSTANT = Degrees((FREE, ABSENT, ABSENT))
X = Degrees((ABSENT, FREE, ABSENT))
THETA = Degrees((AFFINE, ABSENT, ABSENT))
"""What a program begins with: numbers that nothing changes, the point, the instance."""

CALLS = ("jit", "pjit", "closed_call", "core_call", "remat", "remat2", "checkpoint")
"""Operations that run a program, and do nothing else."""
_MOVING = (
    "broadcast_in_dim", "convert_element_type", "copy", "copy_p", "device_put", "expand_dims",
    "name", "reduce_precision", "reshape", "rev", "sharding_constraint", "slice", "split",
    "squeeze", "tile", "transpose", "unstack",
)  # fmt: skip
_SUMS = (
    "add", "add_any", "complex", "concatenate", "conj", "cumsum", "fft", "imag", "pad", "real",
    "reduce_sum", "reduce_window_sum", "stack", "sub",
)  # fmt: skip
_PRODUCTS = ("conv_general_dilated", "dot_general", "mul")
_PLACED = {"gather": (0,), "dynamic_slice": (0,), "dynamic_update_slice": (0, 1)}
_PLACED |= dict.fromkeys(("scatter", "scatter-add", "scatter_add"), (0, 2))
"""Operations that move values to places, and which of their arguments are the values."""


def degrees(function: Callable[[Any, Any], Any], x: Any, theta: Any) -> Found:
    """The degrees of a function of x and theta that returns a single number."""

    def anew(x: Any, theta: Any) -> Any:
        return function(x, theta)

    given: list[Found] = [X] * len(jax.tree.leaves(x))
    given += [THETA] * len(jax.tree.leaves(theta))
    (found,) = _follow(jax.make_jaxpr(anew)(x, theta), given)
    return None if found is None or found.root else found


def _follow(program: Any, given: Sequence[Found]) -> list[Found]:
    """The degrees of what a program returns, from those of what it is given."""
    inner = getattr(program, "jaxpr", program)
    known: dict[Any, Found] = dict(zip(inner.invars, given, strict=True))
    for variable, value in zip(inner.constvars, getattr(program, "consts", ()), strict=True):
        known[variable] = constant(value)

    def read(variable: Any) -> Found:
        return constant(variable.val) if hasattr(variable, "val") else known[variable]

    for operation in inner.eqns:
        arguments = [read(variable) for variable in operation.invars]
        known.update(zip(operation.outvars, results(operation, arguments), strict=True))
    return [read(variable) for variable in inner.outvars]


def results(operation: Any, given: list[Found]) -> list[Found]:
    """The degrees of an operation's results, from those of its arguments."""
    name, made = operation.primitive.name, _apply(operation, given)
    return [
        _in_its_kind(found, variable.aval, name)
        for variable, found in zip(operation.outvars, made, strict=True)
    ]


def constant(value: Any) -> Degrees:
    """The degrees of a number or an array that is known; those of a traced one, if it is traced."""
    if isinstance(value, Tracer):
        return CONSTANT
    kind = getattr(getattr(value, "dtype", None), "kind", "")  # Keys are arrays without a kind.
    if kind in ("f", "i", "u") and np.shape(value) == ():
        number = float(value)
        return dataclasses.replace(CONSTANT, number=number if number in (0, 1, 2) else None)
    return CONSTANT


def _in_its_kind(found: Found, form: Any, name: str) -> Found:
    """Whole numbers and truth values round: only their moves from place to place are affine."""
    kind = getattr(form, "dtype", None)
    if kind is None or jnp.issubdtype(kind, jnp.inexact):
        return found
    if found is not None and kind == jnp.bool_:
        found = dataclasses.replace(found, number=None)
    return found if name in _MOVING and name != "convert_element_type" else _anyhow([found])


def _apply(operation: Any, given: list[Found]) -> list[Found]:
    """What an operation makes of its arguments."""
    name = operation.primitive.name
    if name in CALLS:
        program = operation.params.get("jaxpr", operation.params.get("call_jaxpr"))
        if len(getattr(program, "jaxpr", program).invars) == len(given):
            return _follow(program, given)
    if name == "scan":
        return _scan(operation, given)
    if name == "cond":
        cases = [_follow(branch, given[1:]) for branch in operation.params["branches"]]
        return [_chosen(given[0], list(found)) for found in zip(*cases, strict=True)]
    if name == "optimization_barrier":
        return given
    return [_single(operation, given)] * len(operation.outvars)


def loop_parts(operation: Any) -> tuple[int, int]:
    """Where a scan's carried values begin among its arguments, and where they end.

    Told by the ranks, which its body loses for what it takes or gives row by row: versions of JAX
    differ in how they say it.
    """
    program = operation.params["jaxpr"]
    body = getattr(program, "jaxpr", program)

    def rows(outside: Sequence[Any], inside: Sequence[Any]) -> int:
        pairs = zip(outside, inside, strict=True)
        return sum(out.aval.ndim > within.aval.ndim for out, within in pairs)

    carried = len(body.outvars) - rows(operation.outvars, body.outvars)
    last = len(body.invars) - rows(operation.invars, body.invars)
    return last - carried, last


def _scan(operation: Any, given: list[Found]) -> list[Found]:
    """A loop: degrees grow from turn to turn until they stay."""
    program, (first, last) = operation.params["jaxpr"], loop_parts(operation)
    fixed, carried, rows = given[:first], given[first:last], given[last:]
    while True:
        returned = _follow(program, [*fixed, *carried, *rows])
        now = [_sum(pair) for pair in zip(carried, returned[: last - first], strict=True)]
        if now == carried:
            return [*carried, *(_sum([row]) for row in returned[last - first :])]
        carried = now


def _single(operation: Any, given: list[Found]) -> Found:
    """What an operation that is no program itself makes of its arguments, every result alike."""
    name = operation.primitive.name
    if name in _MOVING and len(given) == 1:
        return given[0]
    if name in _SUMS:
        return _sum(given)
    if name == "neg":
        return _product(given[0], CONSTANT)
    if name == "square" or (name == "mul" and operation.invars[0] is operation.invars[1]):
        return _square(given[0])
    if name in _PRODUCTS:
        return _product(given[0], given[1])
    if name == "div":
        return _product(given[0], _anyhow(given[1:]))
    if name in ("pow", "integer_pow"):
        return _power(_exponent(operation, given), given)
    if name in ("abs", "sqrt"):
        return _root(name, given[0])
    if name == "select_n":
        return _chosen(given[0], given[1:])
    if name in _PLACED:
        values = [given[i] for i in _PLACED[name]]
        places = [found for i, found in enumerate(given) if i not in _PLACED[name]]
        return _chosen(_anyhow(places), [*values, CONSTANT])
    if name in ("triangular_solve", "custom_linear_solve"):
        systems = len(given) - len(operation.outvars)
        return _product(_anyhow(given[:systems]), _sum(given[systems:]))
    return _anyhow(given)


def _anyhow(given: Sequence[Found]) -> Found:
    """An operation of which nothing is known but what it depends on."""
    if any(found is None or found.moves for found in given):
        return None
    free = all(found is not None and found.constant for found in given)
    return CONSTANT if free else Degrees((ANYHOW, ABSENT, ABSENT))


def _sum(given: Sequence[Found]) -> Found:
    """Any sum of values and of constant multiples of them."""
    parts = [found.powers for found in given if found is not None and not found.root]
    if len(parts) < len(given):
        return None
    low, middle, high = (max(column) for column in zip(*parts, strict=True))
    return Degrees((low, middle, high))


def _product(one: Found, other: Found) -> Found:
    """Any sum of products of a value of the one and a value of the other."""
    if one is None or other is None:
        return None
    if one.root or other.root:
        # Times a number it is a root still. Signs do not matter: only its square is ever used.
        rest = other if one.root else one
        return Degrees(one.powers if one.root else other.powers, True) if rest.constant else None
    powers = [ABSENT] * 5
    for i, first in enumerate(one.powers):
        for j, second in enumerate(other.powers):
            if ABSENT not in (first, second):
                powers[i + j] = max(powers[i + j], min(first + second, ANYHOW))
    return None if max(powers[3:]) > ABSENT else Degrees((powers[0], powers[1], powers[2]))


def _square(found: Found) -> Found:
    if found is not None and found.root:
        return Degrees(found.powers)
    return _product(found, found)


def _exponent(operation: Any, given: list[Found]) -> float | None:
    if operation.primitive.name == "integer_pow":
        return operation.params["y"]
    return given[1].number if given[1] is not None else None


def _power(power: float | None, given: list[Found]) -> Found:
    if power == 0:
        return CONSTANT
    if power == 1:
        return given[0]
    return _square(given[0]) if power == 2 else _anyhow(given)


def _root(name: str, found: Found) -> Found:
    """A square root or an absolute value: neither is a polynomial, but its square is."""
    if found is None or found.root or not found.moves:
        return _anyhow([found])
    square = found if name == "sqrt" else _product(found, found)
    return None if square is None else Degrees(square.powers, True)


def _chosen(choice: Found, cases: Sequence[Found]) -> Found:
    """One of several values: a choice by theta is not affine in theta, one by x is nothing."""
    found = _sum(cases)
    if choice is None or choice.moves or found is None:
        return None
    if choice.constant:
        return found
    low, middle, high = (power if power == ABSENT else ANYHOW for power in found.powers)
    return Degrees((low, middle, high))


def depends(function: Callable[[Any], Any], theta: Any) -> bool:
    """Whether any number of what a function returns may depend on its argument."""
    program = jax.make_jaxpr(function)(theta).jaxpr
    moved = {id(variable) for variable in program.invars}
    for operation in program.eqns:
        if any(id(variable) in moved for variable in operation.invars):
            moved.update(id(variable) for variable in operation.outvars)
    return any(id(variable) in moved for variable in program.outvars)
