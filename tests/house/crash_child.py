"""A run that is killed before its n-th change of a file: what `house/crash.py` starts.

The process kills itself (SIGKILL, so nothing can tidy up) before the n-th change inside the run's
folder, or some seconds after it began; 0 means never. Stages save whenever they may. Changes are
counted, and where it was killed is noted in a log outside the folder.
"""

import os
import signal
import sys
import threading
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from surestep.cli.main import main
from surestep.paper import quadratics  # noqa: F401
from surestep.report import draw

# All that a run needs is imported before processes are forked off, and nothing is computed.
from surestep.run import pipeline as learning  # noqa: F401
from surestep.solver import solver  # noqa: F401
from surestep.storage.checkpoint import Saving

CHANGES = {"os.mkdir", "os.rename", "os.remove"}
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT


class Killer:
    def __init__(self, folder: Path, log: Path, before: int) -> None:
        self.folder, self.log, self.before = str(folder), log, before
        self.count = 0
        self.armed = True

    def hear(self, event: str, arguments: tuple) -> None:
        if not self.armed or (event not in CHANGES and event != "open"):
            return
        place = arguments[0]
        if not isinstance(place, str | os.PathLike):
            return
        writes = event != "open" or (isinstance(arguments[2], int) and arguments[2] & WRITING)
        if writes and os.fspath(place).startswith(self.folder):
            self.count += 1
            if self.count == self.before:
                self.kill(f"{event} {Path(place).name}")

    def kill(self, where: str) -> None:
        self.note(f"killed {where}")
        os.kill(os.getpid(), signal.SIGKILL)

    def note(self, text: str) -> None:
        self.armed = False
        with self.log.open("a") as log:
            log.write(f"{text}\n")


def empty(*_) -> Figure:
    """Figures take half of the time and are not what is at stake; their files are written."""
    figure = Figure(figsize=(1, 1))
    FigureCanvasAgg(figure)
    return figure


def run(
    folder: Path, log: Path, said: Path, before: int, after: float, command: list[str], draws: bool
) -> None:
    """Run a command in this process, which does not return from it."""
    for stream in (sys.stdout, sys.stderr):
        os.dup2(os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), stream.fileno())
    killer = Killer(folder, log, before)
    Saving.is_due = lambda self: True
    if not draws:
        draw.draw = empty
    sys.addaudithook(killer.hear)
    if after > 0:
        threading.Timer(after, killer.kill, ["by the clock"]).start()
    code = main(command)
    killer.note(f"ended {killer.count}")
    sys.stdout.flush()
    os._exit(code)
