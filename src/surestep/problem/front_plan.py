"""Where a traced loss stops to be affine in x, and what is left to compute from there on.

Values are still (without x), affine in x with a linear part that theta does not change, or bent.
The front are the affine values that a bent one is computed from. A loop whose bent values do not
go round (a sum of costs may) needs no order once its fronts are known: all its turns at once.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

from surestep.problem.degrees import ABSENT, FREE, Found, constant, loop_parts, results
from surestep.problem.flat_program import FlatProgram, Step, flatten

STILL, AFFINE, BENT = "still", "affine", "bent"
_Term = tuple[int, int]  # a sign, and a value's number


@dataclasses.dataclass(frozen=True)
class Body:
    """A loop's body, with what is known of its values."""

    flat: FlatProgram
    kinds: dict[int, str]
    bodies: dict[int, "Body"]
    first: int
    """How many inputs stay the same in all turns; those that go round come next."""
    last: int
    """The number of the first input that is a row of an array."""
    sums: dict[int, tuple[_Term, ...]]
    """The terms that a turn adds to a value that goes round, for those that only add up."""

    @property
    def carried(self) -> range:
        """The places of the inputs that go round."""
        return range(self.first, self.last)


@dataclasses.dataclass(frozen=True)
class Plan:
    """What is to be computed, when the values of the front are given."""

    flat: FlatProgram
    live: tuple[int, ...]
    """The steps that are still needed."""
    fronts: tuple[int, ...]
    """The front's values, in the order in which they are needed; those in loops are not here."""
    loops: dict[int, "Loop"]
    needs: frozenset[int]
    """The values that are needed, other than affine ones."""


@dataclasses.dataclass(frozen=True)
class Loop:
    """The same for a loop."""

    body: Body
    plan: Plan
    wanted: tuple[int, ...]
    """The places of the step's results that are needed."""
    turns: bool
    """Whether still values that go round are needed, so that they must go round first."""


def plan_of(program: Any, given: Sequence[Found]) -> Plan | None:
    """The plan of a program that returns a single bent number, or None."""
    flat = flatten(program)
    kinds, bodies = _spread(flat, given)
    (result,) = flat.outputs
    if result in flat.constants or kinds[result] != BENT:
        return None
    return _plan(flat, kinds, bodies, [result])


def _kind(found: Found) -> str:
    if found is None or found.root or found.powers[2] > ABSENT or found.powers[1] > FREE:
        return BENT
    return AFFINE if found.powers[1] == FREE else STILL


def _spread(flat: FlatProgram, given: Sequence[Found]) -> tuple[dict[int, str], dict[int, Body]]:
    """What is known of a program's values, and the loops whose turns need no order."""
    found = dict(zip(flat.inputs, given, strict=True))
    found |= {name: constant(value) for name, value in flat.constants.items()}
    bodies = {}
    for number, step in enumerate(flat.steps):
        arguments = [found[name] for name in step.inputs]
        made = results(step.operation, arguments)
        if any(_kind(argument) != STILL for argument in arguments):
            if step.name == "scan":
                body = _body(step, arguments, made)
                if body is not None:
                    bodies[number] = body
            # Whatever is still can be computed from still values alone.
            made = [None if _kind(one) == STILL else one for one in made]
        found.update(zip(step.outputs, made, strict=True))
    return {name: _kind(one) for name, one in found.items()}, bodies


def _body(step: Step, given: Sequence[Found], made: Sequence[Found]) -> Body | None:
    """A loop's body, if nothing bent goes round but sums."""
    options = step.operation.params
    first, last = loop_parts(step.operation)
    round_ = list(made[: last - first])  # what these values are after any number of turns
    flat = flatten(options["jaxpr"])
    kinds, bodies = _spread(flat, [*given[:first], *round_, *given[last:]])
    sums: dict[int, tuple[_Term, ...]] = {}
    for place, found in enumerate(round_):
        begun, ended = flat.inputs[first + place], flat.outputs[place]
        if _kind(found) == BENT:
            terms = _terms(flat, begun, ended)
            if terms is None:
                return None
            sums[place] = terms
        elif kinds[ended] == BENT or (_kind(found) == STILL and kinds[ended] == AFFINE):
            return None
    return Body(flat, kinds, bodies, first, last, sums)


def _terms(flat: FlatProgram, begun: int, ended: int) -> tuple[_Term, ...] | None:
    """What is added to a value in a turn, if it is used for nothing else."""
    terms: list[_Term] = []
    while begun != ended:
        users = [step for step in flat.steps if begun in step.inputs]
        if len(users) != 1 or users[0].inputs.count(begun) != 1 or begun in flat.outputs:
            return None
        (step,) = users
        place = step.inputs.index(begun)
        if step.name in ("add", "add_any") or (step.name == "sub" and place == 0):
            terms.append((-1 if step.name == "sub" else 1, step.inputs[1 - place]))
        elif not _same_type(step):
            return None
        begun = step.outputs[0]
    alone = flat.outputs.count(ended) == 1 and not any(ended in step.inputs for step in flat.steps)
    return tuple(terms) if alone and terms else None


def _same_type(step: Step) -> bool:
    """Whether a step changes nothing but how a number's type was meant."""
    if step.name != "convert_element_type":
        return False
    return step.operation.params["new_dtype"] == step.operation.invars[0].aval.dtype


def _plan(
    flat: FlatProgram, kinds: dict[int, str], bodies: dict[int, Body], wanted: Sequence[int]
) -> Plan:
    """From what is wanted back to what it needs."""
    needed: set[int] = set()
    fronts: set[int] = set()

    def need(names: Sequence[int]) -> None:
        for name in names:
            if name not in flat.constants:
                (fronts if kinds[name] == AFFINE else needed).add(name)

    need(wanted)
    live, loops, uses = [], {}, list(wanted)
    for number in reversed(range(len(flat.steps))):
        step = flat.steps[number]
        asked = [place for place, name in enumerate(step.outputs) if name in needed]
        if not asked:
            continue
        live.append(number)
        taken = step.inputs
        if number in bodies:
            loops[number], places = _loop(bodies[number], asked)
            taken = tuple(step.inputs[place] for place in places)
        need(taken)
        uses.extend(reversed(taken))
    order = [name for name in dict.fromkeys(reversed(uses)) if name in fronts]
    return Plan(flat, tuple(reversed(live)), tuple(order), loops, frozenset(needed))


def _loop(body: Body, asked: Sequence[int]) -> tuple[Loop, list[int]]:
    """The plan of a loop, and the places of the inputs that it takes."""
    inputs, carried = body.flat.inputs, len(body.carried)
    wanted, begun, turns = [], [], False
    for place in asked:
        if place in body.sums:
            wanted += [name for _, name in body.sums[place]]
            begun.append(body.first + place)
        elif place < carried:
            turns = True
        else:
            wanted.append(body.flat.outputs[place])
    plan = _plan(body.flat, body.kinds, body.bodies, wanted)
    places = {place for place, name in enumerate(inputs) if name in plan.needs}
    turns = turns or any(place in body.carried for place in places)
    if turns:
        places |= {place for place, name in enumerate(inputs) if body.kinds[name] == STILL}
    return Loop(body, plan, tuple(asked), turns), sorted({*places, *begun})
