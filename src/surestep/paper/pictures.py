"""Pictures in a grid: what problems show whose unknowns are images."""

import dataclasses
import io
from pathlib import Path

from jaxtyping import Float
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure as Canvas
from numpy import ndarray

from surestep.storage.files import write_bytes


@dataclasses.dataclass(frozen=True)
class Tile:
    """A grey picture, 0 for black and 1 for white, with a line or two above it."""

    title: str
    values: Float[ndarray, "height width"]


def save_pictures(name: str, title: str, grid: list[list[Tile]], folder: Path) -> list[Path]:
    """Write a grid of pictures, row by row, as a PNG; returns its path in a list."""
    height, width = grid[0][0].values.shape
    size = (2.6 * len(grid[0]), (2.6 * height / width + 0.45) * len(grid) + 0.4)
    canvas = Canvas(figsize=size, layout="constrained")
    FigureCanvasAgg(canvas)
    places = canvas.subplots(len(grid), len(grid[0]), squeeze=False)
    for axes_row, tiles in zip(places, grid, strict=True):
        for axes, tile in zip(axes_row, tiles, strict=True):
            axes.imshow(tile.values, cmap="gray", vmin=0, vmax=1, interpolation="nearest")
            axes.set_title(tile.title, fontsize=8)
            axes.set_axis_off()
    canvas.suptitle(title, fontsize=10)
    buffer = io.BytesIO()
    canvas.savefig(buffer, format="png", dpi=130)
    path = folder / f"{name}.png"
    write_bytes(path, buffer.getvalue())
    return [path]
