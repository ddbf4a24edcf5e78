"""How a long stage tells a person where it stands."""

import contextlib
import dataclasses
import logging
import time
from collections.abc import Iterator
from typing import Any, Protocol, runtime_checkable

from surestep.base.lazy import slow_import

log = logging.getLogger("surestep")


class Bar(Protocol):
    """A stage under way."""

    def advance(self, amount: int, note: str = "") -> None:
        """So much more is done; the note replaces the last one."""
        ...


@runtime_checkable
class Reporter(Protocol):
    """Whoever is told about progress."""

    def stage(
        self, name: str, total: int, unit: str, done: int = 0
    ) -> contextlib.AbstractContextManager[Bar]:
        """A stage begins, of which `done` may lie behind already."""
        ...

    def say(self, text: str) -> None:
        """A line between stages."""
        ...


class Silence:
    """Tells nobody; what library calls use by default."""

    @contextlib.contextmanager
    def stage(self, name: str, total: int, unit: str, done: int = 0) -> Iterator[Bar]:
        """Nothing happens."""
        yield self

    def advance(self, amount: int, note: str = "") -> None:
        """Nothing happens."""

    def say(self, text: str) -> None:
        """Nothing happens."""


@dataclasses.dataclass
class _LoggedBar:
    name: str
    total: int
    unit: str
    done: int
    every: float
    began: float = dataclasses.field(default_factory=time.monotonic)
    told: float = dataclasses.field(default_factory=time.monotonic)
    first: int = 0

    def advance(self, amount: int, note: str = "") -> None:
        self.done += amount
        now = time.monotonic()
        if now - self.told < self.every and self.done < self.total:
            return
        self.told = now
        if self.done == self.first:
            told = (self.name, self.done, self.total, self.unit, note)
            log.info("%s: %d of %d %s, %s", *told)
            return
        rate = (self.done - self.first) / max(now - self.began, 1e-9)
        left = max(self.total - self.done, 0) / max(rate, 1e-9)
        log.info(
            "%s: %d of %d %s, %.4g/s, %s left%s",
            *(self.name, self.done, self.total, self.unit, rate, duration(left)),
            f", {note}" if note else "",
        )


class Logged:
    """A line now and then, for logs and pipes."""

    def __init__(self, every: float = 10.0) -> None:
        self.every = every

    @contextlib.contextmanager
    def stage(self, name: str, total: int, unit: str, done: int = 0) -> Iterator[Bar]:
        """Log the stage's progress at most every few seconds, and its end."""
        yield _LoggedBar(name, total, unit, done, self.every, first=done)

    def say(self, text: str) -> None:
        """Log the line."""
        log.info("%s", text)


class Live:
    """A moving bar with rate, remaining time and a note, for terminals."""

    def __init__(self, console: Any) -> None:
        self.console = console

    @contextlib.contextmanager
    def stage(self, name: str, total: int, unit: str, done: int = 0) -> Iterator[Bar]:
        """Show a bar while the stage lasts."""
        rich_progress = slow_import("rich.progress")  # only terminals need it
        columns = (
            rich_progress.TextColumn("{task.description:<9}"),
            rich_progress.BarColumn(bar_width=24),
            rich_progress.MofNCompleteColumn(),
            rich_progress.TextColumn("{task.fields[rate]}"),
            rich_progress.TimeRemainingColumn(),
            rich_progress.TextColumn("{task.fields[note]}"),
        )
        with rich_progress.Progress(*columns, console=self.console) as bars:
            task = bars.add_task(name, total=total, completed=done, rate="", note="")
            began = time.monotonic()

            class _Bar:
                made = 0

                def advance(self, amount: int, note: str = "") -> None:
                    self.made += amount
                    rate = self.made / max(time.monotonic() - began, 1e-9)
                    bars.update(task, advance=amount, note=note, rate=f"{rate:.4g} {unit}/s")

            yield _Bar()

    def say(self, text: str) -> None:
        """Print the line."""
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)


def duration(seconds: float) -> str:
    """Seconds as a person says them."""
    if seconds < 100:
        return f"{seconds:.3g} s"
    if seconds < 6000:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
