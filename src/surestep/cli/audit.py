"""`surestep audit`: are certificates false as rarely as they say?"""

import dataclasses

from surestep.base.errors import ConfigurationError, VerificationError
from surestep.certify.audit import FAMILIES, Outcome, audit, violations
from surestep.cli.arguments import parse


@dataclasses.dataclass(frozen=True)
class Arguments:
    """Count how often certificates are false, on families whose truth is known."""

    repeats: int = 2000
    """Data sets a family."""
    size: int = 60
    """Instances a data set."""
    epsilon: float = 0.3
    """What certificates may cost: large, so that counts tell."""
    seed: int = 0
    """Of the data sets."""


def main(words: list[str]) -> int:
    """Carry out the command."""
    run_audit(parse(Arguments, words, "surestep audit"))
    return 0


def run_audit(given: Arguments) -> None:
    """Audit the real path from evidence to statements on families whose truth is known."""
    if given.repeats < 1 or given.size < 1 or given.seed < 0:
        raise ConfigurationError("--repeats and --size must be at least 1, --seed not negative")
    outcomes: list[Outcome] = []
    head = f"{'family':<20}{'statement':<31}{'false':>12}{'epsilon':>10}{'95% interval':>18}"
    print(f"{head}{'bound - truth':>16}")
    for make in FAMILIES.values():
        for outcome in audit(make(), given.repeats, given.size, given.epsilon, given.seed):
            outcomes.append(outcome)
            low, high = outcome.interval
            print(
                f"{outcome.family:<20}{outcome.statement:<31}"
                f"{f'{outcome.false}/{outcome.repeats}':>12}{outcome.epsilon:>10.4f}"
                f"{f'{low:.4f} - {high:.4f}':>18}{outcome.looseness:>16.4g}"
            )
    found = violations(outcomes)
    if found:
        names = ", ".join(f"{o.statement} ({o.family})" for o in found)
        raise VerificationError(f"false more often than their epsilon: {names}")
    print("no statement is false more often than its epsilon")
