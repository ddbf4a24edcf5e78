"""`surestep plan`: how many train instances a certificate needs."""

import dataclasses
from pathlib import Path
from typing import Annotated

import numpy as np

from surestep.base.errors import ConfigurationError
from surestep.bounds.sizes import best_failure, needed_size
from surestep.cli.arguments import parse, unset
from surestep.report.draw import save_figure
from surestep.report.figures import Figure, Line, Mark, Panel

SIZES = (50, 100, 250, 500, 1000, 2500, 10_000)


@dataclasses.dataclass(frozen=True)
class Arguments:
    """Say how many train instances a certificate needs, and what sizes can certify."""

    failure: float
    """Probability to certify."""
    confidence: float = 0.95
    """With which it is to hold."""
    samples: int = 100
    """Samples of the prior."""
    stake: float = 0.9
    """Prior weight that is bet."""
    observed: float = 0.0
    """Failure rate to expect."""
    share: float = 1 / 7
    """Of epsilon, for the goal."""
    curve: Annotated[Path | None, unset("DIR")] = None
    """Folder for a figure."""


def main(words: list[str]) -> int:
    """Carry out the command."""
    plan_sizes(parse(Arguments, words, "surestep plan"))
    return 0


def plan_sizes(given: Arguments) -> None:
    """How many train instances a failure probability needs, and what sizes can certify."""
    failure, confidence, observed = given.failure, given.confidence, given.observed
    samples, stake, share = given.samples, given.stake, given.share
    if not 0 < confidence < 1:
        raise ConfigurationError(f"confidence must lie strictly between 0 and 1, not {confidence}")
    if samples < 1:
        raise ConfigurationError(f"at least one sample is needed, not {samples}")
    if not 0 < share <= 1:
        raise ConfigurationError(f"a share of epsilon must lie in (0, 1], not {share}")
    epsilon = share * (1 - confidence)
    print(
        f"With {share:.3g} of epsilon for the statement about the goal, as in a run (--share 1 if "
        "it is the only one):"
    )
    weights = {
        f"the sample that {stake:.0%} of the prior bets on": stake + (1 - stake) / samples,
        f"one of {samples} equal samples": 1 / samples,
    }
    for words, weight in weights.items():
        size = needed_size(failure, epsilon, weight, observed)
        print(
            f"{size} train instances certify a failure probability of {failure:g} with confidence "
            f"{confidence:g} for {words}, if it fails on "
            + (f"{observed:.2%} of them." if observed else "none of them.")
        )
    _print_table(epsilon, weights, observed)
    if given.curve:
        _draw_curve(failure, epsilon, weights, observed, given.curve)


def _print_table(epsilon: float, weights: dict[str, float], observed: float) -> None:
    print("\nWhat so many instances can certify at best:")
    print(f"{'instances':>12}" + "".join(f"{f'weight {w:.3g}':>16}" for w in weights.values()))
    for size in SIZES:
        cells = "".join(
            f"{best_failure(size, epsilon, w, observed):>16.4g}" for w in weights.values()
        )
        print(f"{size:>12}{cells}")


def _draw_curve(
    failure: float, epsilon: float, weights: dict[str, float], observed: float, folder: Path
) -> None:
    sizes = np.unique(np.geomspace(10, 20_000, 120).astype(int))
    needed = {words: needed_size(failure, epsilon, w, observed) for words, w in weights.items()}
    panel = Panel(
        title="What a train set can certify",
        x_label="train instances",
        y_label="failure probability",
        x_scale="log",
        y_scale="log",
        lines=[
            Line(words, words, sizes.astype(float).tolist(),
                 [best_failure(int(n), epsilon, w, observed) for n in sizes])
            for words, w in weights.items()
        ],
        marks=[
            Mark(f"{needed[words]} instances", words, float(needed[words])) for words in weights
        ],
    )  # fmt: skip
    figure = Figure("plan", f"Certificates with confidence {1 - epsilon:g}", list(weights), [panel])
    for path in save_figure(figure, folder):
        print(path)
