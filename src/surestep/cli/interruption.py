"""Ctrl-C and SIGTERM that wait until JAX is not at work.

While JAX traces or compiles, Python code is called from inside its libraries, and an exception that
is thrown there can end in a crash instead of in a message. So a signal that arrives then is put off
for a moment, again and again, until no frame of JAX is under way. The second signal does not wait:
the process ends at once, which run folders survive like a power cut.
"""

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from types import FrameType

INTERRUPTED = 130
"""The exit code of an interrupted command."""

_BUSY = ("jax.", "jaxlib.", "equinox.", "optax.")
_SOON = 0.05
_waiting: list[int] = []


@contextlib.contextmanager
def stopping_safely() -> Iterator[None]:
    """Inside, signals to stop raise KeyboardInterrupt where that is safe."""
    _waiting.clear()
    handlers = {signal.SIGTERM: _asked, signal.SIGINT: _asked, signal.SIGALRM: _ring}
    before = {number: signal.getsignal(number) for number in handlers}
    for number, handler in handlers.items():
        # A process that was started to ignore Ctrl-C, as in the background of a shell, still does.
        if before[number] is not signal.SIG_IGN:
            signal.signal(number, handler)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in before.items():
            signal.signal(number, handler)


def _asked(number: int, frame: FrameType | None) -> None:
    if _waiting:
        message = b"surestep: stopped at once; the same command goes on from here\n"
        os.write(sys.__stderr__.fileno() if sys.__stderr__ else 2, message)
        os._exit(INTERRUPTED)
    _waiting.append(number)
    _ring(number, frame)


def _ring(number: int, frame: FrameType | None) -> None:
    if not _waiting:
        return
    if _busy(frame):
        signal.setitimer(signal.ITIMER_REAL, _SOON)
        return
    _waiting.clear()
    raise KeyboardInterrupt


def _busy(frame: FrameType | None) -> bool:
    while frame is not None:
        if str(frame.f_globals.get("__name__", "")).startswith(_BUSY):
            return True
        frame = frame.f_back
    return False
