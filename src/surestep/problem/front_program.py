"""The two halves of a loss: x to the front, and from the front to the loss.

Both are programs that JAX can trace, made by running the steps of the traced loss.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Scalar

from surestep.problem.base import Problem, Theta
from surestep.problem.degrees import THETA, X
from surestep.problem.flat_program import FlatProgram, Step, perform
from surestep.problem.front_plan import STILL, Body, Loop, Plan, plan_of

Values = dict[int, Any]
Front = Any
"""The front's values: of a program, and of each of its loops, where they are rows."""


@dataclasses.dataclass(frozen=True)
class FrontProgram:
    """A loss `outer(theta, values(x, theta))`, where `values` is affine in the flat vector x.

    What is proved by the traced program: the linear part of `values` is the same for every theta.
    """

    size: int
    """How many numbers the front has."""
    values: Callable[[Float[Array, " n"], Theta], Float[Array, " m"]]
    outer: Callable[..., Scalar]
    """Of theta and the front, which may be given in several pieces."""


def front_program(problem: Problem, theta: Theta) -> FrontProgram | None:
    """Trace a problem's loss, and cut it where it stops to be affine; None if that is nowhere.

    Only theta's shapes matter. The same problem is always cut in the same way.
    """
    form = jax.eval_shape(problem.start, theta)
    zero, unravel = ravel_pytree(jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), form))

    def loss(x: Float[Array, " n"], theta: Theta) -> Scalar:
        return problem.loss(unravel(x), theta)

    program = jax.make_jaxpr(loss)(zero, theta)
    plan = plan_of(program, [X, *[THETA] * len(jax.tree.leaves(theta))])
    if plan is None:
        return None

    def front(x: Float[Array, " n"], theta: Theta) -> Front:
        return _advance(plan, dict(zip(plan.flat.inputs, [x, *_leaves(theta)], strict=True)))[1]

    shape = jax.eval_shape(front, zero, theta)
    leaves = jax.tree.leaves(shape)
    if not leaves or any(leaf.dtype != zero.dtype for leaf in leaves):
        return None

    def outer(theta: Theta, *pieces: Float[Array, " _"]) -> Scalar:
        known = dict(zip(plan.flat.inputs[1:], _leaves(theta), strict=True))
        return _finish(plan, known, _unravel(shape, pieces))[plan.flat.outputs[0]]

    def values(x: Float[Array, " n"], theta: Theta) -> Float[Array, " m"]:
        return ravel_pytree(front(x, theta))[0]

    return FrontProgram(sum(math.prod(leaf.shape) for leaf in leaves), values, outer)


def _leaves(theta: Theta) -> list[Any]:
    return [jnp.asarray(leaf) for leaf in jax.tree.leaves(theta)]


def _unravel(shape: Front, pieces: Sequence[Float[Array, " _"]]) -> Front:
    leaves, structure = jax.tree.flatten(shape)
    first, found = 0, []
    for leaf in leaves:
        size = math.prod(leaf.shape)
        found.append(jnp.reshape(_cut(pieces, first, first + size), leaf.shape))
        first += size
    return jax.tree.unflatten(structure, found)


def _cut(pieces: Sequence[Float[Array, " _"]], first: int, last: int) -> Float[Array, " _"]:
    """A part of a vector that is given in pieces; what is within one piece touches no other."""
    begun = 0
    for piece in pieces:
        if begun <= first and last <= begun + piece.size:
            whole = (first, last) == (begun, begun + piece.size)
            return piece if whole else piece[first - begun : last - begun]
        begun += piece.size
    return jnp.concatenate(pieces)[first:last]


def _advance(plan: Plan, given: Values) -> tuple[Values, Front]:
    """Run a program as it is, and read off the front on the way."""
    known, inner = plan.flat.constants | given, {}
    for number, step in enumerate(plan.flat.steps):
        taken = [known[name] for name in step.inputs]
        if number in plan.loops:
            made, inner[number] = _advance_loop(plan.loops[number], step, taken)
        else:
            made = perform(step, taken)
        known.update(zip(step.outputs, made, strict=True))
    return known, ([known[name] for name in plan.fronts], inner)


def _advance_loop(loop: Loop, step: Step, taken: list[Any]) -> tuple[list[Any], Front]:
    body, flat = loop.body, loop.body.flat
    fixed = dict(zip(flat.inputs, taken[: body.first], strict=False))

    def turn(carried: list[Any], rows: list[Any]) -> Any:
        changing = dict(zip(flat.inputs[body.first :], [*carried, *rows], strict=True))
        known, front = _advance(loop.plan, fixed | changing)
        made = [known[name] for name in flat.outputs]
        return made[: len(carried)], (made[len(carried) :], front)

    ended, (rows, front) = _scan(step, turn, taken[body.first : body.last], taken[body.last :])
    return [*ended, *rows], front


def _scan(step: Step, turn: Callable, carried: Any, rows: Any) -> Any:
    options = step.operation.params
    return jax.lax.scan(turn, carried, rows, options["length"], reverse=options["reverse"])


def _finish(plan: Plan, given: Values, front: Front) -> Values:
    """Run what is left of a program, when the front's values are given."""
    own, inner = front
    fronts = dict(zip(plan.fronts, own, strict=True))
    known = plan.flat.constants | given | fronts
    for number in plan.live:
        step = plan.flat.steps[number]
        if number in plan.loops:
            made = _finish_loop(plan.loops[number], step, known, inner[number])
        else:
            done = perform(step, [known[name] for name in step.inputs])
            made = dict(zip(step.outputs, done, strict=True))
        known |= made | {name: value for name, value in fronts.items() if name in made}
    return known


def _finish_loop(loop: Loop, step: Step, known: Values, front: Front) -> Values:
    """All turns at once; what is still goes round before."""
    body, flat, needs = loop.body, loop.body.flat, loop.plan.needs
    outside = dict(zip(flat.inputs, step.inputs, strict=True))
    rows = {name: known[outside[name]] for name in flat.inputs[body.last :] if name in needs}
    fixed = {name: known[outside[name]] for name in flat.inputs[: body.first] if name in needs}
    ended: Values = {}
    if loop.turns:
        ended, before = _turn_still(body, step, known, outside)
        rows |= {name: value for name, value in before.items() if name in needs}
    carried = len(body.carried)
    sums = {place: body.sums[place] for place in loop.wanted if place in body.sums}
    listed = [place for place in loop.wanted if place >= carried]

    def one(rows: Values, front: Front) -> Any:
        found = _finish(loop.plan, fixed | rows, front)
        added = {
            place: sum(sign * found[name] for sign, name in terms) for place, terms in sums.items()
        }
        return added, {place: found[flat.outputs[place]] for place in listed}

    added, made = jax.vmap(one, axis_size=step.operation.params["length"])(rows, front)
    for place, terms in added.items():
        made[place] = known[step.inputs[body.first + place]] + jnp.sum(terms, axis=0)
    for place in loop.wanted:
        if place < carried and place not in sums:
            made[place] = ended[place]
    return {step.outputs[place]: value for place, value in made.items()}


def _turn_still(
    body: Body, step: Step, known: Values, outside: Mapping[int, int]
) -> tuple[Values, Values]:
    """The still values that go round: in the end, by place, and before every turn, by name."""
    flat, kinds = body.flat, body.kinds

    def still(names: tuple[int, ...]) -> Values:
        return {name: known[outside[name]] for name in names if kinds[name] == STILL}

    fixed, rows = still(flat.inputs[: body.first]), still(flat.inputs[body.last :])
    begun = still(flat.inputs[body.first : body.last])
    following = {flat.inputs[body.first + i]: flat.outputs[i] for i in range(len(body.carried))}

    def turn(carried: Values, rows: Values) -> tuple[Values, Values]:
        found = _run_still(flat, kinds, fixed | carried | rows)
        return {name: found[following[name]] for name in carried}, carried

    ended, before = _scan(step, turn, begun, rows)
    places = {flat.inputs[place]: place - body.first for place in body.carried}
    return {places[name]: value for name, value in ended.items()}, before


def _run_still(flat: FlatProgram, kinds: Mapping[int, str], given: Values) -> Values:
    """Those steps of a program that need still values only."""
    known = flat.constants | given
    for step in flat.steps:
        if all(kinds[name] == STILL for name in step.inputs):
            made = perform(step, [known[name] for name in step.inputs])
            known.update(zip(step.outputs, made, strict=True))
    return known
