"""The plan of a certificate: all claims, written down and hashed before the train set is opened."""

import dataclasses
import functools

from surestep.certify.claims import AnyClaim, Terms
from surestep.certify.subject import Subject
from surestep.problem import sha256_of
from surestep.storage.records import to_json


@dataclasses.dataclass(frozen=True)
class Plan(Terms):
    """All claims of a run, their shares of epsilon, and the prior they are paid from."""

    claims: tuple[AnyClaim, ...]
    subject: Subject | None = None
    """None where nothing real is certified, as in audits."""

    @functools.cached_property
    def sha256(self) -> str:
        """The plan's hash."""
        return sha256_of(to_json(self))
