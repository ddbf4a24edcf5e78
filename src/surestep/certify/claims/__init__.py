"""Claims: what is going to be certified, fixed before a train loss exists. One class a kind."""

from typing import get_args

from surestep.certify.claims.against import Advantage, Better, Saving, Sooner
from surestep.certify.claims.at import MissedAt
from surestep.certify.claims.base import EARLIER, Asserted, Basis, Claim, MeanClaim, Terms, Truth
from surestep.certify.claims.foretold import Foretold
from surestep.certify.claims.levels import LossLevels
from surestep.certify.claims.loss import ClippedLoss, GoalMissed, ShareOfGoal, UserStatistic
from surestep.certify.claims.strata import InStratum
from surestep.certify.claims.sublevel import LossWhereReached
from surestep.certify.claims.within import Within

__all__ = [
    "EARLIER",
    "KINDS",
    "Advantage",
    "AnyClaim",
    "Asserted",
    "Basis",
    "Better",
    "Claim",
    "ClippedLoss",
    "Foretold",
    "GoalMissed",
    "InStratum",
    "LossLevels",
    "LossWhereReached",
    "MeanClaim",
    "MissedAt",
    "Saving",
    "ShareOfGoal",
    "Sooner",
    "Terms",
    "Truth",
    "UserStatistic",
    "Within",
]

AnyClaim = (
    GoalMissed
    | ShareOfGoal
    | ClippedLoss
    | LossLevels
    | LossWhereReached
    | Within
    | MissedAt
    | Sooner
    | Saving
    | Better
    | Advantage
    | InStratum
    | Foretold
    | UserStatistic
)
"""Every kind that a plan can hold; in files it is known by its `kind`."""

KINDS: tuple[str, ...] = tuple(
    kind.__dataclass_fields__["kind"].default for kind in get_args(AnyClaim)
)
"""Their names."""
