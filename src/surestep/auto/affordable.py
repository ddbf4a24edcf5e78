"""What fits into the rest of a budget once a rule is chosen, and what is left out.

Compiling and solving are both paid from it. What does not fit is left out in this order: posterior
samples, opponents, instances; but so many instances are kept that a certificate says something.
"""

import dataclasses

from surestep.problem import SplitSizes

LONG = 240.0
"""Seconds of a budget that leaves time for more than what is needed."""

PILOT = 60
"""On how many prior instances a certificate is planned, in runs of `fit`."""

_CLOSE = 0.25  # of what is left: what minima of the instances of a certificate may take
_REPORT = 4.0  # seconds that report and files take
_OURS, _THEIRS, _COMPARED = 10, 3, 2  # programs of the rule, of an opponent, of one in certificates
_WATCHED = 2  # what a look at every loss multiplies a solve by
_SHOWN = 12  # solves that a shown test instance costs
_SLOWER = 3  # how many times as long an opponent's solve takes
_FEW, _FEWEST = 10, 30  # instances of a set, and of the train set, however long they take
_LEAST = 0.15  # of the budget: what is given to solves, however little is left
_PRIOR, _VALIDATION, _TRAIN, _TEST, _MINIMA = 0.1, 0.1, 0.35, 0.3, 0.15  # shares of it


@dataclasses.dataclass(frozen=True)
class Means:
    """What a run has left, and what things cost it."""

    budget: float
    """All seconds that were given."""
    left: float
    """What is left of them."""
    solve: float
    """Seconds of a solve in a batch."""
    compiling: float
    """Seconds that a program takes to compile."""
    drawing: float = 0.0
    """Seconds that an instance takes to draw."""
    minimum: float = 0.0
    """Seconds that the minimum of an instance takes, in a batch."""


@dataclasses.dataclass(frozen=True)
class Afforded:
    """What a run can do."""

    sizes: SplitSizes
    samples: int
    """How many samples the posterior may have."""
    opponents: int
    """How many opponents are shown."""
    compared: bool
    """Whether the certificate speaks of one of them."""
    minima: float
    """Which share of their time minima of test instances can be given, 1 at most."""
    closeness: bool
    """Whether the certificate says how close to the minima solves come."""
    left_out: tuple[str, ...]
    """What was left out, in words."""


def afford(means: Means, sizes: SplitSizes, opponents: int, samples: int) -> Afforded:
    """As much as fits, of these sizes, and of so many opponents and samples of the posterior."""
    left = means.left - _REPORT - _OURS * means.compiling
    room, drawn = max(left, _LEAST * means.budget), means.drawing
    watched, shown = drawn + _WATCHED * means.solve, drawn + _SHOWN * means.solve

    def fitting(wanted: int, share: float, cost: float, least: int = _FEW) -> int:
        return min(wanted, max(least, int(min(wanted, share * room / cost)) if cost else wanted))

    fewer = SplitSizes(
        prior=fitting(sizes.prior, _PRIOR, watched),
        validation=fitting(sizes.validation, _VALIDATION, watched),
        train=fitting(sizes.train, _TRAIN, watched, _FEWEST),
        test=fitting(sizes.test, _TEST, shown),
    )
    wanted = means.minimum * fewer.test
    minima = min(wanted, _MINIMA * room)
    close = means.minimum * (PILOT + fewer.train)
    closeness = minima == wanted and close <= _CLOSE * room
    left -= watched * (fewer.prior + fewer.validation + fewer.train + PILOT) + minima
    left -= closeness * close
    left -= shown * fewer.test
    solving = _SLOWER * _SHOWN * means.solve * fewer.test
    each = _THEIRS * means.compiling + solving
    compared = _COMPARED * means.compiling + 2 * _WATCHED * means.solve * fewer.train
    certified = opponents > 0 and left >= each + compared
    more = int(min(opponents, max(0.0, (left - compared) / each))) if each else opponents
    # One opponent is worth being compiled, even beyond the budget.
    least = int(opponents > 0 and solving <= room)
    number = max(least, more)
    drawn_samples = samples if means.budget >= LONG else 1
    said = [
        (drawn_samples < samples, "further samples of the posterior"),
        (number < opponents, f"{opponents - number} of {opponents} opponents"),
        (opponents > 0 and not certified, "the comparison with an opponent in the certificate"),
        (not closeness, "how close to the minima solves come, in the certificate"),
        *(
            (now < before, f"{before - now} of {before} {name} instances")
            for name, now, before in zip(
                ("prior", "validation", "train", "test"),
                dataclasses.astuple(fewer),
                dataclasses.astuple(sizes),
                strict=True,
            )
        ),
    ]
    words = tuple(sentence for true, sentence in said if true)
    share = minima / wanted if wanted else 1.0
    return Afforded(fewer, drawn_samples, number, certified, share, closeness, words)
