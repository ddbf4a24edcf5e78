"""The points of a rollout, one by one: what adapters are compared with."""

import equinox as eqx
import jax
import numpy as np

from surestep.rollout.loop import advance, begin


def iterates(rule, problem, theta, iterations):
    """The start and every point after it, and the evaluations that were counted in all."""
    points, evaluations = _iterates(rule, problem, theta, iterations)
    return np.asarray(points), evaluations


@eqx.filter_jit
def _iterates(rule, problem, theta, iterations):
    rule = rule.prepare()

    def body(progress, _):
        following = advance(rule, problem, theta, progress)
        return following, progress.state.x

    first = begin(rule, problem, theta)
    last, points = jax.lax.scan(body, first, None, length=iterations)
    return jax.numpy.concatenate([points, last.state.x[None]]), last.evaluations
