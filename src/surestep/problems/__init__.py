"""The paper's problems, by name."""

import difflib
import importlib
from types import ModuleType
from typing import Any

from surestep.config import RunConfig
from surestep.errors import ConfigurationError
from surestep.experiment import Experiment

NAMES = ("quadratics",)


def presets(name: str) -> dict[str, RunConfig[Any]]:
    """A problem's presets, by name."""
    return _module(name).PRESETS


def preset(name: str, preset_name: str) -> RunConfig[Any]:
    """One preset of a problem."""
    found = presets(name)
    if preset_name not in found:
        raise ConfigurationError(_unknown(f"preset of {name}", preset_name, tuple(found)))
    return found[preset_name]


def build(config: RunConfig[Any]) -> Experiment:
    """The experiment that a configuration describes."""
    return _module(config.name).build(config)


def _module(name: str) -> ModuleType:
    if name not in NAMES:
        raise ConfigurationError(_unknown("problem", name, NAMES))
    return importlib.import_module(f"surestep.problems.{name}")


def _unknown(kind: str, name: str, known: tuple[str, ...]) -> str:
    near = difflib.get_close_matches(name, known, n=2, cutoff=0.5)
    hint = f"did you mean {' or '.join(map(repr, near))}? " if near else ""
    return f"there is no {kind} called {name!r}: {hint}known are {', '.join(known)}"
