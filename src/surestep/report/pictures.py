"""Pictures that a problem drew of itself, as the page takes them in."""

import base64
import dataclasses
from collections.abc import Mapping
from pathlib import Path

PICTURES = 1_500_000
"""How many bytes of pictures a page takes in, so that it stays below 3 MB."""
_SIGNATURE = b"\x89PNG\r\n\x1a\n"


@dataclasses.dataclass(frozen=True)
class Picture:
    """A picture that a problem drew of itself."""

    name: str
    data: str
    """As a data URI; empty if the picture is too large for the page."""
    path: str


def pictures_in(paths: Mapping[str, Path], folder: Path) -> list[Picture]:
    """Pictures as data, as long as they fit."""
    left, found = PICTURES, []
    for name, path in paths.items():
        content = path.read_bytes()
        if not content.startswith(_SIGNATURE):
            continue
        data = ""
        if len(content) <= left:
            left -= len(content)
            data = f"data:image/png;base64,{base64.b64encode(content).decode()}"
        place = path.relative_to(folder) if path.is_relative_to(folder) else path
        found.append(Picture(name, data, str(place)))
    return found
