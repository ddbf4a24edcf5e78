"""Rules as data: what they are made of, in plain values, and back.

A rule is written as `{"class": name, "fields": {...}}`, nested; arrays are references into a file.
Reading builds only classes and functions of the closed tables below, so a file from a stranger can
name nothing that runs its own code. A rule with a class of the user's own is written as the list of
its leaves, and read into a template that the user provides.
"""

import dataclasses
import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from surestep import rules
from surestep.base.errors import ConfigurationError, SolverFileError
from surestep.rules import blocks
from surestep.rules.base import Rule

_BLOCKS = (blocks.LinearChain, blocks.Perceptron, blocks.ConvolutionChain)
_RULES = [getattr(rules, name) for name in rules.__all__]
CLASSES: dict[str, type[eqx.Module]] = {
    kind.__name__: kind for kind in (*_RULES, *_BLOCKS) if issubclass(kind, eqx.Module)
}
"""Rules and their building blocks: made by their constructors, which check what they are given."""

PIECES: dict[str, type[eqx.Module]] = {
    f"equinox.nn.{kind.__name__}": kind
    for kind in (eqx.nn.Linear, eqx.nn.MLP, eqx.nn.Identity, eqx.nn.Conv1d, eqx.nn.Conv2d)
}
"""Pieces of Equinox: their constructors draw weights, so their fields are set instead."""

_ACTIVATIONS = ("relu", "elu", "gelu", "leaky_relu", "sigmoid", "silu", "softplus", "tanh")
FUNCTIONS: dict[str, Callable[..., Any]] = {
    f"jax.nn.{name}": getattr(jax.nn, name) for name in _ACTIVATIONS
} | {"equinox.nn.MLP: none": inspect.signature(eqx.nn.MLP).parameters["final_activation"].default}
"""Activations; the last one is what a perceptron of Equinox has for none."""

_NUMBERS = ("float64", "float32", "int64", "int32", "bool")
_DEEPEST = 64


class UnknownNameError(Exception):
    """A class or a function that is not in the closed tables."""


@dataclasses.dataclass
class Packed:
    """A rule as plain values, and the arrays that these refer to."""

    data: dict[str, Any]
    arrays: dict[str, np.ndarray]


def pack(rule: Rule) -> Packed:
    """Write a rule as data; by its leaves, if a class or function in it is not in the tables."""
    packed = Packed({}, {})
    try:
        packed.data = {"rule": _encode(rule, packed.arrays)}
    except UnknownNameError as unknown:
        packed.arrays.clear()
        packed.data = {
            "own": type(rule).__name__,
            "unknown": str(unknown),
            "leaves": [_leaf(leaf, packed.arrays) for leaf in jax.tree.leaves(rule)],
        }
    return packed


def unpack(
    data: Any, arrays: Mapping[str, np.ndarray], where: str, template: Rule | None = None
) -> Rule:
    """The rule that `pack` was given; call it in the working precision of the rule's problem."""
    if not isinstance(data, dict) or not ({"rule", "leaves"} & set(data)):
        raise SolverFileError(f"{where} holds no rule")
    if "leaves" in data:
        return _fill(data, arrays, where, template)
    try:
        rule = _decode(data["rule"], arrays, "rule", 0)
    except UnknownNameError as unknown:
        raise SolverFileError(
            f"{where} names {unknown}, which is not one of the classes and functions that are "
            "read from files"
        ) from unknown
    except (KeyError, TypeError, ValueError, AttributeError, ConfigurationError) as error:
        raise SolverFileError(f"the rule in {where} cannot be built: {error}") from error
    if not isinstance(rule, Rule):
        raise SolverFileError(f"{where} holds a {type(rule).__name__}, not a rule")
    if template is not None and jax.tree.structure(rule) != jax.tree.structure(template):
        raise SolverFileError(
            f"{where} holds another rule than the template: wanted the structure of "
            f"{type(template).__name__}, found {type(rule).__name__}"
        )
    return rule


def references(data: Any) -> dict[str, tuple[str, tuple[int, ...]]]:
    """The arrays that a rule's data refers to: dtype and shape, by name."""
    found: dict[str, tuple[str, tuple[int, ...]]] = {}

    def visit(value: Any, depth: int) -> None:
        if depth > 4 * _DEEPEST:
            raise SolverFileError("the rule's data is nested too deeply")
        if isinstance(value, dict) and "class" in value:
            # A field may have any name, also one that means something elsewhere.
            for inner in value["fields"].values():
                visit(inner, depth + 1)
        elif isinstance(value, dict) and "array" in value:
            shape = tuple(int(length) for length in value["shape"])
            found[str(value["array"])] = (str(value["dtype"]), shape)
        elif isinstance(value, dict | list):
            for inner in value.values() if isinstance(value, dict) else value:
                visit(inner, depth + 1)

    visit(data, 0)
    return found


def _fill(
    data: dict[str, Any], arrays: Mapping[str, np.ndarray], where: str, template: Rule | None
) -> Rule:
    name = data.get("own")
    if template is None:
        raise SolverFileError(
            f"{where} holds a rule with a class or function of its own, {data.get('unknown')}: "
            f"files run no code, so give a {name} of the same structure: "
            "load(path, problem, rule=template)"
        )
    leaves = jax.tree_util.tree_leaves_with_path(template)
    stored = data["leaves"]
    if type(template).__name__ != name or not isinstance(stored, list):
        raise SolverFileError(f"{where} holds a {name}: the template is {type(template).__name__}")
    if len(leaves) != len(stored):
        raise SolverFileError(
            f"{where} holds a {name} of {len(stored)} leaves, the template has {len(leaves)}"
        )
    filled = []
    for (path, leaf), entry in zip(leaves, stored, strict=True):
        place = f"{name}{jax.tree_util.keystr(path)}"
        if entry is None:
            # Neither an array nor a number: only the template knows it.
            filled.append(leaf)
            continue
        found = _decode(entry, arrays, place, 0)
        wanted_form, found_form = _form(leaf), _form(found)
        if wanted_form != found_form:
            raise SolverFileError(
                f"{where}: {place} is {found_form}, in the template {wanted_form}"
            )
        filled.append(found)
    return jax.tree.unflatten(jax.tree.structure(template), filled)


def _form(leaf: Any) -> str:
    array = isinstance(leaf, jax.Array | np.ndarray)
    return f"{type(leaf).__name__} {leaf.dtype} {leaf.shape}" if array else type(leaf).__name__


def _leaf(leaf: Any, arrays: dict[str, np.ndarray]) -> Any:
    try:
        return _encode(leaf, arrays)
    except UnknownNameError:
        return None


def _encode(value: Any, arrays: dict[str, np.ndarray]) -> Any:
    if value is None or type(value) in (bool, int, str):
        return value
    if type(value) is float:
        return value if math.isfinite(value) else {"float": str(value)}
    if isinstance(value, jax.Array | np.ndarray):
        return _keep(value, arrays)
    if isinstance(value, np.generic):
        return {"number": value.dtype.name, "value": _encode(value.item(), arrays)}
    if type(value) in (tuple, list):
        return {type(value).__name__: [_encode(item, arrays) for item in value]}
    if type(value) is dict:
        return {"dict": [[_encode(k, arrays), _encode(v, arrays)] for k, v in value.items()]}
    for name, function in FUNCTIONS.items():
        if value is function:
            return {"function": name}
    for name, kind in (CLASSES | PIECES).items():
        if type(value) is kind:
            names = [field.name for field in dataclasses.fields(kind)]
            fields = {field: _encode(getattr(value, field), arrays) for field in names}
            return {"class": name, "fields": fields}
    if callable(value) and not isinstance(value, eqx.Module):
        raise UnknownNameError(f"the function {getattr(value, '__name__', type(value).__name__)}")
    raise UnknownNameError(f"the class {type(value).__name__}")


def _keep(value: Any, arrays: dict[str, np.ndarray]) -> dict[str, Any]:
    if isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        raise UnknownNameError("the class PRNGKey")
    name = f"rule/{len(arrays)}"
    arrays[name] = np.asarray(value)
    kind = {} if isinstance(value, jax.Array) else {"numpy": True}
    return {"array": name, "dtype": str(value.dtype), "shape": list(value.shape)} | kind


def _decode(value: Any, arrays: Mapping[str, np.ndarray], where: str, depth: int) -> Any:
    if depth > _DEEPEST:
        raise ValueError(f"{where} is nested too deeply")
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if not isinstance(value, dict):
        raise ValueError(f"{where} should be an object")
    if "class" in value:
        return _build(value, arrays, where, depth)
    if "array" in value:
        array = arrays[value["array"]]
        return array if value.get("numpy") is True else jnp.asarray(array)
    if {"function", "float", "number"} & set(value):
        return _plain(value, where)
    return _container(value, arrays, where, depth)


def _plain(value: dict[str, Any], where: str) -> Any:
    if "function" in value:
        if value["function"] not in FUNCTIONS:
            raise UnknownNameError(f"the function {value['function']}")
        return FUNCTIONS[value["function"]]
    if "float" in value:
        if value["float"] not in ("inf", "-inf", "nan"):
            raise ValueError(f"{where} is no number")
        return float(value["float"])
    if value["number"] not in _NUMBERS:
        raise ValueError(f"{where} is a number of the unknown type {value['number']!r}")
    return np.dtype(value["number"]).type(_decode(value["value"], {}, where, _DEEPEST - 1))


def _container(
    value: dict[str, Any], arrays: Mapping[str, np.ndarray], where: str, depth: int
) -> Any:
    for kind in (tuple, list):
        if kind.__name__ in value:
            items = value[kind.__name__]
            return kind(_decode(v, arrays, f"{where}[{i}]", depth + 1) for i, v in enumerate(items))
    if "dict" not in value:
        raise ValueError(f"{where} is of no known kind")
    return {
        _decode(k, arrays, where, depth + 1): _decode(v, arrays, f"{where}[{k!r}]", depth + 1)
        for k, v in value["dict"]
    }


def _build(
    value: dict[str, Any], arrays: Mapping[str, np.ndarray], where: str, depth: int
) -> eqx.Module:
    name, given = value["class"], value["fields"]
    if name not in CLASSES | PIECES:
        raise UnknownNameError(f"the class {name}")
    kind = (CLASSES | PIECES)[name]
    wanted = {field.name for field in dataclasses.fields(kind)}
    for field in sorted(wanted ^ set(given)):
        raise ValueError(f"{where}.{field} " + ("is missing" if field in wanted else "is unknown"))
    fields = {
        field: _decode(inner, arrays, f"{where}.{field}", depth + 1)
        for field, inner in given.items()
    }
    if name in CLASSES:
        return kind(**fields)
    piece = object.__new__(kind)
    for field, inner in fields.items():
        object.__setattr__(piece, field, inner)
    return piece
