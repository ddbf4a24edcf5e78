"""Imports that wait until they are needed, so that importing a package stays fast."""

import importlib
from collections.abc import Callable, Mapping
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


def slow_import(module: str) -> Any:
    """A library that takes long to import, for the few calls that need it."""
    return importlib.import_module(module)
