"""What all tests share: their environment, float64, a counter of compilations, and what is slow."""

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from importlib.metadata import version

import pytest

from support import session

session.prepare(version("jaxlib"))

# Annotations are checked in the second half of `make test-all`; it takes a third more time.
if os.environ.get("SURESTEP_TYPES", "off") == "on":
    from jaxtyping import install_import_hook

    from support.types import CHECKED

    install_import_hook(CHECKED, "support.types.checked")

# JAX reads its environment when it is imported.
import jax  # noqa: E402

from support.compiling import Compilations, counting, forget_if_many  # noqa: E402


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what only `make test-all` runs."""
    if session.ALL:
        return
    slow = [item for item in items if item.get_closest_marker("slow")]
    config.hook.pytest_deselected(items=slow)
    items[:] = [item for item in items if not item.get_closest_marker("slow")]


@pytest.fixture(autouse=True, scope="module")
def few_compiled_programs() -> Iterator[None]:
    yield
    forget_if_many()


@pytest.fixture(autouse=True)
def double_precision() -> Iterator[None]:
    with jax.enable_x64(True):
        yield


@pytest.fixture
def compilations() -> Callable[[], AbstractContextManager[Compilations]]:
    return counting
