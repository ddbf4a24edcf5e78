"""Where compiled programs are kept, and that they are used."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from surestep.base import compilation_cache as compiled
from surestep.base.compilation_cache import FOLDER, keep_compiled_programs


@pytest.fixture
def nothing_set(monkeypatch, tmp_path):
    monkeypatch.delenv(FOLDER, raising=False)
    monkeypatch.delenv("SURESTEP_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    # Set here so that it is taken back: the function sets it where it is missing.
    monkeypatch.setenv("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.1")
    yield monkeypatch
    os.environ.pop(FOLDER, None)


def test_they_lie_in_the_users_own_folder(nothing_set, tmp_path):
    folder = keep_compiled_programs()
    assert folder is not None
    assert folder.parent == tmp_path / "cache" / "surestep" / "compiled"
    assert os.environ[FOLDER] == str(folder)
    assert folder.stat().st_mode & 0o777 == 0o700


def test_whoever_says_where_is_obeyed(nothing_set, tmp_path):
    nothing_set.setenv("SURESTEP_CACHE", str(tmp_path / "here"))
    folder = keep_compiled_programs()
    assert folder is not None and folder.parent == tmp_path / "here"
    nothing_set.setenv(FOLDER, str(tmp_path / "jax"))
    assert keep_compiled_programs() == tmp_path / "jax"
    assert not (tmp_path / "jax").exists()


def test_off_is_off(nothing_set):
    nothing_set.setenv("SURESTEP_CACHE", "off")
    assert keep_compiled_programs() is None
    assert FOLDER not in os.environ


def test_a_folder_that_others_can_write_to_is_not_trusted(nothing_set):
    folder = keep_compiled_programs()
    assert folder is not None
    folder.chmod(0o777)
    os.environ.pop(FOLDER)
    assert keep_compiled_programs() is None
    assert FOLDER not in os.environ


def test_a_home_that_cannot_be_used_is_no_error(nothing_set, tmp_path):
    (tmp_path / "file").write_text("")
    nothing_set.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert keep_compiled_programs() is None


def test_what_was_not_used_for_the_longest_time_makes_room(nothing_set, monkeypatch):
    folder = keep_compiled_programs()
    assert folder is not None
    for age, name in enumerate(("newest", "newer", "old")):
        (folder / name).write_bytes(bytes(100))
        os.utime(folder / name, (1e9 - age, 1e9))
    os.environ.pop(FOLDER)
    monkeypatch.setattr(compiled, "LARGEST", 250)
    keep_compiled_programs()
    assert {path.name for path in folder.iterdir()} == {"newest", "newer"}


def test_the_second_process_compiles_nothing(tmp_path):
    """Counted by JAX itself: every program that takes a while is found."""
    code = (
        "from surestep.base.compilation_cache import keep_compiled_programs\n"
        "keep_compiled_programs()\n"
        "import jax, sys\n"
        "events = []\n"
        "jax.monitoring.register_event_listener(lambda name, **_: events.append(name))\n"
        "program = lambda x: jax.numpy.linalg.qr(jax.numpy.sin(x) @ x.T)[1].sum()\n"
        "jax.jit(jax.grad(program))(jax.numpy.eye(7) + 0.5)\n"
        "hits = events.count('/jax/compilation_cache/cache_hits')\n"
        "print(hits, events.count('/jax/compilation_cache/cache_misses'))\n"
    )
    environment = {key: value for key, value in os.environ.items() if not key.startswith("JAX_")}
    environment |= {"XDG_CACHE_HOME": str(tmp_path), "SURESTEP_CACHE": ""}
    environment["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    found = []
    for _ in range(2):
        command = [sys.executable, "-c", code]
        ended = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
        found.append([int(number) for number in ended.stdout.split()])
    assert found[0][0] == 0 and found[0][1] > 0
    assert found[1][0] > 0 and found[1][1] == 0
    assert list(Path(tmp_path).rglob("*-cache"))
