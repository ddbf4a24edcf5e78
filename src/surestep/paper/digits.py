"""The stock of handwritten digits that the MNIST experiment draws its images from.

All data sets of a run share one stock. It is read from the four files of MNIST, fetched with
scikit-learn, or, where neither is to be had, made of the small digits that scikit-learn brings.
"""

import dataclasses
import gzip
import hashlib
import logging
import socket
import warnings
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, UInt8

from surestep.base.errors import ConfigurationError
from surestep.base.machine import require

log = logging.getLogger("surestep")

BUNDLED = "digits"
SIDE = 20
MEAN, DEVIATION = 0.1307, 0.3081
NETWORK_SECONDS = 5.0


@dataclasses.dataclass(frozen=True)
class Stock:
    """Images as they came, with their labels; `note` says if they are not what was wished for."""

    name: str
    images: UInt8[np.ndarray, "image height width"]
    labels: UInt8[np.ndarray, " image"]
    white: int = 255
    note: str = ""

    @property
    def sha256(self) -> str:
        """A hash of every image and label, as they came."""
        shape = f"{self.images.shape} {self.white}\n".encode()
        return hashlib.sha256(shape + self.images.tobytes() + self.labels.tobytes()).hexdigest()

    def __str__(self) -> str:
        note = f" ({self.note})" if self.note else ""
        return f"{self.name}, {len(self.images)} images, SHA-256 {self.sha256}{note}"

    def normalised(self, block: int = 10_000) -> Float[np.ndarray, "image 20 20"]:
        """All images at 20 x 20, resized linearly without aliasing, then normalised."""
        parts = [
            _resized(self.images[first : first + block], self.white)
            for first in range(0, len(self.images), block)
        ]
        return np.concatenate(parts)


def _resized(images: np.ndarray, white: int) -> np.ndarray:
    grey = jnp.asarray(images, jnp.float32) / white
    small = jax.image.resize(grey, (len(images), SIDE, SIDE), "bilinear", antialias=True)
    return np.asarray((small - MEAN) / DEVIATION, np.float32)


@dataclasses.dataclass(frozen=True)
class IdxFile:
    """One file in MNIST's IDX format: its name, the shape of its bytes, and its hash."""

    name: str
    shape: tuple[int, ...]
    sha256: str

    @property
    def header(self) -> bytes:
        """What the file begins with: unsigned bytes, number of axes, their lengths."""
        lengths = b"".join(length.to_bytes(4, "big") for length in self.shape)
        return bytes([0, 0, 8, len(self.shape)]) + lengths

    @property
    def size(self) -> int:
        """The length of the uncompressed file."""
        return len(self.header) + int(np.prod(self.shape))


FILES = (
    IdxFile(
        "train-images-idx3-ubyte",
        (60_000, 28, 28),
        "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    ),
    IdxFile(
        "train-labels-idx1-ubyte",
        (60_000,),
        "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    ),
    IdxFile(
        "t10k-images-idx3-ubyte",
        (10_000, 28, 28),
        "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    ),
    IdxFile(
        "t10k-labels-idx1-ubyte",
        (10_000,),
        "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    ),
)


def open_stock(data: str, fetch: Callable[[], Stock] | None = None) -> Stock:
    """The stock that a setting names: a folder, `digits`, or nothing for whatever can be had."""
    if data == BUNDLED:
        return bundled_digits()
    if data:
        return read_folder(Path(data).expanduser())
    try:
        return (fetch or fetch_mnist)()
    except (OSError, ValueError) as error:
        reason = f"MNIST could not be fetched ({type(error).__name__}: {error})"
    note = f"instead of MNIST: {SIDE} x {SIDE} enlargements of 8 x 8 images"
    log.warning(
        "%s; the digits that scikit-learn brings stand in for it, enlarged from 8 x 8. Give a "
        "folder with the four MNIST files (--data DIR), or --data %s to choose these digits",
        *(reason, BUNDLED),
    )
    return dataclasses.replace(bundled_digits(), note=note)


def bundled_digits() -> Stock:
    """The 1797 digits of 8 x 8 pixels that come with scikit-learn."""
    found: Any = _datasets().load_digits()
    images, labels = found.images.astype(np.uint8), found.target.astype(np.uint8)
    return Stock("scikit-learn's digits (8 x 8)", images, labels, white=16)


_DELAY = 0.01
"""Seconds before a second try, of which there is none; scikit-learn refuses 0."""


def fetch_mnist() -> Stock:
    """MNIST from OpenML, by way of scikit-learn and its cache."""
    datasets = _datasets()
    with _impatient():
        found: Any = datasets.fetch_openml(
            "mnist_784", version=1, as_frame=False, n_retries=1, delay=_DELAY
        )
    images, labels = np.asarray(found.data), np.asarray(found.target)
    if images.shape != (70_000, 784) or labels.shape != (70_000,):
        raise ValueError(
            f"OpenML's MNIST should have 70000 images of 784 pixels, not {images.shape} and "
            f"{labels.shape} labels"
        )
    pixels, digits = _bytes(images, 255, "pixels"), _bytes(labels, 9, "labels")
    return Stock("MNIST", pixels.reshape(-1, 28, 28), digits)


def _bytes(values: np.ndarray, largest: int, what: str) -> UInt8[np.ndarray, "..."]:
    numbers = values.astype(np.float64)
    if not np.all((numbers >= 0) & (numbers <= largest) & (numbers == np.round(numbers))):
        raise ValueError(f"OpenML's {what} should be whole numbers from 0 to {largest}")
    return numbers.astype(np.uint8)


@contextmanager
def _impatient() -> Iterator[None]:
    """No waiting for a network that does not answer, and no warning about retrying."""
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(NETWORK_SECONDS)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        socket.setdefaulttimeout(before)


def _datasets() -> Any:
    return require(
        "sklearn.datasets",
        "scikit-learn",
        "MNIST without --data DIR (its four files)",
    )


def read_folder(folder: Path, files: tuple[IdxFile, ...] = FILES) -> Stock:
    """MNIST from a folder with its four files, gzipped or not, each checked by its hash."""
    if not folder.is_dir():
        raise ConfigurationError(f"{folder} is not a folder: it should hold the four MNIST files")
    # All are looked for before the first is read.
    paths = {file: _find(folder, file) for file in files}
    arrays = [read_idx(path, file) for file, path in paths.items()]
    return Stock("MNIST", np.concatenate(arrays[0::2]), np.concatenate(arrays[1::2]))


def _find(folder: Path, file: IdxFile) -> Path:
    for path in (folder / file.name, folder / f"{file.name}.gz"):
        if path.is_file():
            return path
    raise ConfigurationError(f"{folder} lacks {file.name} (or {file.name}.gz)")


def read_idx(path: Path, file: IdxFile) -> UInt8[np.ndarray, "..."]:
    """The array in an IDX file; no more is ever read than the file should hold."""
    content = _content(path, file.size)
    if len(content) != file.size:
        how = "longer than" if len(content) > file.size else f"cut short at {len(content)} of"
        raise ConfigurationError(f"{path} is {how} the {file.size} bytes of {file.name}")
    if not content.startswith(file.header):
        raise ConfigurationError(
            f"{path} does not begin like {file.name}: bytes {content[: len(file.header)].hex()}, "
            f"not {file.header.hex()}"
        )
    found = hashlib.sha256(content).hexdigest()
    if found != file.sha256:
        raise ConfigurationError(
            f"{path} is not the known {file.name}: its SHA-256 is {found}, not {file.sha256}"
        )
    return np.frombuffer(content, np.uint8, offset=len(file.header)).reshape(file.shape)


def _content(path: Path, size: int) -> bytes:
    """The uncompressed bytes, and one more if there are more than there should be."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as stream:
            return stream.read(size + 1)
    except (OSError, EOFError, zlib.error) as error:
        # A gzip stream that breaks off ends so, too.
        raise ConfigurationError(f"{path} cannot be read: {error}") from error
