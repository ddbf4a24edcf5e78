"""All experiments in one figure: the learned rule against the first classical one."""

from collections.abc import Sequence
from pathlib import Path

from surestep.base.errors import ConfigurationError, RunFolderError
from surestep.evaluate.evaluated import LEARNED, Evaluated
from surestep.paper import registry
from surestep.report.figures import Figure, Panel, iterations_panel
from surestep.storage.run_folder import RunFolder


def experiments(folders: Sequence[Path]) -> Figure:
    """One panel for every finished run: losses over the iterations."""
    if not folders:
        raise ConfigurationError("the figure `experiments` needs run folders: --runs DIR [DIR ...]")
    panels = [_panel(RunFolder(folder)) for folder in folders]
    groups = dict.fromkeys(line.group for panel in panels for line in panel.lines)
    return Figure("experiments", "Learned and classical rules", list(groups), panels)


def _panel(folder: RunFolder) -> Panel:
    config = registry.read_config(folder)
    if not folder.has("evaluate"):
        raise RunFolderError(f"the run in {folder.path} is not finished: surestep resume it first")
    found = folder.load("evaluate", Evaluated)
    losses = dict(zip(found.solvers[:2], found.losses[:2], strict=True))
    assert LEARNED in losses
    title = f"{config.name} ({config.preset}, seed {config.seed})"
    return iterations_panel(title, "loss", losses, config.horizon)
