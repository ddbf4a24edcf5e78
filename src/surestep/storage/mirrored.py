"""Facts that a run cannot do without: text files with a checksum and a copy.

The copy lies beside the file and is written before it, with the checksums of its text and of the
text before. So a file that was damaged is noticed and mended, and one that is merely older than its
copy, because the power went between the two, is not mistaken for a damaged one.
"""

import dataclasses
import hashlib
import logging
from pathlib import Path

from surestep.base.errors import RunFolderError
from surestep.storage.files import read_bytes, write_bytes

log = logging.getLogger("surestep")

_MARK = "surestep copy 1"


@dataclasses.dataclass(frozen=True)
class Kept:
    """A text file that is kept twice."""

    path: Path

    @property
    def copy(self) -> Path:
        """Where the copy lies."""
        return self.path.with_name(f".{self.path.name}.copy")

    def exists(self) -> bool:
        """Whether it was ever written."""
        return self.path.exists() or self.copy.exists()

    def write(self, text: str) -> None:
        """Write the copy, then the file."""
        content = text.encode()
        before = _sha256(read_bytes(self.path)) if self.path.exists() else "-"
        head = f"{_MARK} {_sha256(content)} {before}\n".encode()
        write_bytes(self.copy, head + content)
        write_bytes(self.path, content)

    def read(self) -> str:
        """The text as it was written last; damage that cannot be mended is refused."""
        try:
            return self._good().decode()
        except UnicodeDecodeError as error:
            raise RunFolderError(f"{self.path} cannot be read: {error}") from error

    def mend(self) -> None:
        """Put the file right if it is not what was written last; what was there is kept aside."""
        if not self.exists():
            return
        good, found = self._good(), self._content(self.path)
        if found == good:
            return
        if found is not None and not self._outdated(found):
            write_bytes(self.path.with_name(f"{self.path.name}.damaged"), found)
        write_bytes(self.path, good)

    def agrees(self) -> bool:
        """Whether file, copy and checksum are the same; without a copy there is nothing to say."""
        found, kept = self._content(self.path), self._content(self.copy)
        if kept is None:
            return True
        head, _, copied = kept.partition(b"\n")
        return found == copied and _sha256(copied) == _sums(head)[0]

    def _good(self) -> bytes:
        found, kept = self._content(self.path), self._content(self.copy)
        if kept is None or b"\n" not in kept:
            # A folder from elsewhere, without its hidden files; or nothing is left of the copy.
            if found is None:
                raise RunFolderError(f"{self.path} cannot be read: there is no such file")
            if kept is not None:
                log.warning("%s is damaged: %s cannot be checked", self.copy, self.path)
            return found
        head, _, copied = kept.partition(b"\n")
        wanted = _sums(head)[0]
        if found is not None and _sha256(found) == wanted:
            return found
        if _sha256(copied) == wanted:
            if found is not None and not self._outdated(found):
                log.warning(
                    "%s is not what was written: damaged or changed by hand. The copy is used",
                    self.path,
                )
            return copied
        if found == copied:
            # It is the checksum that was damaged.
            return copied
        raise RunFolderError(
            f"{self.path} is damaged: its checksum does not fit, and its copy is damaged too"
        )

    def _outdated(self, found: bytes) -> bool:
        kept = self._content(self.copy) or b""
        return _sha256(found) == _sums(kept.partition(b"\n")[0])[1]

    @staticmethod
    def _content(path: Path) -> bytes | None:
        return read_bytes(path) if path.exists() else None


def _sums(head: bytes) -> tuple[str, str]:
    """The checksums of the text and of the text before; empty if they cannot be read."""
    words = head.decode(errors="replace").removeprefix(_MARK).split()
    return (words[0], words[1]) if len(words) == 2 else ("", "")


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
