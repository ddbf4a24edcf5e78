"""`surestep check`: what is wrong or slow with a problem of one's own."""

import dataclasses
from typing import Annotated

import tyro

from surestep.auto.doctor import check_file
from surestep.cli.arguments import parse


@dataclasses.dataclass(frozen=True)
class Arguments:
    """Say what is wrong or slow with a problem of your own, and what to change."""

    problem: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="FILE.py[:NAME]")]
    """A file, like my_problem.py or my_problem.py:problem."""
    seed: int = 0
    """Of the instances it is tried on."""


def main(words: list[str]) -> int:
    """Carry out the command."""
    check_problem(parse(Arguments, words, "surestep check"))
    return 0


def check_problem(given: Arguments) -> None:
    """Print what was found."""
    for line in check_file(given.problem, given.seed):
        print(line)
