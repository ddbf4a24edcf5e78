"""The figures and the page of a run, drawn and written into its folder."""

from collections.abc import Mapping
from pathlib import Path

from surestep.report.certified import certified
from surestep.report.draw import save_figure
from surestep.report.figures import Figure, overview, shifted_figure
from surestep.report.history import history
from surestep.report.page import write_page
from surestep.report.profile import profile
from surestep.run.learned import Learned
from surestep.storage.run_folder import RunFolder
from surestep.train import Chosen


def write_report(
    learned: Learned, folder: RunFolder, pictures: Mapping[str, Path] | None = None
) -> dict[str, Path]:
    """Draw the figures of a run and write its page.

    **Arguments:**

    - `learned`: what `learn` or `fit` returned.
    - `folder`: the run's folder. `report.html` and the folder `figures` are written into it, if
      the run was evaluated.
    - `pictures`: figures that the problem has drawn of itself, by name; the page shows them too.

    **Returns:** the paths of what a person wants to open, by name.

    **Raises:** `surestep.errors.RunFolderError` if the folder holds no run.

    **Example:**

    ```python
    import pathlib

    folder = ss.RunFolder(pathlib.Path("runs/mine"))
    learned = ss.learn(config, experiment, folder)
    paths = ss.report.write_report(learned, folder)
    print(paths["report"])
    ```
    """
    if learned.evaluated is None:
        return {"certificate": folder.certificate_path}
    pictures = pictures or {}
    figures = run_figures(learned, folder)
    paths = {name: _picture(figure, folder) for name, figure in figures.items()}
    page = write_page(learned, folder, figures, pictures)
    first = {"report": page, "figure": paths.pop("overview")}
    return {**first, **paths, **pictures, "certificate": folder.certificate_path}


def run_figures(learned: Learned, folder: RunFolder) -> dict[str, Figure]:
    """All figures of a run, as data, by name."""
    figures = [overview(learned), certified(learned), profile(learned)]
    if learned.shifted is not None:
        figures.append(shifted_figure(learned.shifted, learned.certificate.problem))
    if folder.has("population"):
        chosen = folder.load("population", Chosen)
        figures.append(history(learned.certificate.problem, chosen))
    return {figure.name: figure for figure in figures}


def _picture(figure: Figure, folder: RunFolder) -> Path:
    paths = save_figure(figure, folder.figures)
    return next(path for path in paths if path.suffix == ".png")
