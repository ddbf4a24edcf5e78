"""From a prior and the train set to a certificate.

What other rooms use is listed here.
"""

from surestep.certify.certificate import Certificate, Statement, percent, rounded_down, rounded_up
from surestep.certify.gather import certify, race_length
from surestep.certify.plan import Plan
from surestep.certify.planning import CertifySettings, choose_opponents, plan_certificate, plan_run
from surestep.certify.posterior import Certified, find_posterior
from surestep.certify.statements import issue, make_certificate

__all__ = [
    "Certificate",
    "Certified",
    "CertifySettings",
    "Plan",
    "Statement",
    "certify",
    "choose_opponents",
    "find_posterior",
    "issue",
    "make_certificate",
    "percent",
    "plan_certificate",
    "plan_run",
    "race_length",
    "rounded_down",
    "rounded_up",
]
