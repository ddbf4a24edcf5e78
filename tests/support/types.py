"""The type checker of test runs: beartype, but for what it cannot look at."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from beartype import BeartypeConf, beartype
from beartype.roar import BeartypeDecorHintPep673Exception, BeartypeDecorHintPep3119Exception
from jaxtyping import config

ROOMS = (
    "base storage bounds problem rules rollout train certify evaluate solver run report interop "
    "auto cli"
)
CHECKED = tuple(f"surestep.{room}" for room in ROOMS.split())
"""The rooms whose annotations are checked: all but the paper's problems, which tests evaluate on
NumPy's arrays too."""

# As everywhere in Python's typing, a whole number is a float.
_beartype = beartype(conf=BeartypeConf(is_pep484_tower=True))


def checked(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with its arguments and its result checked against their annotations.

    beartype refuses `Self` where it is given a method without its class, and protocols that are
    not marked as `runtime_checkable`: such functions stay as they are.
    """
    try:
        return _beartype(function)
    except (BeartypeDecorHintPep673Exception, BeartypeDecorHintPep3119Exception):
        return function


@contextlib.contextmanager
def unchecked() -> Iterator[None]:
    """For tests that hand over something of a wrong type, to see it refused by surestep itself."""
    config.update("jaxtyping_disable", True)
    try:
        yield
    finally:
        config.update("jaxtyping_disable", False)
