"""Reports: figures as data, then drawn, and a summary in words."""

from pathlib import Path

from surestep.learning import Learned
from surestep.report.draw import save_figure
from surestep.report.figures import overview
from surestep.report.summary import summary
from surestep.store import RunFolder

__all__ = ["overview", "save_figure", "summary", "write_report"]


def write_report(learned: Learned, folder: RunFolder) -> dict[str, Path]:
    """Draw the figures of a run; returns what a person wants to open, by name."""
    paths = save_figure(overview(learned), folder.figures)
    return {
        "figure": next(path for path in paths if path.suffix == ".png"),
        "certificate": folder.certificate_path,
    }
