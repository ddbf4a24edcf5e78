"""What tests share: float64, small tasks, and a counter of compilations."""

import contextlib
from collections.abc import Iterator
from typing import Any

import jax
import pytest


@pytest.fixture(autouse=True)
def double_precision() -> Iterator[None]:
    with jax.enable_x64(True):
        yield


class Compilations:
    """Counts what XLA compiles while a block runs."""

    def __init__(self) -> None:
        self.count = 0

    def listen(self, event: str, duration_secs: float, **_: Any) -> None:
        if event == "/jax/core/compile/backend_compile_duration":
            self.count += 1


_listeners: list[Compilations] = []


def _tell(event: str, duration_secs: float, **facts: Any) -> None:
    for listener in _listeners:
        listener.listen(event, duration_secs, **facts)


jax.monitoring.register_event_duration_secs_listener(_tell)


@pytest.fixture
def compilations():
    @contextlib.contextmanager
    def counting() -> Iterator[Compilations]:
        counter = Compilations()
        _listeners.append(counter)
        try:
            yield counter
        finally:
            _listeners.remove(counter)

    return counting
