"""What a user's functions become when JAX traces them: programs, which can be looked at.

A program is traced once and compiled once for each form of its arguments. What makes it differ
from trace to trace, leaves the compiled world or is very long costs more than it seems to.
"""

import collections
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np

import surestep
from surestep.base.errors import ProblemError
from surestep.problem import Theta

LONG, TOO_LONG = 1_000, 10_000
"""From how many operations on a program is worth a word, and from how many it is refused."""
_CALLBACKS = {
    "pure_callback": "calls back into Python (jax.pure_callback)",
    "io_callback": "calls back into Python (jax.experimental.io_callback)",
    "debug_callback": "prints or calls back while it runs (jax.debug)",
}


def program(function: Callable[..., Any], *arguments: Any) -> Any:
    """The traced program of a function, for arguments of these forms."""

    def anew(*given: Any) -> Any:
        # A function of its own each time: what was traced before is not found again.
        return function(*given)

    return jax.make_jaxpr(anew)(*arguments)


def same(first: Any, again: Any) -> bool:
    """Whether two traced programs are the same, their constants included."""
    if _text(first) != _text(again) or len(first.consts) != len(again.consts):
        return False
    pairs = zip(first.consts, again.consts, strict=True)
    arrays = ((np.asarray(a), np.asarray(b)) for a, b in pairs)
    return all(np.array_equal(a, b, equal_nan=a.dtype.kind == "f") for a, b in arrays)


def require_same(what: str, first: Any, again: Any) -> None:
    """Refuse a function that is traced into another program when it is traced again."""
    if not same(first, again):
        raise ProblemError(
            f"{what} becomes another program each time it is traced, and would be compiled again "
            "and again: it keeps something between calls (a global, a counter, a list that grows) "
            "or reads the clock. It must depend on its arguments alone"
        )


def require_short(what: str, found: Any) -> None:
    """Refuse a program that would take longer to compile than to learn."""
    number = sum(1 for _ in operations(found))
    if number > TOO_LONG:
        raise ProblemError(f"{what} is a program of {number} operations{_advice(found, number)}")


def notes(what: str, found: Any) -> list[str]:
    """What is slow about a program, and what to change."""
    counted = collections.Counter(eqn.primitive.name for eqn in operations(found))
    said = [
        f"{what} {words}: that leaves the compiled program at every evaluation, is slow, and "
        "cannot be exported; write it with jax.numpy"
        for name, words in _CALLBACKS.items()
        if counted[name]
    ]
    number = counted.total()
    if number > LONG:
        said.append(f"{what} is a program of {number} operations{_advice(found, number)}")
    return said


def weak(tree: Theta) -> bool:
    """Whether a number in a tree of arrays has no type of its own, like Python's."""
    return any(getattr(leaf, "weak_type", False) for leaf in jax.tree.leaves(tree))


def operations(found: Any) -> Iterator[Any]:
    """Every operation of a traced program, those inside loops and calls too, once each."""
    inner = getattr(found, "jaxpr", found)
    for eqn in inner.eqns:
        yield eqn
        for parameter in jax.tree.leaves(
            eqn.params, is_leaf=lambda leaf: hasattr(leaf, "eqns") or hasattr(leaf, "jaxpr")
        ):
            if hasattr(parameter, "eqns") or hasattr(parameter, "jaxpr"):
                yield from operations(parameter)


def _text(found: Any) -> str:
    # Functions print their address in memory, which differs from trace to trace.
    return re.sub(r"0x[0-9a-f]+", "", str(found.jaxpr))


def _advice(found: Any, number: int) -> str:
    lines = collections.Counter(filter(None, (_line(eqn) for eqn in operations(found))))
    most = lines.most_common(1)
    where = ""
    if most and 2 * most[0][1] > number:
        where = f", {most[0][1]} of them from {most[0][0]}"
    return (
        f"{where}: Python loops are laid out turn by turn, and every turn is compiled; use "
        "jax.lax.scan, jax.lax.fori_loop or an operation on whole arrays"
    )


def _line(eqn: Any) -> str:
    """The user's line that an operation comes from."""
    traceback = getattr(eqn.source_info, "traceback", None)
    inside = (str(Path(surestep.__file__).parent), "site-packages", "/lib/python", "<")
    for frame in getattr(traceback, "frames", ()):
        if not any(part in frame.file_name for part in inside):
            return f"{Path(frame.file_name).name}, line {frame.line_num}"
    return ""
