"""What tests share: float64, small tasks, and a counter of compilations."""

import contextlib
import gc
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

# Compiled programs are shared by all processes of a test run: the first to import this makes the
# folder, the others find it in their environment. JAX reads it when it is imported.
if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
    _cache = tempfile.TemporaryDirectory(prefix="surestep-compiled-")
    os.environ["JAX_COMPILATION_CACHE_DIR"] = _cache.name
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.1"

# Nothing is measured before a run: times would decide about the last bits.
os.environ.setdefault("SURESTEP_CACHE", "off")

# Annotations are checked while tests run, unless SURESTEP_TYPES is "off".
if os.environ.get("SURESTEP_TYPES", "on") != "off":
    from jaxtyping import install_import_hook

    from support.types import CHECKED

    install_import_hook(CHECKED, "support.types.checked")

import equinox as eqx
import jax

_MAPS = Path("/proc/self/maps")
_MANY_MAPS = 25_000
"""Linux allows a process 65 530 memory maps by default, and every compiled program takes some."""


@pytest.fixture(autouse=True, scope="module")
def few_compiled_programs() -> Iterator[None]:
    """Forget compiled programs before there are so many that compiling one more would crash."""
    yield
    if _MAPS.exists() and _MAPS.read_text().count("\n") > _MANY_MAPS:
        jax.clear_caches()
        eqx.clear_caches()
        gc.collect()


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
