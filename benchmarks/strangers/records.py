"""What was measured, as it is stored."""

import dataclasses
import json
from pathlib import Path
from typing import Any

from surestep.base.errors import RunFolderError
from surestep.storage.files import write_text
from surestep.storage.records import from_plain, to_json

SCHEMA = 2


@dataclasses.dataclass(frozen=True)
class Timed:
    """One solver to one accuracy, alone and in a batch."""

    solver: str
    kind: str
    """ours, loop or library."""
    chosen: str
    """The numbers that tuning chose, in words."""
    needed: float | None
    """Iterations, or a library's tolerance; None where the accuracy was not reached."""
    alone: list[float]
    """Mean seconds of a solve, one at a time, for each round."""
    batch: list[float]
    """Seconds for all instances, for each round."""
    first_look: tuple[float, float] | None
    """Both, once, before the rounds; who was far behind then sat out the rounds."""
    latency: tuple[float, float] | None = None
    """Of our solver: seconds that 50 % and 99 % of single solves do not exceed."""


@dataclasses.dataclass(frozen=True)
class Contest:
    """All solvers to one accuracy."""

    accuracy: float
    timed: list[Timed]


@dataclasses.dataclass(frozen=True)
class Outcome:
    """One family."""

    family: str
    instances: int
    budget: str
    wall_seconds: float
    """What the whole fit took."""
    training_seconds: float
    words: str
    """What was learned, or why nothing was."""
    contests: list[Contest]
    bare: list[Timed]
    """Our loop without what `solve` does around it, one entry an accuracy."""


@dataclasses.dataclass(frozen=True)
class Table:
    """All families that are finished."""

    schema: int
    made_with: dict[str, str]
    outcomes: list[Outcome]


def save_table(table: Table, path: Path) -> None:
    """Write atomically."""
    write_text(path, to_json(table))


def load_table(path: Path) -> Table:
    """Read what `save_table` wrote; another schema is refused."""
    try:
        plain: Any = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise RunFolderError(f"{path} cannot be read: {error}") from error
    if not isinstance(plain, dict) or plain.get("schema") not in (1, SCHEMA):
        raise RunFolderError(f"{path} holds no table of this version")
    if plain["schema"] == 1:
        _add_latency(plain)
    return from_plain(Table, plain, path.name)


def _add_latency(plain: dict[str, Any]) -> None:
    """Tables of the first schema did not measure it."""
    plain["schema"] = SCHEMA
    for outcome in plain.get("outcomes", []):
        entries = [one for contest in outcome["contests"] for one in contest["timed"]]
        for one in entries + outcome["bare"]:
            one["latency"] = None
