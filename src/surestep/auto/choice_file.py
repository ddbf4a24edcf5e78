"""The file of a choice, in a run's folder: what was measured when a run began stays as it is."""

import dataclasses
import json
from pathlib import Path
from typing import Any

from surestep.auto.arena import Entry
from surestep.auto.choice import Choice
from surestep.base.errors import RunFolderError, SolverFileError
from surestep.problem import Problem, working_precision
from surestep.solver.rule_data import pack, references, unpack
from surestep.storage.arrays import Announced, read_arrays, write_arrays
from surestep.storage.records import from_plain, to_plain
from surestep.storage.run_folder import CHOICE

KIND = "surestep choice"
NAME = CHOICE
"""What it is called in a run's folder."""


@dataclasses.dataclass(frozen=True)
class _Facts:
    """The header."""

    words: str
    entries: tuple[Entry, ...]
    horizon: int
    smoothness: float
    reference: int
    seconds: float
    rules: list[Any]
    """The chosen rule, then the opponents."""
    names: list[str]
    """The opponents' names."""


def write_choice(path: Path, choice: Choice) -> None:
    """Write a choice's file atomically."""
    arrays, rules = {}, []
    for place, rule in enumerate((choice.rule, *choice.baselines.values())):
        packed = pack(rule)
        rules.append(packed.data)
        arrays |= {f"{place}/{name}": array for name, array in packed.arrays.items()}
    facts = _Facts(
        choice.words,
        choice.entries,
        choice.horizon,
        choice.smoothness,
        choice.reference,
        choice.seconds,
        rules,
        list(choice.baselines),
    )
    text = json.dumps(to_plain(facts), sort_keys=True, allow_nan=False)
    write_arrays(path, arrays, {"kind": KIND, "facts": text})


def read_choice(path: Path, problem: Problem) -> Choice:
    """The choice that a run began with."""
    seen: list[_Facts] = []

    def inspect(metadata: dict[str, Any], announced: dict[str, Announced]) -> None:
        if metadata.get("kind") != KIND:
            raise RunFolderError(f"{path} is no choice's file")
        facts = from_plain(_Facts, json.loads(metadata["facts"]), "choice")
        if len(facts.rules) != 1 + len(facts.names):
            raise RunFolderError(f"{path} does not hold one rule and an opponent for every name")
        wanted = {
            f"{place}/{name}": form
            for place, rule in enumerate(facts.rules)
            for name, form in references(rule).items()
        }
        if wanted != announced:
            raise RunFolderError(f"{path} holds other arrays than its rules name")
        seen.append(facts)

    arrays, _ = read_arrays(path, inspect)
    facts = seen[0]
    try:
        with working_precision(problem):
            rules = [
                unpack(rule, _part(arrays, place), str(path))
                for place, rule in enumerate(facts.rules)
            ]
    except SolverFileError as error:
        raise RunFolderError(str(error)) from error
    baselines = dict(zip(facts.names, rules[1:], strict=True))
    return Choice(
        rules[0],
        baselines,
        facts.words,
        facts.entries,
        facts.horizon,
        facts.smoothness,
        facts.reference,
        facts.seconds,
    )


def _part(arrays: dict[str, Any], place: int) -> dict[str, Any]:
    first = f"{place}/"
    return {
        name.removeprefix(first): array for name, array in arrays.items() if name.startswith(first)
    }
