"""Runs that several files of tests look at: learned once, by whichever process comes first."""

import fcntl
import os
import shutil
from pathlib import Path

from support.session import SHARED
from support.tiny import EXPERIMENT, SMALL
from surestep.run.pipeline import learn
from surestep.storage.run_folder import RunFolder


def small_run(place: Path) -> RunFolder:
    """The folder of a run of `SMALL`, copied to a place of the caller's own."""
    original = Path(os.environ[SHARED]) / "small"
    with Path(f"{original}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not original.exists():
            unfinished = Path(f"{original}.unfinished")
            # Left behind by a process that was interrupted.
            shutil.rmtree(unfinished, ignore_errors=True)
            learn(SMALL, EXPERIMENT, RunFolder(unfinished))
            unfinished.rename(original)
    shutil.copytree(original, place)
    return RunFolder(place)
