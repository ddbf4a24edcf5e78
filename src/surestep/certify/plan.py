"""The plan of a certificate: all claims, written down and hashed before the train set is opened."""

import dataclasses
import functools
import hashlib

from surestep.certify.claims import AnyClaim, Terms
from surestep.storage.records import to_json


@dataclasses.dataclass(frozen=True)
class Plan(Terms):
    """All claims of a run, their shares of epsilon, and the prior they are paid from."""

    claims: tuple[AnyClaim, ...]

    @property
    def hit_tolerances(self) -> tuple[float, ...]:
        """The losses whose first hits its claims are about, the largest first."""
        wanted = {claim.tolerance_to_hit for claim in self.claims}
        return tuple(sorted((t for t in wanted if t is not None), reverse=True))

    @property
    def hits_goal(self) -> bool:
        """Whether a claim is about the first hit of every instance's goal; it is the last one."""
        return any(claim.hits_goal for claim in self.claims)

    @property
    def bounded(self) -> bool:
        """Whether it was made for losses that are never negative."""
        return any(claim.needs_bound for claim in self.claims)

    @functools.cached_property
    def sha256(self) -> str:
        """The plan's hash."""
        return hashlib.sha256(to_json(self).encode()).hexdigest()
