"""`surestep resume`: go on with a run that was interrupted."""

import dataclasses
from typing import Annotated

from surestep.cli.arguments import parse, unset
from surestep.cli.joining import TOGETHER, alone_or_together
from surestep.cli.learning import Until, learn_and_report
from surestep.cli.stored_run import StoredRun
from surestep.paper import registry
from surestep.run.distributed import Leader
from surestep.run.word import give_word
from surestep.storage.run_folder import RunFolder


@dataclasses.dataclass(frozen=True, kw_only=True)
class Arguments(StoredRun):
    """Go on with a run that was interrupted."""

    word: Annotated[str | None, unset("TEXT")] = None
    """What a verifier has said after being told the plan's hash."""
    until: Until = "end"
    """Where to stop: "plan" before the train set is opened."""


def main(words: list[str]) -> int:
    """Carry out the command, alone or with other processes."""
    return alone_or_together(words, carry_out)


def carry_out(words: list[str], leader: Leader | None) -> int:
    """Read what the run was to do, and do the rest of it."""
    given = parse(Arguments, words, "surestep resume", f"{Arguments.__doc__} {TOGETHER}")
    run = RunFolder(given.folder)
    config = registry.read_config(run)
    if given.word is not None:
        config = give_word(run, config, given.word)
    learn_and_report(config, run, given.problem, leader, given.until)
    return 0
