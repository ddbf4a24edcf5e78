"""Every error surestep raises on purpose, each with the exit code the command line ends with."""

import difflib
from typing import ClassVar

__all__ = [
    "ConfigurationError",
    "HostError",
    "InfeasibleError",
    "ProblemError",
    "RunFolderError",
    "SolverFileError",
    "SurestepError",
    "VerificationError",
]


class SurestepError(Exception):
    """Base of the errors a user can act on; the message says what would be right."""

    exit_code: ClassVar[int] = 1


class ConfigurationError(SurestepError):
    """A setting, a name or an argument that cannot work."""

    exit_code = 2


class ProblemError(SurestepError):
    """A problem that breaks its contract: its loss, its start or its instances."""

    exit_code = 2


class InfeasibleError(SurestepError):
    """Training ended without a rule that meets the success constraint: nothing to certify."""

    exit_code = 3


class VerificationError(SurestepError):
    """A certificate, a statement or a monitor that does not stand."""

    exit_code = 5


class RunFolderError(SurestepError):
    """A run folder that holds something else, is damaged, or is in use."""

    exit_code = 4


class SolverFileError(RunFolderError):
    """A solver's file that is damaged, of another kind, or made for another problem."""


class HostError(SurestepError):
    """Another process of the run is lost, or cannot do its part."""

    exit_code = 6


def unknown(kind: str, name: str, known: tuple[str, ...]) -> str:
    """Say that there is no such name, and which ones are near."""
    near = difflib.get_close_matches(name, known, n=2, cutoff=0.5)
    hint = f"did you mean {' or '.join(map(repr, near))}? " if near else ""
    return f"there is no {kind} called {name!r}: {hint}known are {', '.join(known)}"
