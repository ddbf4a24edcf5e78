"""Ctrl-C and SIGTERM: heard at once, whatever the process is doing.

While JAX traces or compiles, Python code is called from inside its libraries, and an exception that
is thrown there can end in a crash instead of in a message. So a signal that arrives then is put off
for a moment, again and again, until no frame of JAX is under way, and raises KeyboardInterrupt.

But a compiled program, or the compiler, may run for minutes without a frame of Python. So a thread
watches, which the system tells of signals through a pipe. It gives the ordinary way half a second,
then says what the ordinary way says and ends the process, which run folders survive like a power
cut. The second signal does not wait at all.
"""

import contextlib
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

SIGNALLED = 128
"""With the number of the signal added, the exit code of a command that one has ended."""

_STOPS = (signal.SIGINT, signal.SIGTERM)
_BUSY = ("jax.", "jaxlib.", "equinox.", "optax.")
_SOON = 0.05  # seconds until it is looked again whether JAX is at work
_GRACE = 0.5  # seconds that the ordinary way to end may take
_FAREWELL = 10.0  # seconds to take leave of other processes, once the user has been told
_SHOW_CURSOR = "\x1b[?25h"

_waiting: list[int] = []
_folder: list[Path] = []
_told = threading.Event()


class Stopped(KeyboardInterrupt):
    """A signal has asked the command to stop."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


def exit_code(error: KeyboardInterrupt) -> int:
    """The exit code that a shell expects after a signal."""
    return SIGNALLED + (error.number if isinstance(error, Stopped) else signal.SIGINT)


def working_in(folder: Path) -> None:
    """Say where the command leaves what it has finished, for the sentence that ends it."""
    _folder[:] = [folder]


def farewell() -> str:
    """What an interrupted command says at its end."""
    # From here on the user knows; if the process is ended, nothing is said twice.
    _told.set()
    there = _folder[0] if _folder and _folder[0].is_dir() else None
    rest = f"with what is finished in {there}" if there else "from here"
    return f"surestep: interrupted; the same command goes on {rest}"


@contextlib.contextmanager
def stopping_safely() -> Iterator[None]:
    """Inside, signals to stop raise KeyboardInterrupt where that is safe, or end the process."""
    _waiting.clear()
    _folder.clear()
    _told.clear()
    handlers = {signal.SIGTERM: _asked, signal.SIGINT: _asked, signal.SIGALRM: _ring}
    before = {number: signal.getsignal(number) for number in handlers}
    with _watched():
        for number, handler in handlers.items():
            # A process that was started to ignore Ctrl-C, as in the background of a shell, does.
            if before[number] is not signal.SIG_IGN:
                signal.signal(number, handler)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            for number, handler in before.items():
                signal.signal(number, handler)


def _asked(number: int, frame: FrameType | None) -> None:
    _waiting.append(number)
    _ring(number, frame)


def _ring(number: int, frame: FrameType | None) -> None:
    if not _waiting:
        return
    if _busy(frame):
        signal.setitimer(signal.ITIMER_REAL, _SOON)
        return
    first = _waiting[0]
    _waiting.clear()
    raise Stopped(first)


def _busy(frame: FrameType | None) -> bool:
    while frame is not None:
        if str(frame.f_globals.get("__name__", "")).startswith(_BUSY):
            return True
        frame = frame.f_back
    return False


@contextlib.contextmanager
def _watched() -> Iterator[None]:
    """Inside, a thread hears of every signal, even while Python itself does not get a turn."""
    hears, tells = os.pipe()
    os.set_blocking(tells, False)
    watcher = threading.Thread(target=_watch, args=(hears,), name="signals", daemon=True)
    before = signal.set_wakeup_fd(tells, warn_on_full_buffer=False)
    watcher.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        os.close(tells)
        watcher.join()
        os.close(hears)


def _watch(hears: int) -> None:
    first, deadline, patient = 0, None, True
    while True:
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        if deadline is not None and not select.select([hears], [], [], left)[0]:
            if not (patient and _told.is_set()):
                _end(first)
            deadline, patient = time.monotonic() + _FAREWELL, False
            continue
        numbers = os.read(hears, 64)
        if not numbers:
            return
        for number in numbers:
            if number in _STOPS and first:
                _end(first)
            if number in _STOPS:
                first, deadline = number, time.monotonic() + _GRACE


def _end(number: int) -> None:
    """End the process, whatever it is doing; the terminal is left as it was found."""
    error = sys.__stderr__
    told = "" if _told.is_set() else f"{farewell()}\n"
    with contextlib.suppress(OSError, ValueError):
        at = 2 if error is None else error.fileno()
        # A bar may stand on the line, without a cursor.
        os.write(at, (f"{_SHOW_CURSOR}\n" if os.isatty(at) else "").encode() + told.encode())
    os._exit(SIGNALLED + number)
