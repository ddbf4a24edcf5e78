"""What XLA compiles: a counter, and room for more."""

import contextlib
import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import equinox as eqx
import jax

_MAPS = Path("/proc/self/maps")
_MANY_MAPS = 25_000
"""Linux allows a process 65 530 memory maps by default, and every compiled program takes some."""


def forget_if_many() -> None:
    """Forget compiled programs before there are so many that compiling one more would crash."""
    if _MAPS.exists() and _MAPS.read_text().count("\n") > _MANY_MAPS:
        jax.clear_caches()
        eqx.clear_caches()
        gc.collect()


class Compilations:
    """How many programs were compiled while a block ran."""

    def __init__(self) -> None:
        self.count = 0


_listeners: list[Compilations] = []


def _tell(event: str, duration_secs: float, **_: Any) -> None:
    if event == "/jax/core/compile/backend_compile_duration":
        for listener in _listeners:
            listener.count += 1


jax.monitoring.register_event_duration_secs_listener(_tell)


@contextlib.contextmanager
def counting() -> Iterator[Compilations]:
    """Count what XLA compiles inside a block."""
    counter = Compilations()
    _listeners.append(counter)
    try:
        yield counter
    finally:
        _listeners.remove(counter)
