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

    @functools.cached_property
    def sha256(self) -> str:
        """The plan's hash."""
        return hashlib.sha256(to_json(self).encode()).hexdigest()
