"""What is fixed before a train set is opened, as hashes: it decides which instances are drawn."""

import dataclasses
import functools
import hashlib
import json

from surestep.base.errors import ConfigurationError

_LONGEST = 100


@dataclasses.dataclass(frozen=True)
class Commitment:
    """Hashes of a configuration and a plan, and maybe a verifier's word: what opens a train set.

    A train set's key is made from it and the seed. Whoever changes the configuration or the plan
    after having seen a train set gets another one.

    **Example:**

    ```python
    commitment = ss.datasets.Commitment(configuration="a" * 64, plan="b" * 64)
    print(commitment.sha256)  # what a verifier is told
    opened = dataclasses.replace(commitment, word="their answer")
    ```
    """

    configuration: str
    """The hash of the configuration."""
    plan: str
    """The hash of the plan, which holds the hash of the prior's samples."""
    word: str = ""
    """What a verifier has said after being told the hash of the rest; nothing if nobody did."""

    @functools.cached_property
    def sha256(self) -> str:
        """The hash of the three."""
        text = json.dumps([self.configuration, self.plan, self.word])
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def told(self) -> str:
        """The hash that a verifier is told before giving a word."""
        return dataclasses.replace(self, word="").sha256

    @property
    def names(self) -> tuple[int, ...]:
        """The whole hash as names of a key."""
        digest = bytes.fromhex(self.sha256)
        return tuple(int.from_bytes(digest[i : i + 4], "big") for i in range(0, len(digest), 4))


def sha256_of(text: str) -> str:
    """The hash of a text."""
    return hashlib.sha256(text.encode()).hexdigest()


def require_word(word: str) -> None:
    """Refuse a verifier's word that cannot be printed in a line."""
    if len(word) > _LONGEST or not word.isprintable() or word != word.strip():
        raise ConfigurationError(
            f"a verifier's word must be at most {_LONGEST} printable characters in one line, "
            f"without spaces around them, not {word[: 2 * _LONGEST]!r}"
        )
