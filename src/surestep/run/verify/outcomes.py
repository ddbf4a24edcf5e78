"""Verification of certificates of anyone's solver: all that can be computed again is."""

import dataclasses

from surestep.base.errors import SurestepError
from surestep.certify import Certificate
from surestep.certify.outcome_plan import OutcomePlan
from surestep.run.outcomes import OutcomeFolder, OutcomePilot, certified, plan_outcomes
from surestep.run.verify.finished import Check
from surestep.storage.records import to_json


def verify_outcomes(folder: OutcomeFolder) -> list[Check]:
    """Recompute plan and certificate from the pilot and the outcomes that are kept.

    The outcomes themselves are somebody's word: neither instances nor solver are here.
    """
    plan, pilot = folder.plan(), folder.pilot()
    checks = [_plan(plan, pilot)]
    if not checks[0].stands:
        return checks
    if not folder.certificate_path.exists():
        return [*checks, Check("outcomes were not certified yet", True, "it states nothing yet")]
    try:
        again = certified(plan, folder.outcomes(), pilot)
    except SurestepError as error:
        return [*checks, Check("the outcomes belong to the plan", False, str(error))]
    return [*checks, *_fields(folder.certificate(), again)]


def _plan(plan: OutcomePlan, pilot: OutcomePilot | None) -> Check:
    """Whether this is the plan that pilot or claims give; its budget adds up then."""
    name = "the plan, and its budget"
    try:
        terms = plan.terms
        again = plan_outcomes(
            plan.settings, pilot, terms.train_size, terms.iterations, hits=plan.hits
        )
    except SurestepError as error:
        return Check(name, False, str(error))
    same = to_json(again) == to_json(plan)
    return Check(name, same, "" if same else "is not what its settings and the pilot give")


def _fields(issued: Certificate, again: Certificate) -> list[Check]:
    """Field by field, and statement by statement."""
    checks = []
    for field in dataclasses.fields(Certificate):
        if field.name != "statements":
            same = to_json({"": getattr(issued, field.name)}) == to_json(
                {"": getattr(again, field.name)}
            )
            words = field.name.replace("_", " ")
            checks.append(Check(words, same, "" if same else "does not follow from the outcomes"))
    names = [statement.name for statement in again.statements]
    if [statement.name for statement in issued.statements] != names:
        return [*checks, Check("the statements", False, "are not those of the plan")]
    for one, other in zip(issued.statements, again.statements, strict=True):
        same = to_json(one) == to_json(other)
        reason = "" if same else "does not follow from plan and outcomes"
        checks.append(Check(f"statement: {one.name}", same, reason))
    return checks
