"""From a prior and the train set to a certificate.

What other rooms use is listed here.
"""

from surestep.certify.certificate import Certificate, Statement, percent, rounded_down, rounded_up
from surestep.certify.gather import certify, race_length
from surestep.certify.pilot import Pilot, pilot_on
from surestep.certify.plan import Plan
from surestep.certify.planning import (
    pilot_run,
    plan_certificate,
    plan_run,
    possible_opponents,
    references_for,
)
from surestep.certify.posterior import Certified, find_posterior
from surestep.certify.settings import CertifySettings
from surestep.certify.statements import issue, make_certificate
from surestep.certify.targets import Target
from surestep.certify.traits import Difficulty, part_features, traits_on, with_start
from surestep.certify.usual import usual_plan

__all__ = [
    "Certificate",
    "Certified",
    "CertifySettings",
    "Difficulty",
    "Pilot",
    "Plan",
    "Statement",
    "Target",
    "certify",
    "find_posterior",
    "issue",
    "make_certificate",
    "part_features",
    "percent",
    "pilot_on",
    "pilot_run",
    "plan_certificate",
    "plan_run",
    "possible_opponents",
    "race_length",
    "references_for",
    "rounded_down",
    "rounded_up",
    "traits_on",
    "usual_plan",
    "with_start",
]
