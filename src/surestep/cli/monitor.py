"""`surestep monitor`: is a certified failure probability still credible?"""

import dataclasses
import sys
from pathlib import Path
from typing import Annotated

import numpy as np
import tyro

from surestep.base.errors import ConfigurationError, VerificationError
from surestep.cli.arguments import parse, unset
from surestep.solver.instance_monitor import InstanceMonitor
from surestep.solver.monitor import Monitor
from surestep.storage.files import exclusive


@dataclasses.dataclass(frozen=True)
class Arguments:
    """Feed a monitor with outcomes from standard input, 0 or 1, one a line.

    If it watches instances, a line is an outcome and the numbers of its instance.
    """

    state: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="STATE.json")]
    """Where the monitor's state is kept."""
    failure: Annotated[float | None, unset("P")] = None
    """The certified failure probability."""
    delta: float = 0.01
    """Probability of a false alarm."""
    reference: Annotated[Path | None, unset("FILE")] = None
    """Numbers of some hundred instances, a line each; watches new ones (half of delta)."""


def main(words: list[str]) -> int:
    """Carry out the command."""
    watch(parse(Arguments, words, "surestep monitor"))
    return 0


def watch(given: Arguments) -> None:
    """Feed a monitor with outcomes from standard input, one a line."""
    state = given.state
    if given.failure is None and not state.exists():
        raise ConfigurationError(f"{state} is new: say which failure probability is certified")
    if given.reference is not None and state.exists():
        raise ConfigurationError(f"{state} has begun: what it compares instances with is in it")
    # Two that feed one state would each forget what the other has seen.
    with exclusive(state.with_name(f".{state.name}.lock"), state):
        _feed(state, given)


def _feed(state: Path, given: Arguments) -> None:
    failure = given.failure
    if state.exists():
        monitor = Monitor.load(state)
        if failure not in (None, monitor.failure):
            raise ConfigurationError(
                f"{state} watches a failure probability of {monitor.failure:g}, not {failure:g}"
            )
    else:
        assert failure is not None
        monitor = _begun(failure, given)
    monitor = _fed(monitor, sys.stdin.read())
    monitor.save(state)
    print(monitor)
    if monitor.alarm:
        raise VerificationError(
            "certificate and instances are no longer credible together"
            if monitor.instances is not None
            else "the certificate is no longer credible"
        )


def _begun(failure: float, given: Arguments) -> Monitor:
    """A monitor that has seen nothing yet."""
    if given.reference is None:
        return Monitor(failure, given.delta)
    try:
        table = _rows(given.reference.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{given.reference} cannot be read: {error}") from error
    half = given.delta / 2
    return Monitor(failure, half, instances=InstanceMonitor.of(table, half))


def _fed(monitor: Monitor, text: str) -> Monitor:
    """The monitor after the lines of a text."""
    if monitor.instances is None:
        try:
            return monitor.fed([float(word) for word in text.split()])
        except ValueError as error:
            raise ConfigurationError(f"outcomes are numbers from 0 to 1: {error}") from error
    table = _rows(text)
    width = 1 + len(monitor.instances.edges)
    if not table.size:
        return monitor
    if table.shape[1] != width:
        raise ConfigurationError(
            f"a line is an outcome and {width - 1} numbers of the instance, not {table.shape[1]} "
            "numbers"
        )
    return monitor.fed(table[:, 0]).shown(table[:, 1:])


def _rows(text: str) -> np.ndarray:
    """The numbers of a text, line by line, separated by blanks or commas."""
    lines = [line.replace(",", " ").split() for line in text.splitlines()]
    rows = [line for line in lines if line]
    if len({len(row) for row in rows}) > 1:
        raise ConfigurationError("lines must have equally many numbers")
    try:
        return np.array([[float(word) for word in row] for row in rows])
    except ValueError as error:
        raise ConfigurationError(f"lines must be numbers: {error}") from error
