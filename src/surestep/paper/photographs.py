"""Photographs to cut instances from: those that scikit-image carries, or a folder of one's own."""

import dataclasses
import functools
import hashlib
import importlib
import importlib.resources
import logging
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import UInt8

from surestep.base.errors import ConfigurationError
from surestep.base.machine import require

log = logging.getLogger("surestep")

BUNDLED = (
    "astronaut.png",
    "brick.png",
    "camera.png",
    "chelsea.png",
    "clock_motion.png",
    "coffee.png",
    "coins.png",
    "grass.png",
    "gravel.png",
    "moon.png",
    "motorcycle_left.png",
    "retina.jpg",
)
"""The photographs in scikit-image's own package; nothing is downloaded.

Two are left out because they are nearly black (hubble_deep_field, rocket): there even the minimum
is above a fifth of the loss at the start, which is the paper's goal. The second picture of the
stereo pair is left out because it shows what the first one shows.
"""

Grey = UInt8[np.ndarray, "_height _width"]


@dataclasses.dataclass(frozen=True)
class Photographs:
    """Grey pictures with their names."""

    source: str
    names: tuple[str, ...]
    pictures: tuple[Grey, ...]
    skipped: tuple[str, ...] = ()
    """Files that could not be used, each with the reason."""

    @functools.cached_property
    def sha256(self) -> str:
        """A fingerprint of every grey value."""
        digest = hashlib.sha256()
        for picture in self.pictures:
            digest.update(f"{picture.shape}\n".encode())
            digest.update(np.ascontiguousarray(picture).tobytes())
        return digest.hexdigest()

    def describe(self) -> str:
        """Which photographs these are, in words."""
        shown = ", ".join(self.names[:20]) + (", ..." if len(self.names) > 20 else "")
        return f"{len(self.names)} photographs {self.source} ({shown}; SHA-256 {self.sha256})"


def load(folder: str, height: int, width: int, shorter_side: int) -> Photographs:
    """All photographs of a folder (by default, of scikit-image) that a crop fits into.

    Grey values are whole numbers from 0 to 255. A picture whose shorter side is longer than
    `shorter_side` is scaled down to it. Files that are too small or cannot be read are skipped,
    with a warning that names them.
    """
    pillow("Image")
    files = _files(Path(folder)) if folder else _bundled()
    names: list[str] = []
    pictures: list[Grey] = []
    skipped: list[str] = []
    for name, path in files.items():
        try:
            picture = _read(path, shorter_side)
            if picture.shape[0] < height or picture.shape[1] < width:
                raise ValueError(
                    f"its {picture.shape[0]} x {picture.shape[1]} pixels hold no crop of "
                    f"{height} x {width}"
                )
        # A damaged file can make Pillow raise any of these, SyntaxError among them.
        except (OSError, ValueError, SyntaxError, _bomb()) as error:
            skipped.append(f"{name}: {error}")
            log.warning("skipped %s", skipped[-1])
        else:
            names.append(name)
            pictures.append(picture)
    if not pictures:
        raise ConfigurationError(
            f"no photograph of at least {height} x {width} pixels in {folder or 'scikit-image'}"
            + (f" (skipped: {'; '.join(skipped[:5])})" if skipped else ", the folder is empty")
        )
    source = f"of the folder {folder}" if folder else "that scikit-image carries"
    return Photographs(source, tuple(names), tuple(pictures), tuple(skipped))


def pillow(module: str) -> Any:
    """One of Pillow's modules."""
    return require(f"PIL.{module}", "Pillow", "reading photographs")


def _bundled() -> dict[str, Path]:
    require("skimage", "scikit-image", "the photographs that come with it")
    folder = Path(str(importlib.resources.files("skimage"))) / "data"
    return {Path(name).stem: folder / name for name in BUNDLED}


def _files(folder: Path) -> dict[str, Path]:
    if not folder.is_dir():
        raise ConfigurationError(f"problem.images must be a folder, and {folder} is none")
    found = sorted(path for path in folder.rglob("*") if path.is_file())
    return {
        str(path.relative_to(folder)): path
        for path in found
        if not any(part.startswith(".") for part in path.relative_to(folder).parts)
    }


def _bomb() -> type[Exception]:
    return pillow("Image").DecompressionBombError


def _read(path: Path, shorter_side: int) -> Grey:
    image_module, operations = pillow("Image"), pillow("ImageOps")
    with image_module.open(path) as opened:
        picture = operations.exif_transpose(opened)
        if picture.mode.startswith("I"):
            # Pillow would cut 16-bit values off at 255.
            values = np.asarray(picture, np.float64) / 257
            picture = image_module.fromarray(np.clip(values.round(), 0, 255).astype(np.uint8))
        elif picture.mode == "F":
            raise ValueError("its grey values are floating-point numbers of unknown range")
        picture = picture.convert("L")
    shrink = shorter_side / min(picture.size)
    if shrink < 1:
        size = tuple(max(shorter_side, round(side * shrink)) for side in picture.size)
        picture = picture.resize(size, image_module.Resampling.LANCZOS)
    return np.asarray(picture, np.uint8)
