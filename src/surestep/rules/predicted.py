"""A start that is predicted from the instance, around any rule."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Int

from surestep.problem import Oracle, Theta, Vector
from surestep.rules.base import Rule
from surestep.rules.wrapper import StartsElsewhere


def features_of(theta: Theta) -> Float[Array, " feature"]:
    """The numbers that make an instance, as one vector; whole numbers are left out."""
    numbers = eqx.filter(theta, eqx.is_inexact_array)
    if not jax.tree.leaves(numbers):
        return jnp.zeros(0)
    return ravel_pytree(numbers)[0]


class Predicted(StartsElsewhere):
    """A rule with a warm start that is predicted from the instance, by an affine function.

    Where solutions depend on the data in a simple way (the state of a controlled system, the
    weights of a fit), most of the work is done before the first iteration. The prediction is
    `unit * (bias + weights @ features)` away from the problem's start; features are the instance's
    numbers divided by powers of two, so that all are about as large. Zeros give exactly the inner
    rule. The shifted point is put through the proximal map, so that it meets constraints.
    A rollout's first loss is the one there.

    **Arguments:**

    - `rule`: the inner rule.
    - `bias`: the shift that all instances share; learned.
    - `weights`: what every feature adds to it; learned. Without features it is one shift for all.
    - `exponents`: the powers of two that features are divided by.
    - `unit`: the size of a shift.
    - `prox_step`: the step of the proximal map that the start is put through.

    ```python
    import surestep as ss

    rule = ss.rules.Predicted.around(ss.rules.LBFGS(), dimension=20, features=5)
    ```
    """

    rule: Rule
    bias: Float[Array, " n"]
    weights: Float[Array, "n feature"]
    exponents: Int[Array, " feature"]
    unit: float = 1.0
    prox_step: float = 1.0

    @classmethod
    def around(
        cls,
        rule: Rule,
        dimension: int,
        features: int = 0,
        unit: float = 1.0,
        prox_step: float = 1.0,
    ) -> "Predicted":
        """The rule as it is: every start stays where it is."""
        none = jnp.zeros((dimension, features))
        exponents = jnp.zeros(features, jnp.int32)
        return cls(rule, jnp.zeros(dimension), none, exponents, unit, prox_step)

    def start(self, oracle: Oracle, x: Vector) -> Vector:
        """The predicted point."""
        shift = self.bias
        if self.exponents.size:
            shift = shift + self.weights @ jnp.ldexp(features_of(oracle.theta), -self.exponents)
        return oracle.prox(x + self.unit * shift, self.prox_step)
