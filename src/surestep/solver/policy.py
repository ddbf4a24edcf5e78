"""Which rule solves: the deployed one, or rules that are drawn from the posterior."""

from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Array, Float, Int

from surestep.base.errors import ConfigurationError
from surestep.rules.base import Rule, hyper_of
from surestep.solver.posterior import Posterior

Policy = Literal["deployed", "posterior", "point"]
"""`deployed`: the deployed rule. `posterior`: a rule drawn from the posterior for each instance.
`point`: what version 0.1 calls the policy `deployed`; both words mean the same."""


def checked_policy(
    policy: Policy, posterior: Posterior | None, key: Array | None
) -> Literal["deployed", "posterior"]:
    """The policy under its one name, if the solver and the call have what it needs."""
    if policy not in ("deployed", "posterior", "point"):
        raise ConfigurationError(f"policy must be 'deployed' or 'posterior', not {policy!r}")
    if policy == "posterior" and posterior is None:
        raise ConfigurationError(
            "this solver has no posterior to draw from: use the policy 'deployed'"
        )
    if (policy == "posterior") != (key is not None):
        raise ConfigurationError(
            "a key goes with the policy 'posterior', which draws, and with no other"
        )
    return "posterior" if policy == "posterior" else "deployed"


class Draws(NamedTuple):
    """What was drawn for each instance."""

    hypers: Float[np.ndarray, "instance d"]
    chosen: Int[np.ndarray, " instance"]
    """The number of the posterior's sample."""


def drawn(rule: Rule, posterior: Posterior | None, key: Array | None, number: int) -> Draws | None:
    """A draw from the posterior for each instance; none for the deployed rule, which has no key."""
    if key is None or posterior is None:
        return None
    chosen = np.asarray(posterior.draw(key, number))
    return Draws(posterior.hypers.astype(hyper_of(rule).dtype)[chosen], chosen)
