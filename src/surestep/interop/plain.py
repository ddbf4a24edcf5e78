"""What a rule gets when there is no problem: a function to minimise, and nothing else."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jax.typing import DTypeLike
from jaxtyping import Array, Scalar

from surestep.base.errors import ConfigurationError
from surestep.problem import Oracle, Point, Problem, Theta
from surestep.rules.base import AnyRule, Rule, State, missing_needs
from surestep.rules.blocks import without_kernels

if TYPE_CHECKING:
    from surestep.run.learned import Learned


class FunctionProblem(Problem):
    """One function to minimise. The start takes theta's place: there is but one instance."""

    function: Callable[[Point], Scalar] = eqx.field(static=True)

    def sample(self, key: Array) -> Theta:
        """Not offered: a function is no family."""
        raise ConfigurationError("a function has no instances to draw: write a surestep.Problem")

    def start(self, theta: Theta) -> Point:
        """The point that was given."""
        return theta

    def loss(self, x: Point, theta: Theta) -> Scalar:
        """The function's value."""
        return self.function(x)


def rule_of(subject: "Rule | Learned") -> Rule:
    """The rule itself, or the deployed rule of something learned, in a fast form."""
    rule = subject if isinstance(subject, Rule) else subject.deployed
    wide = any(leaf.dtype == np.float64 for leaf in jax.tree.leaves(rule) if eqx.is_array(leaf))
    # What was learned in float64 is put together in float64, whatever the user's loop works in.
    with jax.enable_x64(wide or jnp.result_type(float) == np.float64):
        # Users may differentiate through their loop, and a kernel has no derivative.
        return without_kernels(rule.prepare())


def require_plain(rule: Rule, instead: str) -> None:
    """Refuse a rule that asks for more than a loss and its gradient, and say what would help."""
    missing = missing_needs(rule, FunctionProblem(_squares))
    if missing:
        raise ConfigurationError(
            f"{type(rule).__name__} needs more than a loss and its gradient: "
            f"{' and '.join(missing)}. {instead}"
        )


def in_precision(rule: AnyRule, dtype: DTypeLike) -> AnyRule:
    """The rule with its hyper in another precision."""
    learned, fixed = eqx.partition(rule, eqx.is_inexact_array)
    return eqx.combine(jax.tree.map(lambda leaf: leaf.astype(dtype), learned), fixed)


def initial_shapes(rule: Rule, point: Point) -> State:
    """The form of a rule's state at a point, computed without evaluating anything."""
    problem = FunctionProblem(_squares)

    def begin(point: Point) -> State:
        oracle = Oracle(problem, point)
        return rule.step(oracle.fresh(), rule.init(oracle, oracle.start))

    try:
        return jax.eval_shape(begin, point)
    except (TypeError, ValueError) as error:
        size = ravel_pytree(point)[0].size
        reason = str(error).splitlines()[0]
        raise ConfigurationError(
            f"{type(rule).__name__} does not fit a variable of {size} numbers: {reason}"
        ) from error


def _squares(point: Point) -> Scalar:
    flat = ravel_pytree(point)[0]
    return jnp.vdot(flat, flat)
