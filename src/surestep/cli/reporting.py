"""How commands tell what they do, and where they have put it."""

import logging
import sys
from collections.abc import Mapping
from pathlib import Path

from rich.console import Console

from surestep.base.progress import Live, Logged, Reporter


def reporter() -> Reporter:
    """Bars on a terminal, and a plain log elsewhere."""
    console = Console(stderr=True)
    if console.is_terminal:
        return Live(console)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S"))
    logger = logging.getLogger("surestep")
    logger.handlers = [handler]
    logger.setLevel(logging.INFO)
    return Logged()


def print_paths(paths: Mapping[str, Path]) -> None:
    """Print what was written, a line each."""
    for name, path in paths.items():
        print(f"{name + ':':<13}{path}")
