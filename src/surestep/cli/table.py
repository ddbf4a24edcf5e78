"""`surestep table`: the evaluation of a run as a table."""

import dataclasses
from pathlib import Path
from typing import Annotated

import tyro

from surestep.cli.arguments import parse, unset
from surestep.paper import registry
from surestep.report import tables
from surestep.storage.run_folder import RunFolder


@dataclasses.dataclass(frozen=True)
class Arguments:
    """Write the evaluation of a run as a table: a row for each solver, instance and iteration."""

    folder: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="DIR")]
    """The run's folder."""
    out: Annotated[Path | None, unset("FILE.parquet|FILE.csv")] = None
    """Where it is written (DIR/table.parquet)."""


def main(words: list[str]) -> int:
    """Carry out the command."""
    write_run_table(parse(Arguments, words, "surestep table"))
    return 0


def write_run_table(given: Arguments) -> None:
    """Write a run's evaluation as a table."""
    out = given.out or given.folder / "table.parquet"
    tables.require_format(out)
    run = RunFolder(given.folder)
    config = registry.read_config(run)
    rows = tables.table_of_run(run, config.name, f"{config.preset}, seed {config.seed}")
    tables.write_table(rows, out)
    print(f"{len(rows)} rows: {out}")
