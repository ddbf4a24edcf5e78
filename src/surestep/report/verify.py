"""The page and the figures of a run, written again and compared with those that people see."""

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from surestep.base.errors import RunFolderError
from surestep.report.draw import save_data, save_figure
from surestep.report.files import run_figures
from surestep.report.page import page_of
from surestep.run.config import RunConfig
from surestep.run.learned import Learned
from surestep.run.stored import read_learned
from surestep.run.verify.finished import Check, check
from surestep.storage.files import read_bytes, write_text
from surestep.storage.run_folder import RunFolder
from surestep.train import Experiment

Draw = Callable[[Learned, Path], Mapping[str, Path]]
"""Draws the pictures that a problem alone has into a folder."""


def verify_report(
    folder: RunFolder,
    config: RunConfig[Any],
    experiment: Experiment,
    draw: Draw,
    drawn: bool = False,
) -> list[Check]:
    """The page and the figures' data are those that the stored results give, to the byte.

    With `drawn` the figures' pictures are, too. What else lies beside them is no figure of the run.
    """
    page, figures = folder.path / "report.html", folder.figures
    shown = [page] if page.exists() else []
    shown += sorted(figures.iterdir()) if figures.is_dir() else []
    if not shown:
        return []
    try:
        learned = read_learned(config, experiment, folder)
    except RunFolderError as error:
        return [Check("the report", False, str(error))]
    with tempfile.TemporaryDirectory(prefix="surestep-report-") as temporary:
        again = Path(temporary)
        unseen = _written(again, learned, folder, draw, drawn)
        wrong = [
            str(name)
            for name in (path.relative_to(folder.path) for path in shown)
            if name not in unseen and not _same(again / name, folder.path / name)
        ]
    reason = f"{', '.join(wrong)}: not what the results give (surestep report writes it again)"
    return [check("the report and its figures", not wrong, reason)]


def _written(
    place: Path, learned: Learned, folder: RunFolder, draw: Draw, drawn: bool
) -> set[Path]:
    """Write the report again; returns the pictures that were not drawn."""
    figures, unseen = run_figures(learned, folder), set[Path]()
    beside = RunFolder(place).figures
    pictures = draw(learned, beside)
    for name, figure in figures.items():
        if drawn:
            save_figure(figure, beside)
        else:
            save_data(figure, beside)
            unseen |= {Path(beside.name) / f"{name}.{kind}" for kind in ("png", "svg")}
    page = page_of(learned, folder, figures, pictures, place)
    write_text(place / "report.html", page)
    return unseen


def _same(one: Path, other: Path) -> bool:
    return one.exists() and read_bytes(one) == read_bytes(other)
