"""In which form bounded values are certified: what the pilot's forecast finds tightest.

Forms, bets and where losses are clipped may be any function of the prior set. The train set
decides none of them.
"""

import dataclasses
from typing import TypeVar

import numpy as np

from surestep.bounds.betting import tuned_bets
from surestep.bounds.budget import Share
from surestep.certify.certificate import rounded_up
from surestep.certify.claims import AnyClaim, Basis, ClippedLoss
from surestep.certify.claims.base import BoundedClaim, BoundedForm
from surestep.certify.evidence import Evidence
from surestep.certify.pilot import Pilot
from surestep.certify.plan import Plan
from surestep.certify.settings import BEST, CertifySettings

Bounded = TypeVar("Bounded", bound=BoundedClaim)

_QUANTILES = (0.9, 0.95, 0.98)
_BEYOND = (1.0, 1.5, 2.0, 3.0)
"""Where losses may be clipped: at quantiles of the pilot's, and at its largest and beyond."""

_FREE = 1.03
"""A larger constant says more. It is taken if it leaves at most so many times as much unsaid."""


def forecast_basis(plan: Plan, pilot: Pilot, weight: float) -> Basis:
    """What statements would be computed from if the train set looked like the pilot.

    The favourite alone, at the level that its prior weight leaves it.
    """
    terms = dataclasses.replace(
        plan,
        log_prior=(0.0,),
        shares=tuple(Share(one.name, one.epsilon * weight) for one in plan.shares),
    )
    return Basis(terms, pilot.forecast(plan.train_size), np.zeros(1), 0)


def tightest(settings: CertifySettings, plan: Plan, pilot: Pilot, weight: float) -> Plan:
    """The plan with its claims about bounded values as its shares of epsilon make them tightest."""
    basis = forecast_basis(plan, pilot, weight)

    def settled(claim: AnyClaim) -> AnyClaim:
        if isinstance(claim, ClippedLoss):
            return _best_constant(settings, claim, basis, pilot.evidence)
        if isinstance(claim, BoundedClaim):
            return _best_form(settings, claim, basis, pilot.evidence)
        return claim

    return dataclasses.replace(plan, claims=tuple(settled(claim) for claim in plan.claims))


def _best_form(settings: CertifySettings, claim: Bounded, basis: Basis, seen: Evidence) -> Bounded:
    """The claim in the form whose bound is forecast to be the smallest; of equals, the simplest."""
    allowed: tuple[BoundedForm, ...] = (
        ("chernoff", "betting") if settings.form == BEST else (settings.form,)
    )
    forms = [in_form(form, claim, basis, seen) for form in allowed]
    return min(forms, key=lambda one: _upper(one, basis))


def in_form(form: BoundedForm, claim: Bounded, basis: Basis, seen: Evidence) -> Bounded:
    """The claim in a form, with bets that are tuned on what was seen of the favourite."""
    if form != "betting":
        return dataclasses.replace(claim, form=form, bets=())
    terms = basis.terms
    level = float(np.log(terms.ledger.of(claim.name)))
    bets = tuned_bets(claim.values(terms, seen)[0, 0], terms.train_size, level)
    return dataclasses.replace(claim, form=form, bets=bets)


def _upper(claim: BoundedClaim, basis: Basis) -> float:
    """The forecast of the bound on the mean of its values."""
    return float(claim.uppers(basis)[0][0])


def _best_constant(
    settings: CertifySettings, claim: ClippedLoss, basis: Basis, seen: Evidence
) -> ClippedLoss:
    """The claim with the constant that leaves least unsaid.

    That is how far the bound lies above the clipped mean, and what clipping has taken from it. Of
    constants that do almost as well the largest is taken: less of what is still to come is clipped.
    """
    losses = claim.measured(seen)[0]
    finite = losses[np.isfinite(losses)]
    largest = float(finite.max()) if finite.size else 0.0
    if not largest > 0:
        return _best_form(settings, claim, basis, seen)
    shares = [float(np.quantile(finite, share)) for share in _QUANTILES]
    beyond = [largest * factor for factor in _BEYOND]
    constants = sorted({float(rounded_up(c, 3)) for c in (*shares, *beyond) if 0 < c < np.inf})
    options = [
        _best_form(settings, dataclasses.replace(claim, largest=constant), basis, seen)
        for constant in constants
    ]
    whole = float(np.mean(np.minimum(losses, largest)))
    bounds = [one.number(_upper(one, basis)) for one in options]
    clipped = [one.number(float(one.means(basis.terms, seen)[0, 0])) for one in options]
    unsaid = [bound - 2 * mean + whole for bound, mean in zip(bounds, clipped, strict=True)]
    return options[max(i for i, cost in enumerate(unsaid) if cost <= _FREE * min(unsaid))]
