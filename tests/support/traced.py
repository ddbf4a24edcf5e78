"""A rollout iteration by iteration, compiled once for rules of one structure."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from surestep.rollout.loop import Progress, advance, begin


def trace(rule, problem, theta, iterations):
    """Points, losses and counts of gradients and values, the start first."""
    return jax.tree.map(np.asarray, _trace(rule, problem, theta, iterations))


@eqx.filter_jit
def _trace(rule, problem, theta, iterations):
    def seen(progress: Progress):
        counts = progress.evaluations
        return progress.state.x, progress.loss, counts.gradients, counts.values

    def body(progress, _):
        progress = advance(rule, problem, theta, progress)
        return progress, seen(progress)

    first = begin(rule, problem, theta)
    _, rest = jax.lax.scan(body, first, None, length=iterations)
    return jax.tree.map(lambda a, b: jnp.concatenate([a[None], b]), seen(first), rest)
