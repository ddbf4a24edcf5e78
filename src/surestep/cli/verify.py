"""`surestep verify`: recompute certificates from what is stored."""

import dataclasses
import functools
from typing import Any

from surestep.base.errors import ConfigurationError, VerificationError
from surestep.cli.arguments import parse
from surestep.cli.outcomes import checks_of_outcomes
from surestep.cli.reporting import reporter
from surestep.cli.stored_run import StoredRun, open_run
from surestep.paper import registry
from surestep.report.verify import verify_report
from surestep.run.config import RunConfig
from surestep.run.verify.finished import Check, made_elsewhere
from surestep.run.verify.fresh import verify_fresh
from surestep.run.verify.retrain import verify_retrained
from surestep.run.verify.run import verify
from surestep.storage.run_folder import RunFolder
from surestep.train import Experiment


@dataclasses.dataclass(frozen=True, kw_only=True)
class Arguments(StoredRun):
    """Recompute a run's certificates from what is stored, and say which statements stand."""

    rerun: int = 0
    """Roll out the deployed rule, the opponents and so many other samples again. What another kind
    of machine made is rolled out on so many instances, at least 64, in any case."""
    retrain: bool = False
    """Do everything again from the seed, and compare every bit."""


def main(words: list[str]) -> int:
    """Carry out the command."""
    verify_run(parse(Arguments, words, "surestep verify"))
    return 0


def verify_run(given: Arguments) -> None:
    """Recompute a run's certificates and say which statements stand."""
    if given.rerun < 0:
        raise ConfigurationError("--rerun must not be negative")
    checks = checks_of_outcomes(given.folder, given.rerun > 0 or given.retrain)
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
            "instances again is compared to rounding, and the report, which is written otherwise "
            "here, is not checked (surestep report writes it again)"
        )
    return checks_for(run, config, experiment, given)


def checks_for(
    run: RunFolder, config: RunConfig[Any], experiment: Experiment, given: Arguments
) -> list[Check]:
    """All that is checked of a run's folder."""
    checks = verify(run, config, experiment, given.rerun)
    checks += verify_fresh(run, config, experiment, given.rerun)
    if not made_elsewhere(run):
        draw = functools.partial(registry.draw, config, experiment)
        drawn = given.retrain or given.rerun > 0
        checks += verify_report(run, config, experiment, draw, drawn)
    if given.retrain:
        checks += verify_retrained(run, config, experiment, reporter())
    return checks
