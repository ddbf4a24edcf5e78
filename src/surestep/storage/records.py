"""Frozen dataclasses to plain JSON values and back, checked against their types."""

import dataclasses
import functools
import json
import math
import reprlib
import types
import typing
from typing import Any, TypeVar

from surestep.base.errors import RunFolderError

Record = TypeVar("Record")


def to_plain(value: Any) -> Any:
    """A value made of dictionaries, lists, strings and numbers alone."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {str(key): to_plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        # JSON has no infinity; the word is unambiguous where the type is known.
        return str(value)
    return value


def from_plain(kind: type[Record] | Any, value: Any, where: str = "") -> Record:
    """The record that `to_plain` was given, or an error that names the field that is off."""
    return _read(kind, value, where or getattr(kind, "__name__", str(kind)))


def to_json(value: Any) -> str:
    """Canonical JSON: the same value gives the same text."""
    return json.dumps(to_plain(value), indent=2, sort_keys=True, allow_nan=False) + "\n"


def json_schema(kind: Any) -> dict[str, Any]:
    """The JSON schema of what `to_plain` makes of a record."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        names = [field.name for field in dataclasses.fields(kind)]
        return {
            "type": "object",
            "properties": {name: json_schema(hints[name]) for name in names},
            "required": names,
            "additionalProperties": False,
        }
    if origin in (list, tuple):
        return {"type": "array", "items": json_schema(arguments[0])}
    if origin is dict:
        return {"type": "object", "additionalProperties": json_schema(arguments[1])}
    if origin is typing.Literal:
        return {"enum": list(arguments)}
    if origin in (typing.Union, types.UnionType):
        return {"anyOf": [json_schema(one) for one in arguments]}
    if kind is type(None):
        return {"type": "null"}
    if kind is float:
        words = {"enum": ["inf", "-inf", "nan"]}
        return {"anyOf": [{"type": "number"}, words]}
    simple = {str: "string", int: "integer", bool: "boolean"}
    return {"type": simple[kind]} if kind in simple else {}


def _read(kind: Any, value: Any, where: str) -> Any:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if dataclasses.is_dataclass(origin or kind):
        return _read_record(origin or kind, arguments, value, where)
    if origin is typing.Literal:
        return _expect(
            value in arguments, value, f"one of {', '.join(map(repr, arguments))}", where
        )
    if origin in (typing.Union, types.UnionType):
        return _read_union(arguments, value, where)
    if origin in (tuple, list):
        _expect(isinstance(value, list), value, "a list", where)
        if origin is tuple and arguments[-1] is not Ellipsis:
            _expect(
                len(value) == len(arguments), value, f"a list of {len(arguments)} values", where
            )
            pairs = zip(arguments, value, strict=True)
            return tuple(_read(one, v, f"{where}[{i}]") for i, (one, v) in enumerate(pairs))
        return (origin)(_read(arguments[0], item, f"{where}[{i}]") for i, item in enumerate(value))
    if origin is dict:
        _expect(isinstance(value, dict), value, "an object", where)
        return {key: _read(arguments[1], item, f"{where}.{key}") for key, item in value.items()}
    if kind is float:
        if isinstance(value, str) and value in ("inf", "-inf", "nan"):
            return float(value)
        number = isinstance(value, int | float) and not isinstance(value, bool)
        # Python's whole numbers can be too large for any float.
        fits = not isinstance(value, int) or abs(value) < 2**1023
        return float(_expect(number and fits, value, "a number", where))
    if kind is Any:
        return value
    return _expect(type(value) is kind, value, f"of type {kind.__name__}", where)


def _read_record(kind: Any, arguments: tuple[Any, ...], value: Any, where: str) -> Any:
    _expect(isinstance(value, dict), value, "an object", where)
    hints = _hints(kind)
    variables = dict(zip(getattr(kind, "__parameters__", ()), arguments, strict=False))
    names = {field.name for field in dataclasses.fields(kind)}
    for name in sorted(names ^ set(value)):
        problem = "is missing" if name in names else "is not known"
        raise RunFolderError(f"{where}.{name} {problem}")
    return kind(
        **{
            name: _read(variables.get(hints[name], hints[name]), value[name], f"{where}.{name}")
            for name in names
        }
    )


@functools.cache
def _hints(kind: Any) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _read_union(kinds: tuple[Any, ...], value: Any, where: str) -> Any:
    if value is None and type(None) in kinds:
        return None
    tagged = {_tag(kind): kind for kind in kinds}
    if None not in tagged:
        record: dict[str, Any] = _expect(isinstance(value, dict), value, "an object", where)
        tag: Any = record.get("kind")
        known = ", ".join(map(repr, tagged))
        _expect(isinstance(tag, str) and tag in tagged, tag, f"one of {known}", f"{where}.kind")
        return _read(tagged[tag], value, where)
    errors = []
    for kind in kinds:
        if kind is not type(None):
            try:
                return _read(kind, value, where)
            except RunFolderError as error:
                errors.append(error)
    raise errors[0]


def _tag(kind: Any) -> str | None:
    """The word that tells one kind of record from others: the only value of its field `kind`."""
    hint = _hints(kind).get("kind") if dataclasses.is_dataclass(kind) else None
    return typing.get_args(hint)[0] if typing.get_origin(hint) is typing.Literal else None


def _expect(condition: bool, value: Any, wanted: str, where: str) -> Any:
    if not condition:
        # Shortened: a value from a file may be of any size.
        raise RunFolderError(f"{where} should be {wanted}, not {reprlib.repr(value)}")
    return value
