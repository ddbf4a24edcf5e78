"""Imports that wait until they are needed, so that importing a package stays fast."""

import importlib
import sys
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any


def lazy_attributes(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """A package's `__getattr__`.

    `homes` says where each name is defined: `module:name`, or a module for one that is meant
    itself.
    """

    def find(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module, _, inside = homes[name].partition(":")
        found = importlib.import_module(module)
        return getattr(found, inside) if inside else found

    return find


def keep_function(package: str, name: str, find: Callable[[str], Any]) -> None:
    """Keep a package's function that is called like one of its rooms.

    Python sets a package's attribute to a room as soon as that is imported, and the function would
    be gone. The room itself is imported as before, because imports do not ask the attribute.
    """
    kept = property(lambda _: find(name), lambda _, room: None)
    kind = type(f"PackageWith{name.capitalize()}", (ModuleType,), {name: kept})
    sys.modules[package].__class__ = kind


def slow_import(module: str) -> Any:
    """A library that takes long to import, for the few calls that need it."""
    return importlib.import_module(module)
