"""The page: tables and figures of what a suite has measured, as Markdown and pictures."""

import itertools
import math
from collections.abc import Iterable, Sequence
from pathlib import Path

from benchmarks.fit import Exponent, fit_exponent
from benchmarks.records import Contest, Measured, Suite
from surestep.evaluate.evaluated import LEARNED
from surestep.report.draw import save_figure
from surestep.report.figures import Figure, Line, Panel, Points
from surestep.storage.files import write_text

# There are six colours: the last two stages get those of the first two, whose panels they do not
# share.
_COLOURED = ("imitate", "statements", "locate", "certify", "evaluate", "solve", "sample", "split")
WITHIN = 0.1
"""How near a fitted exponent must be to the one that is promised."""


def write_page(suite: Suite, folder: Path) -> Path:
    """Write `benchmarks.md` and its figures; returns the page's path."""
    figures = [figure for figure in (scaling(suite), memory(suite)) if figure.panels]
    for figure in figures:
        save_figure(figure, folder)
    path = folder / "benchmarks.md"
    write_text(path, page(suite, [figure.name for figure in figures]))
    return path


def page(suite: Suite, figures: Sequence[str]) -> str:
    """The page as Markdown; figures are shown where they belong."""
    parts = [["# Benchmarks", "", *_machine(suite)]]
    if suite.speeds:
        parts.append(_speeds(suite))
    if suite.measured:
        parts.append(_scaling(suite, "bench-scaling" in figures))
    if suite.peaks or suite.temporaries:
        parts.append(_memory(suite, "bench-memory" in figures))
    if suite.contests:
        parts.append(_contests(suite))
    if suite.notes:
        parts.append(["## Not measured", *(f"- {note}" for note in suite.notes)])
    return "\n\n".join("\n".join(part) for part in parts) + "\n"


def groups(suite: Suite) -> list[tuple[str, str, list[Measured]]]:
    """Stages and axes with their sizes in order."""
    pairs = dict.fromkeys((one.stage, one.axis) for one in suite.measured)
    return [
        (
            stage,
            axis,
            sorted(
                (one for one in suite.measured if (one.stage, one.axis) == (stage, axis)),
                key=lambda one: one.size,
            ),
        )
        for stage, axis in pairs
    ]


def exponent(points: Sequence[Measured]) -> Exponent:
    """How the least processor time grows."""
    return fit_exponent([one.size for one in points], [one.best for one in points])


def scaling(suite: Suite) -> Figure:
    """Times over sizes with the fitted power laws, a panel for each axis."""
    panels: dict[str, Panel] = {}
    for stage, axis, points in groups(suite):
        panel = panels.setdefault(
            axis, Panel(f"by {axis}", axis, "processor time in seconds", "log", "log")
        )
        sizes = [float(one.size) for one in points]
        label, best = stage, [one.best for one in points]
        if len(set(sizes)) > 2:
            found = exponent(points)
            label = f"{stage}: {found}"
            ends = [sizes[0], sizes[-1]]
            panel.lines.append(Line("", stage, ends, [found.at(size) for size in ends], "dashed"))
        panel.points.append(Points(label, stage, sizes, best, 5.0))
    title = "Least processor time, and fitted exponents with their 95 % margins"
    others = (stage for stage, _, _ in groups(suite))
    coloured = list(dict.fromkeys([*_COLOURED, *others]))
    return Figure("bench-scaling", title, coloured, list(panels.values()))


def memory(suite: Suite) -> Figure:
    """Memory over the number of instances."""
    panels = []
    if suite.temporaries:
        x = [float(one.instances) for one in suite.temporaries]
        y = [one.temporary_bytes / 2**20 for one in suite.temporaries]
        block = suite.temporaries[0].block
        line = Line(f"{block} side by side", "temporary", x, y)
        panels.append(
            Panel("compiled rollouts", "instances", "temporary MiB", "log", "linear", [line])
        )
    if suite.peaks:
        x = [float(one.instances) for one in suite.peaks]
        lines = [
            Line("peak", "peak", x, [one.peak_bytes / 2**20 for one in suite.peaks]),
            Line("before", "before", x, [one.before_bytes / 2**20 for one in suite.peaks]),
            Line("the set itself", "set", x, [one.set_bytes / 2**20 for one in suite.peaks]),
        ]
        panels.append(Panel("a whole process", "instances", "MiB", "log", "linear", lines))
    return Figure("bench-memory", "Memory", ["temporary", "peak", "before", "set"], panels)


def table(head: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1) -> list[str]:
    """A Markdown table; columns after the first `left` are numbers."""
    rule = ["---"] * left + ["---:"] * (len(head) - left)
    return [_row(head), _row(rule), *(_row(row) for row in rows)]


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _machine(suite: Suite) -> list[str]:
    facts = "; ".join(f"{name} {value}" for name, value in suite.made_with.items())
    return [
        f"Measured with: {facts}.",
        "",
        "Times are processor time, the least of several rounds in which everything was measured "
        "in turns, unless the clock is named: others may share the machine. Ratios and shares "
        "come from the same rounds.",
    ]


def _speeds(suite: Suite) -> list[str]:
    rates = {one.precision: one.rate for one in suite.speeds}
    told = ", ".join(f"{rate / 1e9:.0f} GFLOP/s in {name}" for name, rate in rates.items())
    rows = [
        [
            one.name,
            one.precision,
            _seconds(one.each) + f" a {one.unit}",
            _seconds(min(one.seconds) / one.units),
            _share(one.product_share),
            _share(one.program_share),
            "" if math.isnan(one.times_numpy) else f"{one.times_numpy:.1f}",
            one.goal,
        ]
        for one in suite.speeds
    ]
    head = ("", "precision", "processor time", "clock", "products", "program", "times NumPy", "aim")
    return [
        "## Hot paths",
        f"Large matrix products run at {told}, per second of processor time. *Products* is the "
        "share of that rate which rollouts reach if only their matrix products and convolutions "
        "are counted, from the shapes in the trace; *program* counts every operation that XLA's "
        "cost analysis of the compiled iteration knows. On several cores processor time is that "
        "of all threads together.",
        "",
        *table(head, rows, 2),
    ]


def _scaling(suite: Suite, drawn: bool) -> list[str]:
    rows = []
    for stage, axis, points in groups(suite):
        first, last = points[0], points[-1]
        fitted = exponent(points) if len(points) > 2 else None
        promised = "" if math.isnan(first.expected) else f"{first.expected:.0f}"
        kept = ""
        if fitted is not None and promised:
            kept = "yes" if abs(fitted.value - first.expected) <= WITHIN else "**no**"
        held = "" if last.temporary_bytes < 0 else _bytes(last.temporary_bytes)
        rows.append(
            [
                *(stage, axis, f"{first.size} to {last.size}"),
                *(_seconds(first.best), _seconds(last.best), _seconds(min(last.seconds))),
                *("" if fitted is None else str(fitted), promised, kept, held),
            ]
        )
    head = (
        *("stage", "by", "sizes", "first", "last", "last, clock"),
        *("exponent", "promised", "within 0.1", "temporary memory, last"),
    )
    return [
        "## Stages and how they grow",
        "Time at the smallest and the largest size, and the exponent of a power law, fitted by "
        "least squares to the logarithms at all sizes, with the half width of its 95 % interval. "
        "Memory is what the compiled rollouts need beside arguments and results.",
        "",
        *table(head, rows, 3),
        *(["", "![Times over sizes](bench-scaling.png)"] if drawn else []),
    ]


def _memory(suite: Suite, drawn: bool) -> list[str]:
    lines = ["## Memory"]
    if suite.temporaries:
        block = suite.temporaries[0].block
        rows = [[str(t.instances), _bytes(t.temporary_bytes)] for t in suite.temporaries]
        lines += [
            f"What compiled rollouts need beside arguments and results, {block} instances side by "
            "side:",
            "",
            *table(("instances", "temporary memory"), rows, 0),
            "",
        ]
    if suite.peaks:
        rows = [
            [str(p.instances), *map(_bytes, (p.peak_bytes, p.before_bytes, p.set_bytes))]
            for p in suite.peaks
        ]
        head = ("instances", "peak", "of it before", "the set, if it were kept")
        lines += [
            "The peak of a process of its own that observes the heavy ball method; *before* is "
            "its peak after a small set, with all programs compiled:",
            "",
            *table(head, rows, 0),
        ]
    return lines + (["", "![Memory over instances](bench-memory.png)"] if drawn else [])


def _contests(suite: Suite) -> list[str]:
    first = suite.contests[0]
    rows = []
    for accuracy, together in itertools.groupby(suite.contests, lambda one: one.accuracy):
        mine: list[Contest] = list(together)
        [learned] = [one for one in mine if one.solver == LEARNED]
        rows += [
            [
                *(accuracy, one.solver, f"{one.gradients:g}", f"{one.seconds * 1e6:.0f}"),
                _ratio(one, learned),
                str(one.missed),
            ]
            for one in mine
        ]
    head = (*("accuracy", "solver", "gradients", "microseconds, clock", "times learned", "missed"),)
    stages = ", ".join(f"{one.stage} {one.seconds:.1f} s" for one in suite.stages)
    return [
        "## Learned against classical solvers",
        f"{first.problem}, {first.preset}: the median of {first.instances} test instances, one at "
        "a time, each solver until the accuracy is reached, all in one run. *Times learned* below "
        "1 means that the classical solver was faster.",
        "",
        *table(head, rows, 2),
        "",
        f"The run's stages took, on the clock and with compiling: {stages}.",
    ]


def _ratio(one: Contest, learned: Contest) -> str:
    """Times can be compared where both have solved the median instance."""
    solved = math.isfinite(one.gradients) and math.isfinite(learned.gradients)
    return f"{one.seconds / learned.seconds:.2f}" if solved else ""


def _seconds(value: float) -> str:
    for unit, factor in (("s", 1.0), ("ms", 1e3)):
        if value * factor >= 1:
            return f"{value * factor:.3g} {unit}"
    return f"{value * 1e6:.3g} µs"


def _bytes(value: float) -> str:
    return f"{value / 2**20:.2f} MiB" if value < 2**27 else f"{value / 2**20:.0f} MiB"


def _share(value: float) -> str:
    return "" if math.isnan(value) else f"{100 * value:.0f} %"
