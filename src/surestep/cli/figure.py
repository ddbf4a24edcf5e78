"""`surestep figure`: one of the paper's small figures."""

import dataclasses
from pathlib import Path
from typing import Annotated

import tyro

from surestep.base.errors import ConfigurationError, unknown
from surestep.cli.arguments import parse, require_seed, unset
from surestep.cli.reporting import reporter
from surestep.paper.figures import FIGURES
from surestep.paper.figures.experiments import experiments
from surestep.report.draw import save_figure


@dataclasses.dataclass(frozen=True)
class Arguments:
    """Make one of the paper's small figures."""

    name: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="NAME")]
    """The figure: estimation, sampling, choices or experiments."""
    seed: int = 0
    """Of what is drawn for it."""
    out: Annotated[Path, tyro.conf.arg(metavar="DIR")] = Path("figures")
    """Where it is written."""
    runs: Annotated[tuple[Path, ...] | None, unset("DIR [DIR ...]")] = None
    """For experiments: folders of the runs to show."""


def main(words: list[str]) -> int:
    """Carry out the command."""
    draw_figure(parse(Arguments, words, "surestep figure"))
    return 0


def draw_figure(given: Arguments) -> None:
    """Make one of the paper's small figures."""
    require_seed(given.seed)
    report = reporter()
    if given.name == "experiments":
        figure = experiments(list(given.runs or ()))
    elif given.name in FIGURES:
        figure = FIGURES[given.name](given.seed, report)
    else:
        raise ConfigurationError(unknown("figure", given.name, (*FIGURES, "experiments")))
    for path in save_figure(figure, given.out):
        print(path)
