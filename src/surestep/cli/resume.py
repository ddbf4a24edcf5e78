"""`surestep resume`: go on with a run that was interrupted."""

import dataclasses

from surestep.cli.arguments import parse
from surestep.cli.joining import TOGETHER, alone_or_together
from surestep.cli.learning import learn_and_report
from surestep.cli.stored_run import StoredRun
from surestep.paper import registry
from surestep.run.distributed import Leader
from surestep.storage.run_folder import RunFolder


@dataclasses.dataclass(frozen=True, kw_only=True)
class Arguments(StoredRun):
    """Go on with a run that was interrupted."""


def main(words: list[str]) -> int:
    """Carry out the command, alone or with other processes."""
    return alone_or_together(words, carry_out)


def carry_out(words: list[str], leader: Leader | None) -> int:
    """Read what the run was to do, and do the rest of it."""
    given = parse(Arguments, words, "surestep resume", f"{Arguments.__doc__} {TOGETHER}")
    run = RunFolder(given.folder)
    learn_and_report(registry.read_config(run), run, given.problem, leader)
    return 0
