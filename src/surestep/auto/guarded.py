"""A user's functions, called with care: an error in them becomes a sentence."""

import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import surestep
from surestep.auto.files import brief
from surestep.base.errors import ProblemError, SurestepError

Result = TypeVar("Result")


def guarded(what: str, call: Callable[[], Result]) -> Result:
    """Call a user's function; an error in it becomes a sentence."""
    try:
        return call()
    except SurestepError:
        raise
    except Exception as error:
        raise ProblemError(f"{what} fails{_place(error)}: {_explain(error)}") from error


def _place(error: BaseException) -> str:
    """The last line of the user's own code that an error went through."""
    inside = (str(Path(surestep.__file__).parent), "site-packages", "<frozen", "<string")
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if (
            not any(part in frame.filename for part in inside)
            and "/lib/python" not in frame.filename
        ):
            return f" ({Path(frame.filename).name}, line {frame.lineno})"
    return ""


def _explain(error: BaseException) -> str:
    """What an error of JAX means for the person who wrote the function."""
    kind = type(error).__name__
    if kind == "TracerArrayConversionError":
        return (
            "it gives a traced value to NumPy, which cannot be compiled: use jax.numpy in place of "
            "numpy"
        )
    if kind in (
        "TracerBoolConversionError",
        "ConcretizationTypeError",
        "TracerIntegerConversionError",
    ):
        return (
            "it decides with Python (if, while, int(), float(), range()) on a value that is only "
            "known when the program runs: use jnp.where, jax.lax.cond or jax.lax.scan"
        )
    if kind == "NonConcreteBooleanIndexError":
        return (
            "it selects with a mask, whose size is not fixed: use jnp.where or multiply by the mask"
        )
    if "callback" in str(error).lower() and isinstance(error, ValueError):
        return (
            "it calls back into Python (jax.pure_callback), which cannot be differentiated and is "
            "slow: write it with jax.numpy"
        )
    if kind == "UnexpectedTracerError":
        return "it keeps a traced value for later (in a global or an attribute): return it instead"
    return brief(error)
