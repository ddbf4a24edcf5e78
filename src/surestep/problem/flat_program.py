"""Traced programs with their calls written out: a list of steps on numbered values.

Loops stay loops: a scan is one step, whose body is a flat program of its own.
"""

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

from surestep.problem.degrees import CALLS


@dataclasses.dataclass(frozen=True)
class Step:
    """One operation, and the numbers of the values that it takes and makes."""

    operation: Any
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]

    @property
    def name(self) -> str:
        """The operation's."""
        return self.operation.primitive.name


@dataclasses.dataclass(frozen=True)
class FlatProgram:
    """A program; a value's number is its name."""

    inputs: tuple[int, ...]
    constants: dict[int, Any]
    steps: tuple[Step, ...]
    outputs: tuple[int, ...]


def flatten(program: Any) -> FlatProgram:
    """Write out all calls of a traced program."""
    numbers, constants, steps = itertools.count(), {}, []

    def kept(value: Any) -> int:
        number = next(numbers)
        constants[number] = value
        return number

    def enter(program: Any, given: Sequence[int]) -> list[int]:
        inner = getattr(program, "jaxpr", program)
        names = dict(zip(inner.invars, given, strict=True))
        for variable, value in zip(inner.constvars, getattr(program, "consts", ()), strict=True):
            names[variable] = kept(value)

        def read(variable: Any) -> int:
            return kept(variable.val) if hasattr(variable, "val") else names[variable]

        for operation in inner.eqns:
            taken = [read(variable) for variable in operation.invars]
            called = _called(operation)
            if called is None:
                made = [next(numbers) for _ in operation.outvars]
                steps.append(Step(operation, tuple(taken), tuple(made)))
            else:
                made = enter(called, taken)
            names.update(zip(operation.outvars, made, strict=True))
        return [read(variable) for variable in inner.outvars]

    given = [next(numbers) for _ in getattr(program, "jaxpr", program).invars]
    returned = enter(program, given)
    return FlatProgram(tuple(given), constants, tuple(steps), tuple(returned))


def _called(operation: Any) -> Any:
    """The program that an operation calls, if it does nothing else."""
    if operation.primitive.name not in CALLS:
        return None
    program = operation.params.get("jaxpr", operation.params.get("call_jaxpr"))
    taken = len(getattr(program, "jaxpr", program).invars)
    return program if taken == len(operation.invars) else None


def perform(step: Step, values: Sequence[Any]) -> list[Any]:
    """What an operation makes of values; derivatives of its own are kept."""
    primitive = step.operation.primitive
    bound = primitive.get_bind_params(step.operation.params)
    # Some versions of JAX hand out the functions by themselves.
    functions, options = bound if isinstance(bound, tuple) else ((), bound)
    made = primitive.bind(*functions, *values, **options)
    return list(made) if primitive.multiple_results else [made]
