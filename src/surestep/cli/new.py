"""`surestep new`: write a file to start from."""

import dataclasses
from pathlib import Path
from typing import Annotated

import tyro

from surestep.cli.arguments import parse
from surestep.cli.starter import write_starter


@dataclasses.dataclass(frozen=True)
class Arguments:
    """Write a commented file to start from, for a family of your own."""

    file: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="FILE.py")]
    """Where to write it, like my_problem.py."""


def main(words: list[str]) -> int:
    """Carry out the command."""
    write_new(parse(Arguments, words, "surestep new"))
    return 0


def write_new(given: Arguments) -> None:
    """Write the file, and say what comes next."""
    path = given.file
    write_starter(path)
    print(f"{path} is written. Next: surestep check {path}, then surestep run {path}")
