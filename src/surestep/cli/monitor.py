"""`surestep monitor`: is a certified failure probability still credible?"""

import dataclasses
import sys
from pathlib import Path
from typing import Annotated

import tyro

from surestep.base.errors import ConfigurationError, VerificationError
from surestep.cli.arguments import parse, unset
from surestep.solver.monitor import Monitor
from surestep.storage.files import exclusive


@dataclasses.dataclass(frozen=True)
class Arguments:
    """Feed a monitor with outcomes from standard input, 0 or 1, one a line."""

    state: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="STATE.json")]
    """Where the monitor's state is kept."""
    failure: Annotated[float | None, unset("P")] = None
    """The certified failure probability."""
    delta: float = 0.01
    """Probability of a false alarm."""


def main(words: list[str]) -> int:
    """Carry out the command."""
    watch(parse(Arguments, words, "surestep monitor"))
    return 0


def watch(given: Arguments) -> None:
    """Feed a monitor with outcomes from standard input, one a line."""
    state = given.state
    if given.failure is None and not state.exists():
        raise ConfigurationError(f"{state} is new: say which failure probability is certified")
    # Two that feed one state would each forget what the other has seen.
    with exclusive(state.with_name(f".{state.name}.lock"), state):
        _feed(state, given.failure, given.delta)


def _feed(state: Path, failure: float | None, delta: float) -> None:
    if state.exists():
        monitor = Monitor.load(state)
        if failure not in (None, monitor.failure):
            raise ConfigurationError(
                f"{state} watches a failure probability of {monitor.failure:g}, not {failure:g}"
            )
    else:
        assert failure is not None
        monitor = Monitor(failure, delta)
    try:
        outcomes = [float(line) for line in sys.stdin.read().split()]
    except ValueError as error:
        raise ConfigurationError(f"outcomes are numbers from 0 to 1: {error}") from error
    monitor = monitor.fed(outcomes)
    monitor.save(state)
    print(monitor)
    if monitor.alarm:
        raise VerificationError("the certificate is no longer credible")
