"""`surestep verify`: recompute certificates from what is stored."""

import dataclasses

from surestep.base.errors import ConfigurationError, VerificationError
from surestep.cli.arguments import parse
from surestep.cli.outcomes import checks_of_outcomes
from surestep.cli.stored_run import StoredRun, open_run
from surestep.run.verify.fresh import verify_fresh
from surestep.run.verify.run import Check, made_elsewhere, verify


@dataclasses.dataclass(frozen=True, kw_only=True)
class Arguments(StoredRun):
    """Recompute a run's certificates from what is stored, and say which statements stand."""

    rerun: int = 0
    """Instances to roll out again (64 at least of what another kind of machine made)."""


def main(words: list[str]) -> int:
    """Carry out the command."""
    verify_run(parse(Arguments, words, "surestep verify"))
    return 0


def verify_run(given: Arguments) -> None:
    """Recompute a run's certificates and say which statements stand."""
    if given.rerun < 0:
        raise ConfigurationError("--rerun must not be negative")
    checks = checks_of_outcomes(given.folder, given.rerun)
    if checks is None:
        checks = _checks_of_run(given)
    for check in checks:
        print(check)
    failed = [check for check in checks if not check.stands]
    if failed:
        raise VerificationError(f"{len(failed)} of {len(checks)} checks fail in {given.folder}")
    print(f"all {len(checks)} checks stand")


def _checks_of_run(given: Arguments) -> list[Check]:
    run, config, experiment = open_run(given.folder, given.problem)
    if made_elsewhere(run):
        print(
            "made by other versions or on another kind of machine: what is computed from the "
            "instances again is compared to rounding"
        )
    checks = verify(run, config, experiment, given.rerun)
    return checks + verify_fresh(run, config, experiment, given.rerun)
