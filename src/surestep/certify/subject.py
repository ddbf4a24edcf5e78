"""What a certificate is about, where its train instances come from, and what stands beside it."""

import dataclasses
from typing import Any

from surestep.problem import Commitment, Goal


@dataclasses.dataclass(frozen=True)
class Subject:
    """What is certified, in the plan and in the certificate."""

    goal: Goal
    """What counts as success."""
    family: Any
    """The family's parameters, as plain values."""
    prior_sha256: str
    """The hash of the prior's samples with all that is known of them."""
    number: int = 0
    """0 for a run's own certificate; later ones of the same prior count from 1."""


@dataclasses.dataclass(frozen=True)
class Opened:
    """What has decided which instances a train set holds."""

    seed: int
    commitment: Commitment

    def in_words(self, number: int) -> str:
        """What follows for those who have to believe the certificate of this number."""
        word = self.commitment.word
        said = f", the plan and the word {word!r}" if word else " and the plan"
        follows = (
            f"Which train instances were taken follows from the seed {self.seed}, the "
            f"configuration, the prior's samples{said}: whoever changes one of them afterwards "
            "gets others."
        )
        if word:
            return (
                f"{follows} If a verifier gave this word after being told the hash "
                f"{self.commitment.told}, no other plan was tried. If not, somebody could have "
                "tried many and shown the best, and that cannot be found."
            )
        if number:
            return (
                f"{follows} If a verifier chose this seed after receiving the rule, no other "
                "instances were tried. If not, somebody could have tried many seeds and shown the "
                "best, and that cannot be found."
            )
        return (
            f"{follows} No verifier has given a word: somebody could have tried many plans or "
            "seeds and shown the best, and that cannot be found."
        )


@dataclasses.dataclass(frozen=True)
class Standing:
    """Where a later certificate stands among those of its run."""

    joint_epsilon: float
    """The probability with which it or any before it, the run's own included, may be false."""
    deployed_sample: int
    """Which sample the run has deployed."""
