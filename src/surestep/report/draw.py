"""Figure data drawn with Matplotlib, as PNG and SVG."""

import io
import itertools
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure as Canvas

from surestep.report.figures import Figure, Panel
from surestep.storage.files import write_bytes, write_text
from surestep.storage.records import to_json

# Okabe and Ito's colours: told apart by colour-blind readers too.
_COLOURS = ["#D55E00", "#0072B2", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"]
_LARGEST = 1e200
_FIXED = {"bound": "#000000", "horizon": "#888888", "paper": "#888888", "others": "#BBBBBB"}


def save_figure(figure: Figure, folder: Path) -> list[Path]:
    """Write a figure's data (JSON) and its pictures (PNG, SVG); returns their paths."""
    paths = [save_data(figure, folder)]
    # A fixed salt and no date: the same figure gives the same file.
    with matplotlib.rc_context({"svg.hashsalt": "surestep"}):
        canvas = draw(figure)
        for kind, metadata in (("png", {}), ("svg", {"Date": None})):
            buffer = io.BytesIO()
            canvas.savefig(buffer, format=kind, dpi=130, metadata=metadata)
            path = folder / f"{figure.name}.{kind}"
            write_bytes(path, buffer.getvalue())
            paths.append(path)
    return paths


def save_data(figure: Figure, folder: Path) -> Path:
    """Write a figure's data (JSON); returns its path."""
    path = folder / f"{figure.name}.json"
    write_text(path, to_json(figure))
    return path


def draw(figure: Figure) -> Canvas:
    """Draw a figure's panels, two in a row."""
    rows, columns = (len(figure.panels) + 1) // 2, min(2, len(figure.panels))
    canvas = Canvas(figsize=(6.75 * columns, 5.0 * rows), layout="constrained")
    FigureCanvasAgg(canvas)
    colours = _colours(figure.groups)
    places = canvas.subplots(rows, columns, squeeze=False).flat
    for axes, panel in itertools.zip_longest(places, figure.panels):
        if panel is None:
            axes.set_axis_off()
        else:
            _draw_panel(axes, panel, colours)
    canvas.suptitle(figure.title)
    return canvas


def _colours(groups: list[str]) -> dict[str, str]:
    free = [group for group in groups if group not in _FIXED]
    return _FIXED | {group: _COLOURS[i % len(_COLOURS)] for i, group in enumerate(free)}


def _draw_panel(axes: Axes, panel: Panel, colours: dict[str, str]) -> None:
    axes.set(title=panel.title, xlabel=panel.x_label, ylabel=panel.y_label)
    axes.set_xscale(panel.x_scale)
    axes.set_yscale(panel.y_scale)
    if panel.field is not None:
        values = np.ma.masked_invalid(np.asarray(panel.field.values, float))
        mesh = axes.pcolormesh(panel.field.x, panel.field.y, values, cmap="viridis", shading="auto")
        axes.figure.colorbar(mesh, ax=axes, label=panel.field.label)
    for points in panel.points:
        axes.plot(
            _finite(points.x, panel.x_scale), _finite(points.y, panel.y_scale),
            ls="", marker="o", ms=points.size, mew=0, alpha=0.7,
            color=colours[points.group], label=points.label,
        )  # fmt: skip
    for band in panel.bands:
        low, high = _finite(band.low, panel.y_scale), _finite(band.high, panel.y_scale)
        axes.fill_between(band.x, low, high, color=colours[band.group], alpha=0.15, lw=0)
    for line in panel.lines:
        y = _finite(line.y, panel.y_scale)
        axes.plot(line.x, y, color=colours[line.group], ls=line.dash, lw=1.4, label=line.label)
    for bars in panel.bars:
        axes.stairs(
            bars.heights, bars.edges, color=colours[bars.group], alpha=0.5, fill=True,
            label=bars.label,
        )  # fmt: skip
    for mark in panel.marks:
        if np.isfinite(mark.x):
            axes.axvline(mark.x, color=colours[mark.group], ls=mark.dash, lw=1.3, label=mark.label)
    if panel.notes:
        axes.text(
            0.02, 0.02, "\n".join(panel.notes), transform=axes.transAxes, fontsize=7, va="bottom"
        )
    if panel.right:
        beside = axes.twinx()
        beside.set_ylabel(panel.right_label)
        for line in panel.right:
            beside.plot(line.x, line.y, color=colours[line.group], ls=line.dash, lw=1.0, alpha=0.8)
    axes.grid(alpha=0.25)
    if axes.get_legend_handles_labels()[1]:
        axes.legend(fontsize=7, framealpha=0.8)


def _finite(values: list[float], scale: str) -> np.ndarray:
    """Values with gaps where there is nothing to draw."""
    array = np.asarray(values, float)
    good = np.isfinite(array) & ((array > 0) | (scale == "linear"))
    if scale == "log":
        # Beyond it Matplotlib's margins overflow; how far a solver has diverged does not matter.
        array = np.minimum(array, _LARGEST)
    return np.where(good, array, np.nan)
