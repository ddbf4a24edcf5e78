"""What commands do with outcomes of somebody's own solver."""

from pathlib import Path

from surestep.auto.outcomes import certify, plan_certificate
from surestep.base.errors import ConfigurationError, VerificationError
from surestep.report.outcomes import verify_outcomes_page, write_outcomes_page
from surestep.run.outcomes import OutcomeFolder
from surestep.run.verify.finished import Check
from surestep.run.verify.outcomes import verify_outcomes

FILES = (".npz", ".csv")
"""How files of outcomes end."""


def plan_ahead(
    folder: Path,
    size: int,
    pilot: Path | None,
    claims: tuple[str, ...],
    solver: str,
    epsilon: float,
    accuracies: tuple[float, ...],
    signed: bool,
) -> None:
    """Write down what is going to be certified of a solver, before there are outcomes."""
    if not size:
        raise ConfigurationError(
            "say how many instances there are going to be (--size N): the plan depends on it"
        )
    sha256 = plan_certificate(
        folder,
        size,
        pilot=pilot,
        claims=claims,
        solver=solver,
        problem=folder.name,
        epsilon=epsilon,
        accuracies=accuracies,
        signed=signed,
    )
    plan = OutcomeFolder(folder).plan()
    print(f"The plan for {size} instances claims:")
    for claim in plan.terms.claims:
        print(f"- {claim.name}")
    print(f"\nplan:   {OutcomeFolder(folder).plan_path}\nsha256: {sha256}")
    print(f"then:   surestep certify OUTCOMES.npz --out {folder}")


def certify_file(
    path: Path,
    out: Path | None,
    pilot: Path | None,
    claims: tuple[str, ...],
    solver: str,
    epsilon: float,
    accuracies: tuple[float, ...],
    signed: bool,
) -> None:
    """Certify what is in a file of outcomes."""
    folder = OutcomeFolder(out or Path("runs") / path.stem)
    document = certify(
        path,
        pilot=pilot,
        claims=claims,
        out=folder.path,
        solver=solver,
        problem=path.stem,
        epsilon=epsilon,
        accuracies=accuracies,
        signed=signed,
    )
    print(document)
    print(f"\nreport:      {folder.report_path}\ncertificate: {folder.certificate_path}")


def checks_of_outcomes(folder: Path, rerun: bool) -> list[Check] | None:
    """Verify a folder of outcomes; None if it is another kind of folder."""
    outcomes = OutcomeFolder(folder)
    if not outcomes.is_one():
        return None
    if rerun:
        raise ConfigurationError(
            f"nothing of {folder} can be rolled out again: neither instances nor solver are there"
        )
    checks = verify_outcomes(outcomes)
    # What does not stand has no page.
    return checks + (verify_outcomes_page(outcomes) if all(c.stands for c in checks) else [])


def report_outcomes(folder: Path) -> bool:
    """Write the page of a folder of outcomes again; False if it is another kind of folder."""
    outcomes = OutcomeFolder(folder)
    if not outcomes.is_one():
        return False
    if not outcomes.certificate_path.exists():
        raise ConfigurationError(f"{folder} holds a plan, and no certificate to report of yet")
    failed = [check for check in verify_outcomes(outcomes) if not check.stands]
    if failed:
        raise VerificationError(f"what {folder} holds does not stand: {failed[0].name}")
    print(f"report: {write_outcomes_page(outcomes)}")
    return True
