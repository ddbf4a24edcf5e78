"""Commands that several processes carry out together."""

import dataclasses
from collections.abc import Callable
from typing import Annotated

from surestep.base.errors import ConfigurationError
from surestep.cli.arguments import parse_known, unset
from surestep.cli.explanation import explain
from surestep.cli.workers import together
from surestep.run.distributed import PATIENCE, Joining, Leader

Command = Callable[[list[str], Leader | None], int]
"""Carries out the words of a command, alone or as the leader of other processes."""

TOGETHER = (
    "Several processes share the rollouts if all are given the same command and either "
    "--distributed auto or --coordinator HOST:PORT --processes N --process I; --patience S says "
    f"after how many seconds without a sign of life one of them is lost ({PATIENCE:g})."
)
"""For the help of such commands."""


@dataclasses.dataclass(frozen=True)
class Arguments:
    """How a process finds the others of its run."""

    distributed: Annotated[str | None, unset("auto")] = None
    """Found as Slurm, Open MPI or Kubernetes tell."""
    coordinator: Annotated[str | None, unset("HOST:PORT")] = None
    """Address and port of process 0."""
    processes: Annotated[int | None, unset("N")] = None
    """How many there are."""
    process: Annotated[int | None, unset("I")] = None
    """Which of them this is; process 0 leads."""
    patience: float = PATIENCE
    """After so many seconds without a sign of life one of them is lost."""


_OPTIONS = tuple(f"--{field.name}" for field in dataclasses.fields(Arguments))


def alone_or_together(words: list[str], command: Command) -> int:
    """Carry out a command, alone or, if the words say how to find them, with other processes."""
    if not any(word.partition("=")[0] in _OPTIONS for word in words):
        return command(words, None)
    given, rest = parse_known(Arguments, words, "surestep")
    if given.distributed not in (None, "auto"):
        raise ConfigurationError(
            f"argument --distributed: invalid choice: {given.distributed!r} (choose from 'auto') "
            "(surestep --help)"
        )
    said = (given.coordinator, given.processes, given.process)
    if (given.distributed is None) == (said == (None, None, None)):
        raise ConfigurationError(
            "say either --distributed auto, or --coordinator, --processes and --process"
        )
    joining = Joining(*said, patience=given.patience)
    return together(joining, lambda leader: command(rest, leader), explain, rest)
