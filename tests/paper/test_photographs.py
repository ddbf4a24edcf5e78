"""Photographs from scikit-image and from folders, good and bad."""

import builtins
import logging
import sys

import numpy as np
import pytest
from PIL import Image

from surestep.base.errors import ConfigurationError
from surestep.paper import photographs


def save(path, values, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(values).save(path, **options)


def noise(height, width, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (height, width), np.uint8)


def test_scikit_images_own_photographs_are_there():
    pool = photographs.load("", 250, 187, 600)
    assert len(pool.names) == len(photographs.BUNDLED) == 12
    assert not pool.skipped
    for picture in pool.pictures:
        assert picture.dtype == np.uint8
        assert picture.shape[0] >= 250 and picture.shape[1] >= 187
        assert min(picture.shape) <= 600
        # Photographs, not black squares.
        assert 0.15 * 255 < picture.mean() < 0.85 * 255 and picture.std() > 5
    assert "12 photographs that scikit-image carries (astronaut," in pool.describe()
    assert pool.sha256 in pool.describe()


def test_a_folder_of_ones_own(tmp_path, caplog):
    save(tmp_path / "b.png", noise(30, 20))
    save(tmp_path / "inner" / "a.tif", noise(12, 40, 1))
    save(tmp_path / "small.png", noise(9, 40))
    (tmp_path / "notes.txt").write_text("no picture")
    (tmp_path / "broken.png").write_bytes((tmp_path / "b.png").read_bytes()[:60])
    (tmp_path / ".hidden").write_text("not looked at")
    with caplog.at_level(logging.WARNING):
        pool = photographs.load(str(tmp_path), 10, 10, 100)
    assert pool.names == ("b.png", "inner/a.tif")
    np.testing.assert_array_equal(pool.pictures[0], noise(30, 20))
    assert [line.partition(":")[0] for line in pool.skipped] == [
        "broken.png", "notes.txt", "small.png",
    ]  # fmt: skip
    for name in ("small.png: its 9 x 40 pixels hold no crop of 10 x 10", "notes.txt", "broken"):
        assert name in caplog.text
    assert ".hidden" not in caplog.text


def test_the_fingerprint_sees_every_grey_value(tmp_path):
    values = noise(12, 12)
    save(tmp_path / "a.png", values)
    before = photographs.load(str(tmp_path), 10, 10, 100).sha256
    values[3, 3] ^= 1
    save(tmp_path / "a.png", values)
    assert photographs.load(str(tmp_path), 10, 10, 100).sha256 != before


def test_large_photographs_are_scaled_down_and_keep_their_proportions(tmp_path):
    ramp = np.tile(np.linspace(0, 255, 400).round().astype(np.uint8), (200, 1))
    save(tmp_path / "ramp.png", ramp)
    (picture,) = photographs.load(str(tmp_path), 10, 10, 50).pictures
    assert picture.shape == (50, 100)
    assert np.abs(picture[25, 5:-5] - ramp[0, 22:-20:4].astype(float)[:90]).max() < 4


def test_colours_sixteen_bits_and_turned_cameras(tmp_path):
    red = np.zeros((12, 20, 3), np.uint8)
    red[..., 0] = 255
    save(tmp_path / "1.png", red)
    save(tmp_path / "2.png", np.full((12, 20), 257 * 100, np.uint16))
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was turned by 90 degrees
    save(tmp_path / "3.jpg", noise(12, 20), exif=exif)
    pool = photographs.load(str(tmp_path), 12, 12, 100)
    assert np.unique(pool.pictures[0]).tolist() == [76]  # ITU-R 601: 29.9 % of 255
    assert np.unique(pool.pictures[1]).tolist() == [100]
    assert pool.pictures[2].shape == (20, 12)


def test_folders_without_a_photograph_are_refused(tmp_path):
    with pytest.raises(ConfigurationError, match="the folder is empty"):
        photographs.load(str(tmp_path), 10, 10, 100)
    save(tmp_path / "small.png", noise(5, 5))
    with pytest.raises(ConfigurationError, match=r"no photograph of at least 10 x 10.*small\.png"):
        photographs.load(str(tmp_path), 10, 10, 100)
    with pytest.raises(ConfigurationError, match="must be a folder"):
        photographs.load(str(tmp_path / "nowhere"), 10, 10, 100)


@pytest.mark.parametrize(("module", "package"), [("PIL", "Pillow"), ("skimage", "scikit-image")])
def test_a_missing_package_is_named(module, package, monkeypatch):
    for name in [n for n in sys.modules if n.partition(".")[0] == module]:
        monkeypatch.delitem(sys.modules, name)
    original = builtins.__import__

    def without(name, *rest):
        if name.partition(".")[0] == module:
            raise ImportError(name)
        return original(name, *rest)

    monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ConfigurationError, match=rf"needs {package}.*surestep\[problems\]"):
        photographs.load("", 10, 10, 100)
