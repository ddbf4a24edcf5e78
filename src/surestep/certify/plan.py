"""The plan of a certificate: all claims, written down and hashed before the train set is opened."""

import dataclasses
import functools
import hashlib
from collections.abc import Sequence

from surestep.base.errors import ConfigurationError
from surestep.certify.claims import AnyClaim, Claim, Terms
from surestep.storage.records import to_json


@dataclasses.dataclass(frozen=True)
class Plan(Terms):
    """All claims of a run, their shares of epsilon, and the prior they are paid from."""

    claims: tuple[AnyClaim, ...]

    def __post_init__(self) -> None:
        wanted = hit_tolerances(self.claims), any(claim.hits_goal for claim in self.claims)
        if (self.hit_tolerances, self.hits_goal) != wanted:
            raise ConfigurationError(
                "a plan must observe the first hits that its claims are about, and no others: "
                f"{wanted[0]}, not {self.hit_tolerances}"
            )

    @property
    def bounded(self) -> bool:
        """Whether it was made for losses that are never negative."""
        return any(claim.needs_bound for claim in self.claims)

    @functools.cached_property
    def sha256(self) -> str:
        """The plan's hash."""
        return hashlib.sha256(to_json(self).encode()).hexdigest()


def hit_tolerances(claims: Sequence[Claim]) -> tuple[float, ...]:
    """The losses whose first hit must be observed, the largest first."""
    wanted = {claim.tolerance_to_hit for claim in claims} - {None}
    return tuple(sorted((t for t in wanted if t is not None), reverse=True))
