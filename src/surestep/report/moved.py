"""If the world moves: what a certificate's probabilities say of other distributions."""

from surestep.certify import Certificate, percent, rounded_down
from surestep.certify.certificate import SHIFT
from surestep.certify.claims.shift import ENTROPY, RATIO, VARIATION
from surestep.report.page_tables import Cell, Heading, Table

_EQUAL = 1e-12
_HEAD = (
    "Statement",
    "Certified",
    "Still at least",
    "Anything else among new instances (total variation)",
    "No kind more frequent than (density ratio)",
    "Relative entropy",
)


def moved_table(certificate: Certificate) -> Table | None:
    """How far the distribution may move until a probability falls to the one named."""
    rows = [
        _row(one.name, one.details[SHIFT]) for one in certificate.statements if SHIFT in one.details
    ]
    if not rows:
        return None
    caption = "Each column by itself: so far may the distribution move"
    return Table(caption, [[Heading(words) for words in _HEAD]], rows)


def moved_words(certificate: Certificate) -> str:
    """What the first of these statements says of other distributions, in a sentence."""
    found = [(s.name, s.details[SHIFT]) for s in certificate.statements if SHIFT in s.details]
    return f"Of '{found[0][0]}': {found[0][1]['sentence']}" if found else ""


def _row(name: str, told: dict) -> list[Cell]:
    within = told["within"]
    ratio = within[RATIO]
    return [
        Cell(name),
        Cell(_share(1 - told["failing"])),
        Cell(_share(1 - told["allowed"])),
        Cell(f"up to {_share(within[VARIATION])}"),
        Cell("any" if ratio is None else f"{rounded_down(ratio, 3)} times"),
        Cell(rounded_down(within[ENTROPY], 3)),
    ]


def _share(probability: float) -> str:
    whole = round(probability, 2)
    # Rounding down takes what is a little less than 0.7 for 0.6999.
    return percent(whole if abs(probability - whole) < _EQUAL else float(rounded_down(probability)))
