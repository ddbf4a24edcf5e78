"""Certificates: statements with value, confidence, sample sizes and assumptions."""

import dataclasses
import math
from pathlib import Path
from typing import Any

from surestep.bounds.budget import Share
from surestep.certify.subject import Opened, Standing, Subject
from surestep.storage.files import read_json, write_text
from surestep.storage.records import from_plain, json_schema, to_json

SCHEMA = 3
_SINCE_3 = ("posterior_sha256", "subject", "opened", "standing")

SHIFT = "if the world moves"
"""The name under which details hold what a statement says of other distributions."""


@dataclasses.dataclass(frozen=True)
class Statement:
    """One sentence that a certificate asserts, with what it rests on.

    **Example:**

    ```python
    for statement in learned.certificate.statements:
        print(statement.name, statement.value, statement.rigorous)
    ```
    """

    name: str
    value: float
    """The number, for the rule that is deployed."""
    posterior_value: float
    """The same for a rule drawn afresh from the posterior; it holds at the same time."""
    confidence: float
    epsilon: float
    """The share of the certificate's epsilon that pays for it; 0 if it is no guarantee."""
    sentence: str
    assumptions: list[str]
    estimates: list[str]
    """Quantities the theorem wants exactly and that were estimated; empty for a guarantee."""
    details: dict[str, Any]

    @property
    def rigorous(self) -> bool:
        """Whether nothing was plugged in."""
        return not self.estimates

    @property
    def plain(self) -> str:
        """The sentence without its confidence, for where a heading gives it for all."""
        _, found, rest = self.sentence.partition("%, ")
        return (rest[0].upper() + rest[1:]) if found else self.sentence


@dataclasses.dataclass(frozen=True)
class Certificate:
    """All that is asserted of one learned rule, and the data behind it.

    The rigorous statements hold jointly with confidence `1 - epsilon`.

    **Example:**

    ```python
    certificate = learned.certificate
    print(certificate)
    print(certificate.epsilon, certificate.assumptions)
    ```
    """

    schema: int
    problem: str
    horizon: int
    epsilon: float
    ledger: list[Share]
    deployed_sample: int
    solver_sha256: str
    plan_sha256: str
    evidence_sha256: str
    data_sha256: dict[str, str]
    sizes: dict[str, int]
    statements: list[Statement]
    posterior_sha256: str = ""
    """The hash of the prior's samples with their posterior weights."""
    subject: Subject | None = None
    """The goal, the family's parameters, the prior, and the certificate's number."""
    opened: Opened | None = None
    """What has decided which train instances were taken; None if they came from a file."""
    standing: Standing | None = None
    """What is known of the certificates before it; None for a run's own."""

    def __str__(self) -> str:
        sure = [s for s in self.statements if s.rigorous]
        rest = [s for s in self.statements if not s.rigorous]
        moved = [s for s in sure if SHIFT in s.details][:1]
        size = self.sizes.get("train")
        # Of a solver that was not learned here only outcomes are known.
        about = (
            f"the rule learned on {self.problem}, from {size} train instances"
            if self.solver_sha256
            else f"{self.problem}, from {size} instances"
        )
        lines = [
            f"Certificate for {about}. With confidence {percent(1 - self.epsilon)} all of these "
            "hold at once:",
            *(f"- {statement.plain}" for statement in sure),
            *(f"- Of '{s.name}': {s.details[SHIFT]['sentence']}" for s in moved),
            "",
            "Assumptions:",
            *(f"- {text}" for text in self.assumptions),
            *(["", *self.remarks] if self.remarks else []),
        ]
        if rest:
            lines += ["", "As the paper defines it, not a guarantee:"]
            lines += [f"- {statement.sentence}" for statement in rest]
            named = dict.fromkeys(text for s in rest for text in s.estimates)
            lines.append("  It rests on estimates in place of: " + "; ".join(named) + ".")
        return "\n".join(lines)

    @property
    def assumptions(self) -> list[str]:
        """What the rigorous statements rest on, each once."""
        sure = [s for s in self.statements if s.rigorous]
        return list(dict.fromkeys(text for s in sure for text in s.assumptions))

    @property
    def remarks(self) -> list[str]:
        """What else somebody must know who has to believe it, in sentences."""
        if self.subject is None:
            return []
        number, found = self.subject.number, []
        if self.standing is not None:
            joint = percent(max(0.0, 1 - self.standing.joint_epsilon))
            found.append(
                f"This is certificate {number} after the run's own: all {number + 1} hold at once "
                f"with confidence {joint}."
            )
            if self.deployed_sample != self.standing.deployed_sample:
                found.append(
                    f"It is about sample {self.deployed_sample} of the prior, not about sample "
                    f"{self.standing.deployed_sample}, which the run has deployed."
                )
        if self.opened is not None:
            return [*found, self.opened.in_words(number)]
        return [*found, "Its instances came from a file; how they were chosen cannot be found."]

    def save(self, path: Path) -> None:
        """Write the certificate as JSON."""
        write_text(path, to_json(self))

    @classmethod
    def load(cls, path: Path) -> "Certificate":
        """Read a certificate."""
        return cls.from_plain(read_json(path), path.name)

    @classmethod
    def from_plain(cls, plain: Any, where: str) -> "Certificate":
        """A certificate from plain values; earlier versions said less."""
        return from_plain(cls, upgraded(plain), where)


def schema() -> dict[str, Any]:
    """The JSON schema of a certificate, as published in `docs/certificate.schema.json`."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"surestep certificate, version {SCHEMA}",
        **json_schema(Certificate),
    }


def upgraded(plain: Any) -> Any:
    """Plain values of a certificate with what versions before this one did not write."""
    if not isinstance(plain, dict) or plain.get("schema") not in (1, 2):
        return plain
    return {name: "" if name == "posterior_sha256" else None for name in _SINCE_3} | plain


def percent(share: float) -> str:
    """A probability as a percentage, with as many digits as it needs."""
    shown = f"{100 * share:.10g}"
    # Nothing is certain: what rounds to certainty is said to be less.
    return f"{shown}%" if share == 1 or shown != "100" else "99.99999999%"


def rounded_up(value: float, digits: int = 4) -> str:
    """A number with few digits that is not below the number itself."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    unit = 10.0 ** (math.floor(math.log10(abs(value))) - digits + 1)
    return f"{math.ceil(value / unit) * unit:.{digits}g}"


def rounded_down(value: float, digits: int = 4) -> str:
    """A number with few digits that is not above the number itself."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    unit = 10.0 ** (math.floor(math.log10(abs(value))) - digits + 1)
    return f"{math.floor(value / unit) * unit:.{digits}g}"
