"""How many floating point operations an iteration takes, counted in two ways.

By hand, so to speak: the matrix products and convolutions that the traced program contains, from
their shapes. And by XLA: the cost analysis of the compiled program, which counts sums and
elementwise operations too. One iteration on one instance is counted, where there are no loops.
"""

import math
from typing import Any

import equinox as eqx
import jax

from surestep.problem.base import Problem, Theta
from surestep.problem.draw import working_precision
from surestep.rollout.loop import Progress, advance, begin
from surestep.rules.base import Rule


def iteration_flops(rule: Rule, problem: Problem, theta: Theta) -> tuple[float, float]:
    """Operations of an iteration: of products alone, and of the whole compiled program."""

    def step(rule: Rule, problem: Problem, theta: Theta, now: Progress) -> Progress:
        return advance(rule, problem, theta, now)

    with working_precision(problem):
        ready = eqx.filter_jit(lambda rule: rule.prepare())(rule)
        first = eqx.filter_jit(begin)(ready, problem, theta)
        traced: Any = eqx.filter_make_jaxpr(step)(ready, problem, theta, first)[0]
        program: Any = eqx.filter_jit(step)
        compiled = program.lower(ready, problem, theta, first).compile().compiled
    return product_flops(traced.jaxpr), float(compiled.cost_analysis()["flops"])


def product_flops(jaxpr: Any) -> float:
    """Two operations for every multiplication in the products and convolutions of a program."""
    total = 0.0
    for equation in jaxpr.eqns:
        name = equation.primitive.name
        if name == "dot_general":
            total += _dot_flops(equation)
        elif name == "conv_general_dilated":
            total += _convolution_flops(equation)
        turns = equation.params["length"] if name == "scan" else 1
        total += turns * sum(product_flops(inner) for inner in _inner(equation.params))
    return total


def _dot_flops(equation: Any) -> float:
    (contracted, _), _ = equation.params["dimension_numbers"]
    left = equation.invars[0].aval.shape
    depth = math.prod(left[axis] for axis in contracted)
    return 2.0 * math.prod(equation.outvars[0].aval.shape) * depth


def _convolution_flops(equation: Any) -> float:
    kernel = equation.invars[1].aval.shape
    outputs = equation.params["dimension_numbers"].rhs_spec[0]
    return 2.0 * math.prod(equation.outvars[0].aval.shape) * math.prod(kernel) / kernel[outputs]


def _inner(params: dict[str, Any]) -> list[Any]:
    """The programs inside an operation (a call, a branch, a loop), of which branches are added."""
    found = []
    for leaf in jax.tree.leaves(list(params.values()), is_leaf=_is_program):
        if _is_program(leaf):
            found.append(getattr(leaf, "jaxpr", leaf))
    return found


def _is_program(value: Any) -> bool:
    return hasattr(value, "eqns") or hasattr(getattr(value, "jaxpr", None), "eqns")
