"""`surestep plan`: how many train instances a certificate needs."""

import dataclasses
import functools
from pathlib import Path
from typing import Annotated

import numpy as np
import tyro

from surestep.base.errors import ConfigurationError, RunFolderError
from surestep.bounds.sizes import best_failure, likely_failure, needed_size, power_of
from surestep.certify import CertifySettings, Plan, percent, usual_plan
from surestep.certify.claims import EARLIER, GoalMissed, Within
from surestep.cli.arguments import parse, unset
from surestep.report.draw import save_figure
from surestep.report.figures import Figure, Line, Mark, Panel
from surestep.storage.records import from_plain
from surestep.storage.run_folder import RunFolder

SIZES = (50, 100, 250, 500, 1000, 2500, 10_000)


@dataclasses.dataclass(frozen=True)
class Arguments:
    """Say how many train instances a certificate needs, and what sizes can certify."""

    failure: float
    """Probability to certify."""
    folder: Annotated[tyro.conf.Positional[Path | None], unset("DIR")] = None
    """A run's folder: its shares of epsilon, weights and confidence."""
    observed: float = 0.0
    """Failure probability that is true."""
    power: float = 0.9
    """With which it is to succeed."""
    confidence: Annotated[float | None, unset("C")] = None
    """With which it is to hold (0.95, or the run's)."""
    samples: Annotated[int | None, unset("N")] = None
    """Samples of the prior (100, or the run's)."""
    stake: float = 0.9
    """Prior weight that is bet."""
    share: Annotated[float | None, unset("S")] = None
    """Of epsilon, for the goal (a run's)."""
    quantile: Annotated[float | None, unset("Q")] = None
    """Of iterations, not to be exceeded (1 - FAILURE / 5)."""
    curve: Annotated[Path | None, unset("DIR")] = None
    """Folder for a figure."""


@dataclasses.dataclass(frozen=True)
class _Payment:
    """What the statements that sizes are planned for are paid with."""

    source: str
    """Where the shares come from, in words."""
    confidence: float
    """Of the certificate as a whole."""
    goal: float
    """What the statement about the goal may spend, of all samples together."""
    iterations: float
    """The same of the sentence about iterations; 0 if there is none."""
    weights: dict[str, float]
    """Prior weights of samples that may be deployed, and what they are in words."""


def main(words: list[str]) -> int:
    """Carry out the command."""
    plan_sizes(parse(Arguments, words, "surestep plan"))
    return 0


def plan_sizes(given: Arguments) -> None:
    """How many train instances a failure probability needs, and what sizes can certify."""
    failure, observed, power = given.failure, given.observed, given.power
    if not 0 < power < 1:
        raise ConfigurationError(f"a power must lie strictly between 0 and 1, not {power}")
    paid = _of_run(given) if given.folder is not None else _usual(given)
    print(f"{paid.source}: {paid.goal / (1 - paid.confidence):.3g} of epsilon is for the goal.")
    truth = f"fails with probability {observed:g}" if observed else "never fails"
    chance = f" and a power of at least {power:g}" if observed else ""
    for words, weight in paid.weights.items():
        size = needed_size(failure, paid.goal, weight, observed, power)
        reached = power_of(size, failure, paid.goal, weight, observed)
        note = f" (with so many the power is {reached:.3g})" if observed else ""
        print(
            f"{size} train instances certify a failure probability of {failure:g} with confidence "
            f"{paid.confidence:g}{chance} for {words}, if it {truth}{note}."
        )
    if paid.iterations:
        _print_iterations(given, paid)
    _print_table(paid, observed, power)
    if given.curve:
        _draw_curve(given, paid)


def _usual(given: Arguments) -> _Payment:
    """As a run would pay that makes all claims."""
    confidence = 0.95 if given.confidence is None else given.confidence
    samples = 100 if given.samples is None else given.samples
    if not 0 < confidence < 1:
        raise ConfigurationError(f"confidence must lie strictly between 0 and 1, not {confidence}")
    if samples < 1:
        raise ConfigurationError(f"at least one sample is needed, not {samples}")
    stake = given.stake
    plan = usual_plan(CertifySettings(epsilon=1 - confidence, stake=stake), samples)
    weights = {
        f"the sample that {stake:.0%} of the prior bets on": stake + (1 - stake) / samples,
        f"one of {samples} equal samples": 1 / samples,
    }
    return _paid(given, plan, confidence, weights, "As in a run that makes all its claims")


def _of_run(given: Arguments) -> _Payment:
    """As the run in a folder has planned it."""
    folder = RunFolder(given.folder or Path())
    own = Arguments(given.failure)
    for name in ("confidence", "samples", "stake"):
        if getattr(given, name) != getattr(own, name):
            raise ConfigurationError(
                f"--{name} is what the run in {folder.path} says: leave it out"
            )
    if not folder.plan_path.exists():
        raise RunFolderError(f"{folder.path} holds no plan (plan.json): name a run's folder")
    plan = from_plain(Plan, folder.read_kept(folder.plan_path), folder.plan_path.name)
    prior = np.exp(np.array(plan.log_prior))
    weights = {f"the sample with most of the prior ({prior.max():.3g})": float(prior.max())}
    if prior.min() < prior.max():
        weights[f"one with the least ({prior.min():.3g})"] = float(prior.min())
    spent = sum(share.epsilon for share in plan.shares if share.name == EARLIER)
    confidence = 1 - (plan.epsilon - spent)
    return _paid(given, plan, confidence, weights, f"As in the run in {folder.path}")


def _paid(
    given: Arguments, plan: Plan, confidence: float, weights: dict[str, float], source: str
) -> _Payment:
    goal = next(
        (plan.ledger.of(c.name) for c in plan.claims if isinstance(c, GoalMissed)), plan.epsilon
    )
    if given.share is not None:
        if not 0 < given.share <= 1:
            raise ConfigurationError(f"a share of epsilon must lie in (0, 1], not {given.share}")
        goal, source = given.share * (1 - confidence), "As was asked for"
    within = next((c for c in plan.claims if isinstance(c, Within)), None)
    iterations = 0.0 if within is None else within.headline_part * plan.ledger.of(within.name)
    return _Payment(source, confidence, goal, iterations, weights)


def _print_iterations(given: Arguments, paid: _Payment) -> None:
    """Sizes for the sentence about iterations: shares of instances by order statistics."""
    share = 1 - given.failure
    quantile = 1 - given.failure / 5 if given.quantile is None else given.quantile
    if not share < quantile < 1:
        raise ConfigurationError(
            f"the quantile must lie between the share that is certified ({share:g}) and 1, not "
            f"{quantile}"
        )
    words, weight = next(iter(paid.weights.items()))
    least = needed_size(given.failure, paid.iterations, weight)
    enough = needed_size(given.failure, paid.iterations, weight, 1 - quantile, given.power)
    print(
        f"\nAfter how many iterations at least {percent(share)} of new instances are as close as "
        f"wanted can be certified, for {words}, from {least} train instances on. From {enough} on "
        f"it is, with a power of at least {given.power:g}, no more iterations than "
        f"{percent(quantile)} of instances take."
    )


def _print_table(paid: _Payment, observed: float, power: float) -> None:
    sizes = np.array(SIZES)
    print(f"\nWhat so many instances can certify with confidence {paid.confidence:g}", end="")
    print(f" and power {power:g}:" if observed else " at best:")
    print(f"{'instances':>12}" + "".join(f"{f'weight {w:.3g}':>16}" for w in paid.weights.values()))
    for size in sizes.tolist():
        cells = [_certified(size, paid.goal, w, observed, power) for w in paid.weights.values()]
        print(f"{size:>12}" + "".join(f"{cell:>16.4g}" for cell in cells))


def _certified(size: int, epsilon: float, weight: float, observed: float, power: float) -> float:
    """What a size certifies, at best or with a power."""
    if observed:
        return likely_failure(size, epsilon, weight, observed, power)
    return best_failure(size, epsilon, weight)


def _draw_curve(given: Arguments, paid: _Payment) -> None:
    assert given.curve is not None
    sizes = np.unique(np.geomspace(10, 20_000, 120).astype(int))
    needed = functools.partial(
        needed_size, given.failure, paid.goal, observed=given.observed, power=given.power
    )
    marks = {words: needed(weight=weight) for words, weight in paid.weights.items()}
    power = f" and power {given.power:g}" if given.observed else ""
    panel = Panel(
        title="What a train set can certify",
        x_label="train instances",
        y_label="failure probability",
        x_scale="log",
        y_scale="log",
        lines=[
            Line(words, words, sizes.astype(float).tolist(),
                 [_certified(int(n), paid.goal, w, given.observed, given.power) for n in sizes])
            for words, w in paid.weights.items()
        ],
        marks=[Mark(f"{size} instances", words, float(size)) for words, size in marks.items()],
    )  # fmt: skip
    title = f"Certificates with confidence {paid.confidence:g}{power}"
    for path in save_figure(Figure("plan", title, list(paid.weights), [panel]), given.curve):
        print(path)
