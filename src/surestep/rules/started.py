"""A learned first move around any rule."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from surestep.problem import Oracle, Vector
from surestep.rules.base import Rule
from surestep.rules.wrapper import StartsElsewhere


class Started(StartsElsewhere):
    """A rule with a learned warm start: it begins at a learned distance from the problem's start.

    What instances have in common (a fixed start far from all minima, weights that suit a whole
    family of fits) is learned once instead of being found again on every instance. A shift of 0
    gives exactly the inner rule. A rollout's first loss is the one at the shifted start.

    **Arguments:**

    - `rule`: the inner rule.
    - `shift`: what is added to the flattened start; learned.

    ```python
    import surestep as ss

    rule = ss.rules.Started.around(ss.rules.LBFGS(), dimension=20)
    ```
    """

    rule: Rule
    shift: Float[Array, " n"]

    @classmethod
    def around(cls, rule: Rule, dimension: int) -> "Started":
        """The rule as it is: no shift."""
        return cls(rule, jnp.zeros(dimension))

    def start(self, oracle: Oracle, x: Vector) -> Vector:
        """The shifted point."""
        return x + self.shift
