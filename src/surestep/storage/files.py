"""Files that may be a stranger's, or half of one: read with care, written so that nothing is lost.

What is read is a plain file of a bounded size. What is written lies beside its place until all of
it is on the disk, and is renamed into it: a reader, or a run that goes on after a power cut, sees
the old file or the new one.
"""

import contextlib
import errno
import fcntl
import json
import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from surestep.base.errors import RunFolderError

LARGEST_TEXT = 64 * 2**20
"""Bytes of the largest JSON file that is read; runs write a thousandth of it."""


def require_plain(path: Path, most: int | None = None) -> int:
    """The size of a plain file; what is none, or is larger than it may be, is refused."""
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        raise RunFolderError(f"{path} cannot be read: it is not a plain file")
    if most is not None and found.st_size > most:
        raise RunFolderError(
            f"{path} cannot be read: its {found.st_size} bytes are more than the {most} that such "
            "a file may have"
        )
    return found.st_size


def read_bytes(path: Path, most: int = LARGEST_TEXT) -> bytes:
    """What a plain file holds."""
    try:
        require_plain(path, most)
        # Should it have become a pipe by now: without waiting for a writer.
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            return file.read(most)
    except OSError as error:
        raise RunFolderError(f"{path} cannot be read: {error.strerror or error}") from error


def read_text(path: Path) -> str:
    """What a text file holds."""
    try:
        return read_bytes(path).decode()
    except UnicodeDecodeError as error:
        raise RunFolderError(f"{path} cannot be read: {error}") from error


def parse_json(text: str, where: Path | str) -> Any:
    """The value of a JSON text."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RunFolderError(f"{where} cannot be read: {error}") from error


def read_json(path: Path) -> Any:
    """The value in a JSON file."""
    return parse_json(read_text(path), path)


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically."""
    write_bytes(path, text.encode())


def write_bytes(
    path: Path, content: bytes | Iterable[bytes | memoryview], previous: Path | None = None
) -> None:
    """Write a file atomically; the one that it replaces can be kept as `previous`.

    Content in pieces is written piece by piece, so that it is nowhere there as a whole.
    """
    beside = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Never through a link that lies there: the name can be guessed.
        beside.unlink(missing_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(beside, flags, 0o666), "wb") as file:
            for piece in (content,) if isinstance(content, bytes) else content:
                file.write(piece)
            file.flush()
            os.fsync(file.fileno())
        if previous is not None and path.exists():
            path.replace(previous)
        beside.replace(path)
        _settle(path.parent)
    except OSError as error:
        with contextlib.suppress(OSError):
            beside.unlink(missing_ok=True)
        raise RunFolderError(f"cannot write {path}: {error.strerror or error}") from error


@contextlib.contextmanager
def exclusive(lock: Path, where: Path) -> Iterator[None]:
    """Keep other processes out that ask for the same lock; they are told where someone works."""
    # Never through a link, never waiting, and what may be there is left as it is.
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        lock.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(lock, flags, 0o666)
    except OSError as error:
        raise RunFolderError(f"{where} cannot be written: {error.strerror or error}") from error
    with os.fdopen(descriptor, "rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise RunFolderError(f"another process is working in {where}") from error
        yield


def _settle(folder: Path) -> None:
    """Have the renaming itself on the disk, where the file system can."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)
