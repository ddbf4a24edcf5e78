"""A run's outcome as tables: who is ahead of the learned rule is said in every column."""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from surestep.certify import Certificate, percent, rounded_down, rounded_up
from surestep.evaluate.evaluated import Evaluated
from surestep.evaluate.off_family import Shifted
from surestep.report.certified import certified_quantiles, observed_quantile
from surestep.report.counted import counted_losses
from surestep.run.learned import Learned


@dataclasses.dataclass(frozen=True)
class Cell:
    """What stands in a table, and a word beside it where there is something to say."""

    text: str
    badge: str = ""
    kind: str = ""
    """`good`, `bad` or nothing: how the badge is coloured."""
    note: str = ""
    """A remark in small letters."""


@dataclasses.dataclass(frozen=True)
class Heading:
    """The heading of one column, or of several."""

    text: str
    span: int = 1


@dataclasses.dataclass(frozen=True)
class Table:
    """A table; the first cell of a row names it."""

    caption: str
    head: list[list[Heading]]
    """One row of headings or two; the first cell of the first one belongs to both."""
    rows: list[list[Cell]]


@dataclasses.dataclass(frozen=True)
class Comparison:
    """One number of every solver, smaller is better; the learned rule comes first."""

    name: str
    solvers: list[str]
    keys: list[tuple[float, ...]]
    """What solvers are ranked by."""
    texts: list[str]
    missed: list[int] | None = None
    """On how many instances a solver failed, where that can be."""

    @property
    def ahead(self) -> list[str]:
        """The solvers that are strictly better than the learned rule."""
        return [
            solver
            for solver, key in zip(self.solvers, self.keys, strict=True)
            if key < self.keys[0]
        ]

    @property
    def standing(self) -> str:
        """Where the learned rule comes in."""
        rank = len(self.ahead) + 1
        return "best" if rank == 1 else f"{ordinal(rank)} of {len(self.solvers)}"

    def cells(self) -> list[Cell]:
        """A column: the learned rule's standing, and a word wherever someone is ahead of it."""
        cells = [
            Cell(text, "ahead" if solver in self.ahead else "", note=missed_words(missed))
            for solver, text, missed in zip(
                self.solvers, self.texts, self.missed or [0] * len(self.texts), strict=True
            )
        ]
        if len(cells) > 1:
            kind = "bad" if self.ahead else "good"
            cells[0] = dataclasses.replace(cells[0], badge=self.standing, kind=kind)
        return cells


def missed_words(missed: int) -> str:
    """On how many instances a solver failed, if on any."""
    return f"{missed} missed" if missed else ""


@dataclasses.dataclass(frozen=True)
class Defeat:
    """Solvers that are ahead of the learned rule, and in what."""

    ahead: list[str]
    comparisons: list[Comparison]


def defeats(comparisons: Sequence[Comparison]) -> list[Defeat]:
    """The comparisons that the learned rule loses, put together where it loses to the same."""
    found: dict[tuple[str, ...], list[Comparison]] = {}
    for comparison in comparisons:
        if comparison.ahead:
            found.setdefault(tuple(comparison.ahead), []).append(comparison)
    return [Defeat(list(ahead), lost) for ahead, lost in found.items()]


def ordinal(rank: int) -> str:
    """1st, 2nd, 3rd, 4th."""
    teens = 10 <= rank % 100 <= 20
    return f"{rank}{'th' if teens else {1: 'st', 2: 'nd', 3: 'rd'}.get(rank % 10, 'th')}"


def number(value: float) -> str:
    """A number in a table: three digits, and signs that print well."""
    if math.isinf(value):
        return "\u221e" if value > 0 else "\u2212\u221e"
    if math.isnan(value):
        return "\u2013"
    shown = f"{value:.3g}"
    if 1e3 <= abs(value) < 1e6:
        shown = f"{float(shown):.0f}"
    return shown.replace("-", "\u2212")


def duration(seconds: float) -> str:
    """A time in the unit that suits it."""
    if not math.isfinite(seconds):
        return number(seconds)
    for size, unit in ((1.0, "s"), (1e-3, "ms")):
        if seconds >= size:
            return f"{number(seconds / size)} {unit}"
    return f"{number(seconds * 1e6)} \u00b5s"


def loss_comparisons(
    solvers: list[str], losses: Float[np.ndarray, "solver instance"], words: str
) -> list[Comparison]:
    """Median, mean and largest loss of every solver."""
    columns = {
        "median": np.median(losses, axis=1),
        "mean": losses.mean(axis=1),
        "largest": losses.max(axis=1),
    }
    return [
        Comparison(
            f"{name} {words}",
            list(solvers),
            # What is not a number is worse than everything.
            [(math.inf if math.isnan(v) else v,) for v in values.tolist()],
            [number(v) for v in values.tolist()],
        )
        for name, values in columns.items()
    ]


def loss_table(learned: Learned) -> tuple[Table, list[Comparison]]:
    """Losses at the horizon, and above the references where there are some."""
    evaluation, horizon = learned.evaluation, learned.task.horizon
    final = evaluation.losses[:, :, horizon]
    comparisons = loss_comparisons(evaluation.solvers, final, "loss")
    groups = [f"Loss after {horizon} iterations"]
    if evaluation.above:
        words = f"distance to {evaluation.above}"
        distances = evaluation.distances(final)
        comparisons += loss_comparisons(evaluation.solvers, distances, words)
        groups.append(f"Of it above {evaluation.above}")
    head = [
        [Heading("Solver"), *(Heading(group, 3) for group in groups)],
        [Heading(name) for _ in groups for name in ("median", "mean", "largest")],
    ]
    caption = f"Losses of every solver on {evaluation.thresholds.size} test instances"
    return _columns(caption, head, evaluation.solvers, comparisons), comparisons


def cost_table(learned: Learned) -> tuple[Table, list[Comparison]]:
    """Gradient evaluations and time to each accuracy."""
    evaluation = learned.evaluation
    comparisons: list[Comparison] = []
    for a, accuracy in enumerate(evaluation.accuracy_names()):
        comparisons += [
            _gradient_comparison(evaluation, a, accuracy),
            _time_comparison(evaluation, a, accuracy),
        ]
    counted = f" above {evaluation.above}" if evaluation.above else ""
    head = [
        [Heading("Solver"), *(Heading(f"To {n}{counted}", 2) for n in evaluation.accuracy_names())],
        [Heading(name) for _ in evaluation.accuracies for name in ("gradients", "time a solve")],
    ]
    caption = (
        f"Cost of an accuracy on {evaluation.seconds.shape[2]} test instances: gradient "
        "evaluations, median and 90th percentile; mean time of a solve, alone (on "
        f"{evaluation.alone} of them) and in a batch"
    )
    return _columns(caption, head, evaluation.solvers, comparisons), comparisons


def _gradient_comparison(evaluation: Evaluated, a: int, accuracy: str) -> Comparison:
    middle, high = (evaluation.gradient_quantile(share)[:, a] for share in (0.5, 0.9))
    missed = evaluation.missed()[:, a]
    return Comparison(
        f"gradient evaluations to {accuracy}",
        list(evaluation.solvers),
        [(float(m),) for m in middle],
        [f"{_whole(m)} / {_whole(h)}" for m, h in zip(middle, high, strict=True)],
        [int(n) for n in missed],
    )


def _whole(value: float) -> str:
    return number(value) if math.isinf(value) else f"{value:.0f}"


def _time_comparison(evaluation: Evaluated, a: int, accuracy: str) -> Comparison:
    known, every = len(evaluation.solvers), evaluation.mean_seconds()[:, a]
    alone, outside = every[:known], every[known:]
    batch = evaluation.seconds_batch[:, a] / evaluation.seconds.shape[2]
    missed = evaluation.missed_share()[:, a]
    return Comparison(
        f"time to {accuracy}",
        [*evaluation.solvers, *evaluation.external],
        # The fewest misses first: a solver that gives up early is not a fast one.
        [(float(n), float(s)) for n, s in zip(missed, [*alone, *outside], strict=True)],
        [
            *(f"{duration(s)} / {duration(b)}" for s, b in zip(alone, batch, strict=True)),
            *(duration(s) for s in outside),
        ],
    )


def _columns(
    caption: str, head: list[list[Heading]], solvers: Sequence[str], columns: list[Comparison]
) -> Table:
    cells = [column.cells() for column in columns]
    rows = [[Cell(name), *(column[s] for column in cells)] for s, name in enumerate(solvers)]
    return Table(caption, head, rows)


def external_table(learned: Learned) -> Table | None:
    """Solvers of other libraries: their time, and what they ended with."""
    evaluation = learned.evaluation
    if not evaluation.external:
        return None
    timed = evaluation.external_losses.shape[2]
    counted = f" above {evaluation.above}" if evaluation.above else ""
    ends = evaluation.external_distances()
    rows: list[list[Cell]] = []
    for s, name in enumerate(evaluation.external):
        row = [Cell(name)]
        for a, missed in enumerate(evaluation.external_missed()[s]):
            times = _time_comparison(evaluation, a, "")
            text, badge = times.texts[len(evaluation.solvers) + s], name in times.ahead
            row.append(Cell(text, "ahead" if badge else "", note=missed_words(int(missed))))
            row.append(Cell(number(float(ends[s, a]))))
        rows.append(row)
    head = [
        [Heading("Solver"), *(Heading(f"To {n}{counted}", 2) for n in evaluation.accuracy_names())],
        [
            Heading(name)
            for _ in evaluation.accuracies
            for name in ("time a solve", f"loss{counted}, median")
        ],
    ]
    return Table(f"Solvers of other libraries on {timed} test instances, each alone", head, rows)


def break_even_table(learned: Learned) -> Table:
    """After how many solves training has paid for itself."""
    rows: list[list[Cell]] = []
    for name, one in zip(learned.evaluation.accuracy_names(), learned.break_even(), strict=True):
        if not one.opponent:
            verdict = Cell("there is no other solver")
        elif math.isfinite(one.solves):
            verdict = Cell(f"after {math.ceil(one.solves)} solves", "pays", "good")
        else:
            reason = f"{one.opponent} solves {one.missed} instances more"
            verdict = Cell(reason if one.missed else "it is not faster", "never", "bad")
        rows.append(
            [
                Cell(f"to {name}"),
                Cell(duration(one.learned_seconds)),
                Cell(one.opponent or "\u2013"),
                Cell(duration(one.opponent_seconds)),
                verdict,
            ]
        )
    head = [
        [
            Heading(text)
            for text in (
                "Accuracy",
                "Learned rule, a solve",
                "Fastest other solver",
                "Its time a solve",
                "Training has paid for itself",
            )
        ]
    ]
    return Table("When training has paid for itself", head, rows)


def ledger_table(certificate: Certificate) -> Table:
    """What every share of epsilon pays for, with the values it pays for."""
    statements = {s.name: s for s in certificate.statements if s.rigorous}
    rows: list[list[Cell]] = []
    for share in certificate.ledger:
        found = statements.get(share.name)
        rows.append(
            [
                Cell(share.name),
                Cell(_bound(share.name, found.value) if found else "\u2013"),
                Cell(_bound(share.name, found.posterior_value) if found else "\u2013"),
                Cell(number(share.epsilon)),
                Cell(f"{100 * share.epsilon / certificate.epsilon:.1f}%"),
            ]
        )
    total = sum(share.epsilon for share in certificate.ledger)
    rows.append([Cell("all of them"), Cell(""), Cell(""), Cell(number(total)), Cell("100%")])
    head = [
        [
            Heading(text)
            for text in (
                "Statement",
                "Value, deployed rule",
                "Value, rule drawn from the posterior",
                "Epsilon",
                "Share",
            )
        ]
    ]
    return Table("The ledger: what each share of epsilon pays for", head, rows)


def _bound(name: str, value: float) -> str:
    if not math.isfinite(value):
        return "none"
    # Advantages and savings are bounded from below, everything else from above.
    lower = name.startswith(("advantage over ", "saving over "))
    return (rounded_down if lower else rounded_up)(value).replace("-", "\u2212")


def certified_table(learned: Learned) -> Table:
    """Certified losses at every certified iteration, beside the test set's."""
    iterations, bounds = certified_quantiles(learned)
    seen = counted_losses(learned, learned.evaluation.losses[0])[:, iterations]
    head = [
        [Heading("Iteration"), *(Heading(f"{percent(share)} of instances", 2) for share in bounds)],
        [Heading(name) for _ in bounds for name in ("certified", "test set")],
    ]
    rows: list[list[Cell]] = []
    observed = {share: observed_quantile(seen, share) for share in bounds}
    for i, iteration in enumerate(iterations):
        row = [Cell(str(iteration))]
        for share, losses in bounds.items():
            found = observed[share][i]
            row.append(Cell(rounded_up(losses[i]) if math.isfinite(losses[i]) else "none"))
            above = found > losses[i]
            row.append(Cell(number(found), "above" if above else "", "bad" if above else ""))
        rows.append(row)
    return Table("Losses that shares of instances stay below", head, rows)


def shifted_table(shifted: Shifted) -> Table:
    """What the rule did off the family."""
    count = shifted.losses.shape[2]
    reached = shifted.successes().sum(axis=2)
    head = [
        [Heading("Instances from"), *(Heading(name, 3) for name in shifted.solvers)],
        [
            Heading(name)
            for _ in shifted.solvers
            for name in ("median loss", "largest loss", "goal reached")
        ],
    ]
    rows = [
        [
            Cell(name),
            *(
                cell
                for s, losses in enumerate(shifted.losses[i, :, :, -1])
                for cell in (
                    Cell(number(float(np.median(losses)))),
                    Cell(number(float(losses.max()))),
                    Cell(f"{reached[i, s]} of {count}"),
                )
            ),
        ]
        for i, name in enumerate(shifted.shifts)
    ]
    iterations = shifted.losses.shape[3] - 1
    return Table(f"Off the family, after {iterations} iterations", head, rows)
