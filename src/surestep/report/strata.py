"""What is certified of each kind of instances, and of predictions, as tables."""

from surestep.certify import Certificate, Statement, percent, rounded_down, rounded_up
from surestep.certify.claims.strata import PREFIX
from surestep.report.page_tables import Cell, Heading, Table


def strata_table(certificate: Certificate) -> Table | None:
    """For every kind of instances how often the goal is reached, and how soon how many are close.

    One kind a row; iterations are those to the headline's target.
    """
    found = [s for s in certificate.statements if "stratum" in s.details]
    if not found:
        return None
    shares = sorted({share for s in found for share in s.details["iterations"]}, key=float)
    head = [
        Heading("New instances"),
        Heading(f"Train instances, of {certificate.sizes['train']}"),
        Heading(f"Reach the goal within {certificate.horizon} iterations"),
        *(Heading(f"Iterations until {percent(float(s))} are so close") for s in shares),
    ]
    rows = [
        [
            Cell(_kind(s)),
            Cell(f"{s.details['train_instances']}"),
            Cell(f"at least {percent(float(rounded_down(1 - s.value)))}"),
            *(Cell(_count(s.details["iterations"].get(share))) for share in shares),
        ]
        for s in found
    ]
    words = found[0].details["target"]
    return Table(f"Certified for each kind; so close: instances {words}", [head], rows)


def predictions_table(certificate: Certificate) -> Table | None:
    """By which factor shares of new instances may be worse than predicted."""
    found = [s for s in certificate.statements if "predictor" in s.details]
    if not found:
        return None
    factors = found[0].details["factors"]
    head = [Heading("Share of new instances"), Heading("At most so many times the prediction")]
    rows = [
        [
            Cell(percent(float(share))),
            Cell("none" if factors[share] is None else rounded_up(factors[share])),
        ]
        for share in sorted(factors, key=float)
    ]
    return Table(f"Predicted: {found[0].details['predicted']}", [head], rows)


def _kind(statement: Statement) -> str:
    """The kind's name, and what it means where that is something else."""
    name, words = statement.name.removeprefix(PREFIX), str(statement.details["stratum"])
    return words if name == words else f"{name}: {words}"


def _count(number: float | None) -> str:
    return "none" if number is None else f"{number:.0f}"
