"""`surestep report`: write the page and the figures of a run again."""

import dataclasses

from surestep.cli.arguments import parse
from surestep.cli.learning import drawn
from surestep.cli.outcomes import report_outcomes
from surestep.cli.reporting import print_paths
from surestep.cli.stored_run import StoredRun
from surestep.paper import registry
from surestep.report import write_report
from surestep.run.stored import read_learned, require_finished
from surestep.storage.run_folder import RunFolder


@dataclasses.dataclass(frozen=True, kw_only=True)
class Arguments(StoredRun):
    """Write the report and the figures of a run that has ended again."""


def main(words: list[str]) -> int:
    """Carry out the command."""
    report_again(parse(Arguments, words, "surestep report"))
    return 0


def report_again(given: Arguments) -> None:
    """Write the page and the figures of a run that has ended, from what it has stored."""
    if report_outcomes(given.folder):
        return
    run = RunFolder(given.folder)
    config = registry.read_config(run)
    require_finished(run)
    experiment = registry.build(config, given.problem, run)
    with run.locked():
        learned = read_learned(config, experiment, run)
        paths = write_report(learned, run, drawn(config, experiment, learned, run))
    for sentence in learned.incomplete:
        print(sentence)
    print_paths(paths)
