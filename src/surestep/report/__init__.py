"""Reports: figures as data, then drawn, and a summary in words."""

from pathlib import Path

from surestep.learning import Learned
from surestep.report.draw import save_figure
from surestep.report.figures import Figure, overview, shifted_figure
from surestep.report.history import history
from surestep.report.profile import profile
from surestep.report.summary import summary
from surestep.stages.population import Chosen
from surestep.store import RunFolder

__all__ = ["history", "overview", "profile", "save_figure", "summary", "write_report"]


def write_report(learned: Learned, folder: RunFolder) -> dict[str, Path]:
    """Draw the figures of a run; returns what a person wants to open, by name."""
    paths = {
        "figure": _picture(overview(learned), folder),
        "profile": _picture(profile(learned), folder),
    }
    if learned.shifted is not None:
        figure = shifted_figure(learned.shifted, learned.certificate.problem)
        paths["shifted"] = _picture(figure, folder)
    if folder.has("population"):
        chosen = folder.load("population", Chosen)
        paths["population"] = _picture(history(learned.certificate.problem, chosen), folder)
    return paths | {"certificate": folder.certificate_path}


def _picture(figure: Figure, folder: RunFolder) -> Path:
    paths = save_figure(figure, folder.figures)
    return next(path for path in paths if path.suffix == ".png")
