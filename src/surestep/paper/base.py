"""What presets are written with: the settings of a run, and what presets of one name share."""

import dataclasses
from typing import Any, TypeVar

from surestep.evaluate.test_set import EvaluateSettings
from surestep.problem import SplitSizes
from surestep.rules.safeguarded import SafeguardSettings
from surestep.run.config import RunConfig
from surestep.train import (
    Constraint,
    ImitateSettings,
    LocateSettings,
    PopulationSettings,
    SampleSettings,
    TrainingSettings,
)

__all__ = [
    "Constraint",
    "EvaluateSettings",
    "ImitateSettings",
    "LocateSettings",
    "PopulationSettings",
    "RunConfig",
    "SafeguardSettings",
    "SampleSettings",
    "SplitSizes",
    "TrainingSettings",
    "best",
    "quick",
    "tiny",
]

AnyConfig = TypeVar("AnyConfig", bound=RunConfig[Any])


def best(paper: AnyConfig, **changes: Any) -> AnyConfig:
    """The paper's problem with the best rule that is known: a classical one, corrected."""
    shared: dict[str, Any] = {"preset": "best", "rule": "residual"}
    return dataclasses.replace(paper, **shared | changes)


def quick(paper: AnyConfig, **changes: Any) -> AnyConfig:
    """The paper's experiment in minutes."""
    shared: dict[str, Any] = {"preset": "quick", "sizes": SplitSizes(200, 200, 200, 200)}
    return dataclasses.replace(paper, **shared | changes)


def tiny(quick: AnyConfig, **changes: Any) -> AnyConfig:
    """A run of seconds, to see that all is in place."""
    shared: dict[str, Any] = {
        "preset": "tiny",
        "horizon": 10,
        "sizes": SplitSizes(64, 64, 64, 64),
        "imitate": ImitateSettings(steps=200),
        "locate": LocateSettings(steps=2_000, check_every=500, chunk=250),
        "constraint": Constraint(lower=0.8, width=0.15),
    }
    return dataclasses.replace(quick, **shared | changes)
