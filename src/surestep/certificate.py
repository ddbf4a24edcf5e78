"""Certificates: statements with value, confidence, sample sizes and assumptions."""

import dataclasses
import hashlib
import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from surestep.errors import RunFolderError
from surestep.records import from_plain, to_json
from surestep.split import Split
from surestep.stages.certify import Certified, CertifySettings
from surestep.stages.sample import Sampled
from surestep.task import Task

SCHEMA = 1


@dataclasses.dataclass(frozen=True)
class Statement:
    """One sentence that a certificate asserts, with what it rests on."""

    name: str
    value: float
    confidence: float
    sentence: str
    assumptions: list[str]
    estimates: list[str]
    """Quantities the theorem wants exactly and that were estimated; empty if there are none."""

    @property
    def rigorous(self) -> bool:
        """Whether nothing was plugged in."""
        return not self.estimates

    def __str__(self) -> str:
        lines = [self.sentence]
        if self.estimates:
            lines.append(
                "  This rests on estimates in place of: " + "; ".join(self.estimates) + "."
            )
        lines.append("  Assumptions: " + "; ".join(self.assumptions) + ".")
        return "\n".join(lines)


@dataclasses.dataclass(frozen=True)
class Certificate:
    """All that is asserted of one learned rule, and the data behind it."""

    schema: int
    problem: str
    horizon: int
    deployed_sample: int
    deployed_weight: float
    solver_sha256: str
    data_sha256: dict[str, str]
    sizes: dict[str, int]
    statements: list[Statement]

    def __str__(self) -> str:
        head = (
            f"Certificate for the rule learned on {self.problem} "
            f"(after {self.horizon} iterations, {self.sizes['train']} train instances)"
        )
        return "\n\n".join([head, *map(str, self.statements)])

    def save(self, path: Path) -> None:
        """Write the certificate as JSON."""
        from surestep.store import write_text  # noqa: PLC0415 - the store knows no certificates

        write_text(path, to_json(self))

    @classmethod
    def load(cls, path: Path) -> "Certificate":
        """Read a certificate."""
        try:
            plain: Any = json.loads(path.read_text())
        except (OSError, ValueError) as error:
            raise RunFolderError(f"{path} cannot be read: {error}") from error
        return from_plain(cls, plain, path.name)


def paper_statements(
    settings: CertifySettings, certified: Certified, sizes: dict[str, int]
) -> list[Statement]:
    """The paper's bound with its plug-ins named, for the posterior and for the deployed rule.

    Both come from one event: the theorem holds for all posteriors at once, a point mass among
    them.
    """
    deployed = _paper_statement(
        "the deployed rule", certified.point_bound, settings, certified, sizes
    )
    drawn = "a rule drawn from the posterior"
    return [deployed, _paper_statement(drawn, certified.bound, settings, certified, sizes)]


def _paper_statement(
    who: str,
    value: float,
    settings: CertifySettings,
    certified: Certified,
    sizes: dict[str, int],
) -> Statement:
    return Statement(
        name=f"paper: expected loss of {who} where the goal is reached",
        value=value,
        confidence=1 - settings.epsilon,
        sentence=(
            f"With confidence {percent(1 - settings.epsilon)}, {who} has, on a new instance on "
            f"which it reaches the goal, an expected loss of at most {rounded_up(value)}."
        ),
        assumptions=[
            "the loss is never negative",
            f"the {sizes['train']} train instances are independent draws from the distribution "
            "that new instances come from, and chose nothing but the posterior",
            "every rollout starts at the problem's start",
            f"the bound is minimised over {len(certified.lambdas)} values of lambda, fixed before "
            "the train set was opened and paid for",
        ],
        estimates=[
            "the success probability of each sample (a Beta posterior's point, from the "
            "validation set that also chose the samples)",
            "the second moment of the goal's threshold (the train set's own)",
        ],
    )


def certificate(
    name: str, settings: CertifySettings, task: Task, split: Split, prior: Sampled, found: Certified
) -> Certificate:
    """The certificate of a run."""
    sizes = {key: getattr(split, key).size for key in ("prior", "validation", "train")}
    hashes = split.fingerprints()
    return Certificate(
        schema=SCHEMA,
        problem=name,
        horizon=task.horizon,
        deployed_sample=found.mode,
        deployed_weight=float(np.exp(found.log_posterior[found.mode])),
        solver_sha256=hyper_fingerprint(prior.hypers[found.mode]),
        data_sha256={key: hashes[key] for key in sizes},
        sizes=sizes,
        statements=paper_statements(settings, found, sizes),
    )


def percent(share: float) -> str:
    """A probability as a percentage, with as many digits as it needs."""
    return f"{100 * share:.6g}%"


def rounded_up(value: float, digits: int = 4) -> str:
    """A number with few digits that is not below the number itself."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    unit = 10.0 ** (math.floor(math.log10(abs(value))) - digits + 1)
    return f"{math.ceil(value / unit) * unit:.{digits}g}"


def hyper_fingerprint(hyper: np.ndarray) -> str:
    """A hash of the numbers that make the deployed rule."""
    digest = hashlib.sha256(f"{hyper.dtype} {hyper.shape}\n".encode())
    digest.update(np.asarray(hyper, order="C").tobytes())
    return digest.hexdigest()
