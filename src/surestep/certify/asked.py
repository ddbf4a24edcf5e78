"""What people ask to be certified, in words: `within 1e-4 in 50 iterations: 0.999`."""

import dataclasses
import re

from surestep.base.errors import ConfigurationError
from surestep.certify.targets import Kind, Target

GRAMMAR = (
    "a claim reads WHAT [in N iterations] [: P], where WHAT is one of 'within V' (of the minimum), "
    "'within V % of the minimum', 'within V of the gap' (from the start's loss to the minimum), "
    "'loss V' and 'goal', and P is the share of new instances, as in "
    "'within 1e-4 in 50 iterations: 0.999'"
)

_NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
_WHAT: tuple[tuple[str, Kind], ...] = (
    (rf"within ({_NUMBER}) ?% of the minimum", "reference"),
    (rf"within ({_NUMBER}) of the gap", "start"),
    (rf"within ({_NUMBER})(?: of the minimum)?", "loss"),
    (rf"loss ({_NUMBER})", "loss"),
    (r"(?:the )?goal", "goal"),
)
_WHOLE = re.compile(
    r"(?P<what>.*?)(?: in (?P<iterations>\d+) iterations?)?"
    rf"(?: ?: ?(?P<share>{_NUMBER}) ?(?P<percent>%)?)?"
)


@dataclasses.dataclass(frozen=True)
class Asked:
    """A claim as somebody asks for it."""

    target: Target
    """What an instance is to reach."""
    from_zero: bool
    """Whether losses are meant as they are, not above a minimum that may be known."""
    iterations: int | None
    """After how many iterations; None where that is left open."""
    share: float | None
    """By which share of new instances; None where that is left open."""

    @property
    def words(self) -> str:
        """The claim in the words of its grammar: the same claim has the same words."""
        value = f"{self.target.value:.12g}"
        what = {
            "goal": "goal",
            "reference": f"within {100 * self.target.value:.12g} % of the minimum",
            "start": f"within {value} of the gap",
            "loss": f"loss {value}" if self.from_zero else f"within {value}",
        }[self.target.kind]
        when = "" if self.iterations is None else f" in {self.iterations} iterations"
        return what + when + ("" if self.share is None else f": {self.share:.12g}")

    @classmethod
    def read(cls, text: str) -> "Asked":
        """Understand a claim, or say what would be understood."""
        plain = " ".join(text.split())
        found = _WHOLE.fullmatch(plain)
        assert found is not None
        for pattern, possible in _WHAT:
            what = re.fullmatch(pattern, found["what"].strip(), re.IGNORECASE)
            kind: Kind = possible
            if what is not None:
                break
        else:
            raise ConfigurationError(f"{text!r} is not understood: {GRAMMAR}")
        value = 0.0 if kind == "goal" else _number(what[1], kind == "reference")
        from_zero = plain[:4].lower() == "loss"
        if kind != "goal" and not from_zero and not value > 0:
            raise ConfigurationError(f"{text!r}: how close it is to be must be a positive number")
        share = None
        if found["share"] is not None:
            share = _number(found["share"], bool(found["percent"]))
            if not 0 < share < 1:
                raise ConfigurationError(
                    f"{text!r}: a share of new instances lies strictly between 0 and 1 (or 0 % and "
                    f"100 %), not at {share:g}"
                )
        iterations = None if found["iterations"] is None else int(found["iterations"])
        if iterations == 0:
            raise ConfigurationError(f"{text!r}: it takes at least one iteration")
        return cls(Target(kind, value), from_zero, iterations, share)


def _number(text: str, percent: bool) -> float:
    """A number as it would be written again: with twelve digits at most."""
    return float(f"{float(text) / (100 if percent else 1):.12g}")
