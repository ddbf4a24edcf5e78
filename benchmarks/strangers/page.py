"""Stored measurements as tables in Markdown."""

import math
from collections.abc import Callable, Sequence

import numpy as np

from benchmarks.strangers.records import Contest, Outcome, Table, Timed

RESAMPLED = 2000
Mode = Callable[[Timed], list[float]]
MODES: dict[str, Mode] = {"alone": lambda one: one.alone, "batch": lambda one: one.batch}


def page(table: Table) -> str:
    """The summary, then everyone's times family by family."""
    lines = [
        "## Strangers' families",
        "",
        "Seconds of a solve alone, and of a batch of all instances, to an accuracy that is a share",
        "of what lies between start and minimum, for 90 % of fresh instances. Ratios are ours over",
        "the best opponent's, round by round: the median, and a 95 % bootstrap interval. Ours is a",
        "call of `solver.solve`, which looks at what it is given; as a function it is compiled and",
        "called as the opponents' loops are.",
        "",
        *summary(table.outcomes),
    ]
    for outcome in table.outcomes:
        lines += ["", *details(outcome)]
    made = ", ".join(f"{key} {value}" for key, value in table.made_with.items())
    return "\n".join([*lines, "", f"Measured with {made}.", ""])


def summary(outcomes: Sequence[Outcome]) -> list[str]:
    """One row for a family, an accuracy and a way to solve."""
    rows = [
        "| family | accuracy | mode | ours (iterations) | best opponent | ratio | as a function "
        "| pays after |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for outcome in outcomes:
        for contest in outcome.contests:
            for name, mode in MODES.items():
                us, best = ours_of(contest), best_of(contest, mode)
                first = f"| {outcome.family} | {contest.accuracy:.0e} | {name} "
                mine = f"{seconds(median(mode(us)))} ({us.needed:.0f})" if us and mode(us) else "-"
                theirs = (
                    f"{best.solver} {seconds(median(mode(best)))} ({needed(best)})" if best else "-"
                )
                pays = payback(outcome, contest) if name == "alone" else ""
                bare = next((o for o in outcome.bare if us and o.needed == us.needed), None)
                ratios = " | ".join(ratio_words(one, best, mode) for one in (us, bare))
                rows.append(f"{first}| {mine} | {theirs} | {ratios} | {pays} |")
    return rows


def details(outcome: Outcome) -> list[str]:
    """Every solver of one family."""
    heads = " | ".join(f"{contest.accuracy:.0e}: N, alone, batch" for contest in outcome.contests)
    rows = [
        f"### {outcome.family}",
        f"{outcome.instances} instances; budget {outcome.budget}: the fit took "
        f"{outcome.wall_seconds:.0f} s, training {outcome.training_seconds:.0f} s. "
        f"{outcome.words}.",
        "",
        f"| solver | {heads} |",
        "| --- |" + " --- |" * len(outcome.contests),
    ]
    names = list(dict.fromkeys(one.solver for c in outcome.contests for one in c.timed))
    for name in names:
        cells = [
            cell(next((o for o in c.timed if o.solver == name), None)) for c in outcome.contests
        ]
        rows.append(f"| {name} | {' | '.join(cells)} |")
    if outcome.bare:
        found = {one.needed: one for one in outcome.bare}
        cells = [
            cell(found.get(us.needed) if us else None) for us in map(ours_of, outcome.contests)
        ]
        rows.append(f"| surestep, as a function | {' | '.join(cells)} |")
    rows += ["", "In parentheses: one look, by who was too far behind for the rounds."]
    return rows + latencies(outcome)


def latencies(outcome: Outcome) -> list[str]:
    """How long single solves of ours take, mostly and at worst."""
    found = [(c.accuracy, us.latency) for c in outcome.contests if (us := ours_of(c)) is not None]
    words = [
        f"to {accuracy:.0e} {seconds(times[0])} and {seconds(times[1])}"
        for accuracy, times in found
        if times is not None
    ]
    if not words:
        return []
    return ["", f"Single solves of ours, 50th and 99th percentile: {', '.join(words)}."]


def cell(one: Timed | None) -> str:
    """Iterations or tolerance, and both times."""
    if one is None or one.needed is None:
        return "-"
    if one.alone:
        return f"{needed(one)}, {seconds(median(one.alone))}, {seconds(median(one.batch))}"
    if one.first_look is None:
        return needed(one)
    return f"{needed(one)}, ({seconds(one.first_look[0])}), ({seconds(one.first_look[1])})"


def needed(one: Timed) -> str:
    """Iterations as a number, a tolerance as a power."""
    if one.needed is None:
        return "-"
    if one.kind == "library":
        return f"{one.needed:.0e}" if one.needed else "exact"
    return f"{one.needed:.0f}"


def ours_of(contest: Contest) -> Timed | None:
    """Our entry, if there is one."""
    return next((one for one in contest.timed if one.kind == "ours"), None)


def best_of(contest: Contest, mode: Mode) -> Timed | None:
    """The opponent with the least median time."""
    able = [one for one in contest.timed if one.kind != "ours" and mode(one)]
    return min(able, key=lambda one: median(mode(one)), default=None)


def median(values: Sequence[float]) -> float:
    """The median."""
    return float(np.median(values))


def ratio(us: Sequence[float], them: Sequence[float]) -> tuple[float, float, float]:
    """The median of the rounds' ratios, and its 95 % bootstrap interval over rounds."""
    each = np.asarray(us) / np.asarray(them)
    rounds = np.random.default_rng(0).integers(0, each.size, (RESAMPLED, each.size))
    low, high = np.quantile(np.median(each[rounds], axis=1), [0.025, 0.975])
    return float(np.median(each)), float(low), float(high)


def ratio_words(us: Timed | None, best: Timed | None, mode: Mode) -> str:
    """Ours over the best opponent's."""
    if us is None or best is None or not mode(us) or not mode(best):
        return "-"
    middle, low, high = ratio(mode(us), mode(best))
    return f"{middle:.2f} ({low:.2f} to {high:.2f})"


def payback(outcome: Outcome, contest: Contest) -> str:
    """After how many solves alone the training is paid."""
    us, best = ours_of(contest), best_of(contest, MODES["alone"])
    if us is None or best is None or not us.alone:
        return "-"
    saved = median(best.alone) - median(us.alone)
    return f"{math.ceil(outcome.training_seconds / saved):,} solves" if saved > 0 else "never"


def seconds(value: float) -> str:
    """A time with its unit, three digits."""
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value / 1e-6:.3g} us"
