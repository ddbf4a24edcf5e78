"""Claims: what is going to be certified, fixed before a train loss exists. One class a kind."""

from surestep.certify.claims.against import Advantage, Better, Faster, Sooner
from surestep.certify.claims.base import EARLIER, Asserted, Basis, Claim, MeanClaim, Terms, Truth
from surestep.certify.claims.levels import LossLevels
from surestep.certify.claims.loss import ClippedLoss, GoalMissed, ShareOfGoal, UserStatistic
from surestep.certify.claims.sublevel import LossWhereReached

__all__ = [
    "EARLIER",
    "Advantage",
    "AnyClaim",
    "Asserted",
    "Basis",
    "Better",
    "Claim",
    "ClippedLoss",
    "Faster",
    "GoalMissed",
    "LossLevels",
    "LossWhereReached",
    "MeanClaim",
    "ShareOfGoal",
    "Sooner",
    "Terms",
    "Truth",
    "UserStatistic",
]

AnyClaim = (
    GoalMissed
    | ShareOfGoal
    | ClippedLoss
    | LossLevels
    | LossWhereReached
    | Faster
    | Sooner
    | Better
    | Advantage
    | UserStatistic
)
"""Every kind that a plan can hold; in files it is known by its `kind`."""
