"""From a prior and the train set to a certificate.

What other rooms use is listed here.
"""

from surestep.certify.certificate import (
    Certificate,
    Statement,
    percent,
    rounded_down,
    rounded_up,
    upgraded,
)
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
from surestep.certify.statements import issue, make_certificate, opened_by, posterior_hash
from surestep.certify.subject import Opened, Standing, Subject
from surestep.certify.targets import Target
from surestep.certify.usual import usual_plan

__all__ = [
    "Certificate",
    "Certified",
    "CertifySettings",
    "Opened",
    "Pilot",
    "Plan",
    "Standing",
    "Statement",
    "Subject",
    "Target",
    "certify",
    "find_posterior",
    "issue",
    "make_certificate",
    "opened_by",
    "percent",
    "pilot_on",
    "pilot_run",
    "plan_certificate",
    "plan_run",
    "possible_opponents",
    "posterior_hash",
    "race_length",
    "references_for",
    "rounded_down",
    "rounded_up",
    "upgraded",
    "usual_plan",
]
