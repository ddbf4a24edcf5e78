"""A start that a small network predicts from the instance, around any rule."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from surestep.problem import Oracle, Vector
from surestep.rules.base import Fixed, Rule, product
from surestep.rules.predicted import features_of
from surestep.rules.wrapper import StartsElsewhere


class NetworkStart(StartsElsewhere):
    """A rule with a warm start from an affine function and a network with one hidden layer.

    The network was fitted to solved instances before, so its weights are no part of the hyper. The
    start is `x + bias + weights @ f + outer @ relu(inner @ f + thresholds)` for the problem's start
    `x` and the instance's numbers `f`, put through the proximal map, so that it meets constraints.
    Products are computed in the precision of the weights: a start needs few digits.

    **Arguments:**

    - `rule`: the inner rule.
    - `bias`, `weights`: the affine function.
    - `inner`, `thresholds`, `outer`: the network.
    - `prox_step`: the step of the proximal map that the start is put through.

    ```python
    import jax.numpy as jnp
    import surestep as ss

    rule = ss.rules.NetworkStart(
        ss.rules.LBFGS(),
        bias=ss.rules.Fixed(jnp.zeros(20)),
        weights=ss.rules.Fixed(jnp.zeros((20, 5))),
        inner=ss.rules.Fixed(jnp.zeros((8, 5))),
        thresholds=ss.rules.Fixed(jnp.zeros(8)),
        outer=ss.rules.Fixed(jnp.zeros((20, 8))),
    )
    ```
    """

    rule: Rule
    bias: Fixed
    weights: Fixed
    inner: Fixed
    thresholds: Fixed
    outer: Fixed
    prox_step: float = 1.0

    def start(self, oracle: Oracle, x: Vector) -> Vector:
        """The predicted point."""
        features = features_of(oracle.theta)
        shift = self.bias.array + product(self.weights.array, features).astype(x.dtype)
        hidden: Float[Array, " hidden"] = product(self.inner.array, features)
        hidden = jax.nn.relu(hidden + self.thresholds.array)
        shift = shift + product(self.outer.array, hidden).astype(x.dtype)
        return oracle.prox(x + jnp.asarray(shift, x.dtype), self.prox_step)
