"""The stock of digits: files in and out, what is refused, and what stands in for MNIST."""

import dataclasses
import gzip
import hashlib
import logging
import sys
from pathlib import Path
from types import SimpleNamespace
from urllib.error import URLError

import numpy as np
import pytest

from surestep.base.errors import ConfigurationError
from surestep.paper import digits
from surestep.paper.digits import FILES, IdxFile, Stock, open_stock, read_folder, read_idx

MNIST = Path(__file__).parents[3] / "shared" / "mnist"
needs_mnist = pytest.mark.skipif(not MNIST.is_dir(), reason=f"the MNIST files are not in {MNIST}")

RANDOM = np.random.default_rng(0)
SMALL = {
    "train-images": RANDOM.integers(0, 256, (7, 28, 28), np.uint8),
    "train-labels": RANDOM.integers(0, 10, 7, np.uint8),
    "test-images": RANDOM.integers(0, 256, (3, 28, 28), np.uint8),
    "test-labels": RANDOM.integers(0, 10, 3, np.uint8),
}


def idx(array):
    """The IDX format, written down from its description."""
    head = b"\x00\x00\x08" + bytes([array.ndim])
    return head + np.array(array.shape, ">i4").tobytes() + array.tobytes()


def described(name):
    content = idx(SMALL[name])
    return IdxFile(name, SMALL[name].shape, hashlib.sha256(content).hexdigest())


SMALL_FILES = tuple(described(name) for name in SMALL)


@pytest.fixture
def folder(tmp_path):
    """Two files as they are, two gzipped."""
    for name, array in SMALL.items():
        if "images" in name:
            (tmp_path / f"{name}.gz").write_bytes(gzip.compress(idx(array)))
        else:
            (tmp_path / name).write_bytes(idx(array))
    return tmp_path


def test_what_was_written_is_read(folder):
    stock = read_folder(folder, SMALL_FILES)
    expected = np.concatenate([SMALL["train-images"], SMALL["test-images"]])
    np.testing.assert_array_equal(stock.images, expected)
    np.testing.assert_array_equal(
        stock.labels, np.concatenate([SMALL["train-labels"], SMALL["test-labels"]])
    )


def test_a_missing_folder_and_a_missing_file(folder):
    with pytest.raises(ConfigurationError, match="is not a folder"):
        open_stock(str(folder / "nowhere"))
    (folder / "test-labels").unlink()
    with pytest.raises(ConfigurationError, match=r"lacks test-labels \(or test-labels\.gz\)"):
        read_folder(folder, SMALL_FILES)


CONTENT = idx(SMALL["train-labels"])
FILE = SMALL_FILES[1]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (CONTENT[:-2], "cut short at 13 of the 15 bytes"),
        (b"", "cut short at 0 of"),
        (CONTENT + b"x", "longer than the 15 bytes"),
        (b"\x00\x00\x08\x03" + CONTENT[4:], "does not begin like train-labels"),
        (CONTENT[:-1] + bytes([CONTENT[-1] ^ 1]), "not the known train-labels: its SHA-256"),
    ],
)
@pytest.mark.parametrize("packed", [False, True])
def test_wrong_files_are_refused(tmp_path, content, message, packed):
    path = tmp_path / ("file.gz" if packed else "file")
    path.write_bytes(gzip.compress(content) if packed else content)
    with pytest.raises(ConfigurationError, match=message):
        read_idx(path, FILE)


def test_damaged_gzip_files_are_refused(tmp_path):
    path = tmp_path / "file.gz"
    for damaged in (gzip.compress(CONTENT)[:-12], b"no gzip at all", gzip.compress(CONTENT)[:14]):
        path.write_bytes(damaged)
        with pytest.raises(ConfigurationError, match=r"file\.gz (cannot be read|is cut short)"):
            read_idx(path, FILE)


def test_a_file_that_unpacks_to_far_too_much_is_not_unpacked(tmp_path, monkeypatch):
    path = tmp_path / "bomb.gz"
    path.write_bytes(gzip.compress(CONTENT + bytes(10**7)))
    asked = []
    read = gzip.GzipFile.read
    monkeypatch.setattr(
        gzip.GzipFile, "read", lambda file, size=-1: asked.append(size) or read(file, size)
    )
    with pytest.raises(ConfigurationError, match="longer than the 15 bytes"):
        read_idx(path, FILE)
    assert asked == [16]


@needs_mnist
def test_the_known_files_are_mnist():
    stock = open_stock(str(MNIST))
    assert stock.images.shape == (70_000, 28, 28)
    # The numbers that everyone normalises MNIST with are its training images' own.
    grey = stock.images[:60_000] / 255
    assert round(float(grey.mean()), 4) == digits.MEAN
    assert round(float(grey.std()), 4) == digits.DEVIATION
    assert stock.labels[:10].tolist() == [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]
    assert str(stock).startswith("MNIST, 70000 images, SHA-256 ")


def test_the_known_files_have_the_known_sizes():
    assert [file.size for file in FILES] == [47_040_016, 60_008, 7_840_016, 10_008]


def test_without_a_network_digits_stand_in_and_it_is_said(caplog, monkeypatch):
    def unreachable(*_, **__):
        raise URLError("no route to host")

    monkeypatch.setattr("sklearn.datasets.fetch_openml", unreachable)
    with caplog.at_level(logging.WARNING, "surestep"):
        stock = open_stock("")
    assert "no route to host" in caplog.text
    assert "--data DIR" in caplog.text
    assert "instead of MNIST: 20 x 20 enlargements of 8 x 8 images" in str(stock)
    assert stock.images.shape == (1797, 8, 8)


def test_fetching_does_not_wait_long(monkeypatch):
    seen = []

    def slow(*_, **settings):
        seen.append((digits.socket.getdefaulttimeout(), settings["n_retries"]))
        raise TimeoutError

    monkeypatch.setattr("sklearn.datasets.fetch_openml", slow)
    before = digits.socket.getdefaulttimeout()
    open_stock("")
    assert seen == [(digits.NETWORK_SECONDS, 1)]
    assert digits.socket.getdefaulttimeout() == before


def test_scikit_learn_accepts_what_it_is_asked(monkeypatch, tmp_path):
    """Refused arguments would look as if there were no network."""

    def unreachable(*_, **__):
        raise URLError("no route to host")

    monkeypatch.setenv("SCIKIT_LEARN_DATA", str(tmp_path))
    monkeypatch.setattr("sklearn.datasets._openml.urlopen", unreachable)
    with pytest.raises(URLError, match="no route to host"):
        digits.fetch_mnist()


def fetched(pixels, labels):
    return lambda *_, **__: SimpleNamespace(data=pixels, target=labels)


def test_what_is_fetched_is_used(monkeypatch):
    pixels = np.zeros((70_000, 784), np.int64)
    pixels[3, 5] = 200
    labels = np.full(70_000, "7", object)
    monkeypatch.setattr("sklearn.datasets.fetch_openml", fetched(pixels, labels))
    stock = open_stock("")
    assert (stock.name, stock.note) == ("MNIST", "")
    assert stock.images[3, 0, 5] == 200
    assert stock.images.dtype == stock.labels.dtype == np.uint8
    assert np.all(stock.labels == 7)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda p, t: (p[:-1], t), "70000 images"),
        (lambda p, t: (p + 0.5, t), "whole numbers from 0 to 255"),
        (lambda p, t: (p, np.full(70_000, "10")), "whole numbers from 0 to 9"),
    ],
)
def test_what_is_fetched_must_be_mnist(monkeypatch, change, message):
    pixels, labels = change(np.zeros((70_000, 784)), np.full(70_000, "7"))
    monkeypatch.setattr("sklearn.datasets.fetch_openml", fetched(pixels, labels))
    with pytest.raises(ValueError, match=message):
        digits.fetch_mnist()


def test_a_missing_scikit_learn_is_said(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(ConfigurationError, match=r"surestep\[problems\]"):
        open_stock("digits")


def test_images_are_resized_and_normalised():
    grey = Stock("grey", np.full((3, 28, 28), 51, np.uint8), np.zeros(3, np.uint8))
    np.testing.assert_allclose(grey.normalised(block=2), (0.2 - 0.1307) / 0.3081, rtol=1e-5)
    # A linear ramp stays one: resizing without aliasing averages neighbours, evenly.
    ramp = np.broadcast_to((9 * np.arange(28)).astype(np.uint8), (1, 28, 28))
    small = Stock("ramp", ramp, np.zeros(1, np.uint8)).normalised() * 0.3081 + 0.1307
    centres = np.tile((np.arange(20) + 0.5) * 28 / 20 - 0.5, (20, 1))
    np.testing.assert_allclose(small[0, :, 2:-2] * 255 / 9, centres[:, 2:-2], atol=0.05)


@needs_mnist
def test_resizing_is_that_of_pillow():
    """Pillow's bilinear filter, the reference for resizing without aliasing."""
    image = pytest.importorskip("PIL.Image")
    content = gzip.decompress((MNIST / "t10k-images-idx3-ubyte.gz").read_bytes())[16:]
    some = np.frombuffer(content, np.uint8).reshape(-1, 28, 28)[:20]
    mine = Stock("some", some, np.zeros(20, np.uint8)).normalised() * 0.3081 + 0.1307
    for picture, small in zip(some, mine, strict=True):
        wanted = image.fromarray(picture).resize((20, 20), image.Resampling.BILINEAR)
        # Pillow rounds to whole grey levels, after each of two passes.
        np.testing.assert_allclose(255 * small, np.asarray(wanted, float), atol=1.01)


def test_the_bundled_digits_can_be_told_apart_from_others():
    stock = open_stock("digits")
    assert stock.normalised().shape == (1797, 20, 20)
    assert stock.images.max() == stock.white == 16
    turned = dataclasses.replace(stock, labels=stock.labels[::-1])
    assert turned.sha256 != stock.sha256
    assert stock.sha256 in str(stock)
