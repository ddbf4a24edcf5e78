"""A start that suits a whole family: where training on many of its instances at once ends.

Where instances have much in common (networks that learn the same kind of images), most of what
every solve does from the problem's start is the same. A point that is good for many instances on
the average is a better start for the next one. It is found on instances of its own: on those it
was made for it is too good, and a rule trained on them would learn nothing about new ones.
"""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Scalar

from surestep.base.errors import ConfigurationError
from surestep.base.keys import named_key
from surestep.problem import Problem, Theta, count, instance, working_precision
from surestep.problem.draw import draw


@dataclasses.dataclass(frozen=True)
class CommonStartSettings:
    """How long a start is trained, and on what."""

    instances: int = 25
    """Instances that the start is trained on; no data set contains them."""
    batch: int = 2
    """Instances whose mean loss each step goes down."""
    steps: int = 2_000
    """Steps of Adam."""
    learning_rate: float = 3e-3
    """The first step's learning rate; it falls to 0 along a cosine."""
    scale: float = 0.1
    """The problem's start is multiplied by this before: standard normal weights are too large."""

    def validate(self, where: str) -> None:
        """Refuse sizes that cannot work; `where` is the settings' own name."""
        for name in ("batch", "steps"):
            if getattr(self, name) < 1:
                raise ConfigurationError(f"{where}.{name} must be at least 1")
        if self.instances < self.batch:
            raise ConfigurationError(
                f"{where}.instances must be at least {where}.batch ({self.batch}), not "
                f"{self.instances}"
            )
        if not self.learning_rate > 0:
            raise ConfigurationError(
                f"{where}.learning_rate must be positive, not {self.learning_rate}"
            )


def common_start(
    where: str, settings: CommonStartSettings, problem: Problem, seed: int
) -> Float[Array, " n"]:
    """How far from the problem's start training on many instances ends.

    The problem's own start must not depend on the instance. `where` is the settings' name for
    messages.
    """
    settings.validate(where)
    thetas = draw(problem, settings.instances, named_key(seed, "data", "start"))
    with working_precision(problem):
        starts = jax.tree.leaves(jax.vmap(problem.start)(thetas))
        if not all(bool(jnp.all(leaf == leaf[0])) for leaf in starts):
            raise ConfigurationError(
                "a common start is for problems whose own start is the same for all instances"
            )
        shift = _trained(settings, problem, thetas, named_key(seed, "start"))
        if not bool(jnp.all(jnp.isfinite(shift))):
            raise ConfigurationError(
                f"training the common start diverges: try a smaller {where}.learning_rate"
            )
        return shift


@eqx.filter_jit
def _trained(
    settings: CommonStartSettings, problem: Problem, thetas: Theta, key: Array
) -> Float[Array, " n"]:
    first, structured = ravel_pytree(problem.start(instance(thetas, 0)))
    schedule = optax.cosine_decay_schedule(settings.learning_rate, settings.steps)
    adam = optax.adam(schedule)

    def mean_loss(x: Array, chosen: Array) -> Scalar:
        point = structured(x)
        each = jax.vmap(lambda theta: problem.loss(point, theta))
        return jnp.mean(each(instance(thetas, chosen)))

    def step(carry: tuple[Array, optax.OptState], key: Array) -> tuple[Any, None]:
        x, state = carry
        chosen = jax.random.choice(key, count(thetas), (settings.batch,), replace=False)
        updates, state = adam.update(jax.grad(mean_loss)(x, chosen), state)
        return (x + jnp.asarray(updates), state), None

    begun = settings.scale * first
    keys = jax.random.split(key, settings.steps)
    (x, _), _ = jax.lax.scan(step, (begun, adam.init(begun)), keys)
    return x - first
