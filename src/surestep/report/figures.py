"""Figures as data: what is shown, apart from how it is drawn."""

import dataclasses
from collections.abc import Mapping
from typing import Literal

import numpy as np
from jaxtyping import Float

from surestep.certify import rounded_up
from surestep.evaluate.off_family import Shifted
from surestep.report.counted import STATEMENT, counted_from, counted_losses, counted_scale
from surestep.run.learned import Learned

Scale = Literal["linear", "log"]
Dash = Literal["solid", "dashed", "dotted", "dashdot"]


@dataclasses.dataclass(frozen=True)
class Line:
    """Points joined by a line; values that are not finite leave a gap."""

    label: str
    group: str
    x: list[float]
    y: list[float]
    dash: Dash = "solid"


@dataclasses.dataclass(frozen=True)
class Band:
    """The area between two curves."""

    group: str
    x: list[float]
    low: list[float]
    high: list[float]


@dataclasses.dataclass(frozen=True)
class Bars:
    """A histogram."""

    label: str
    group: str
    edges: list[float]
    heights: list[float]


@dataclasses.dataclass(frozen=True)
class Mark:
    """A vertical line with a meaning."""

    label: str
    group: str
    x: float
    dash: Dash = "dashed"


@dataclasses.dataclass(frozen=True)
class Points:
    """Points that are not joined."""

    label: str
    group: str
    x: list[float]
    y: list[float]
    size: float = 4.0


@dataclasses.dataclass(frozen=True)
class Field:
    """A function of two variables on a grid, as colours; what is not finite stays blank."""

    label: str
    x: list[float]
    y: list[float]
    values: list[list[float]]
    """One row for every y."""


@dataclasses.dataclass(frozen=True)
class Panel:
    """One plot."""

    title: str
    x_label: str
    y_label: str
    x_scale: Scale = "linear"
    y_scale: Scale = "linear"
    lines: list[Line] = dataclasses.field(default_factory=list)
    bands: list[Band] = dataclasses.field(default_factory=list)
    bars: list[Bars] = dataclasses.field(default_factory=list)
    marks: list[Mark] = dataclasses.field(default_factory=list)
    notes: list[str] = dataclasses.field(default_factory=list)
    right: list[Line] = dataclasses.field(default_factory=list)
    """Lines on a second axis, to the right."""
    right_label: str = ""
    points: list[Points] = dataclasses.field(default_factory=list)
    field: Field | None = None


@dataclasses.dataclass(frozen=True)
class Figure:
    """Panels in reading order."""

    name: str
    title: str
    groups: list[str]
    panels: list[Panel]


def overview(learned: Learned) -> Figure:
    """The paper's four panels: losses, times, histogram with the bound, success probability.

    Where accuracies are counted from a reference, a panel of the distances to it follows.
    """
    panels = [
        loss_panel(learned),
        time_panel(learned),
        histogram_panel(learned),
        success_panel(learned),
    ]
    if learned.evaluation.above:
        panels.append(distance_panel(learned))
    return Figure(
        name="overview",
        title=f"{learned.certificate.problem}: learned rule and classical rules on "
        f"{learned.evaluation.thresholds.size} test instances",
        groups=[*learned.evaluation.solvers, *learned.evaluation.external, "bound", "paper"],
        panels=panels,
    )


def loss_panel(learned: Learned) -> Panel:
    """Mean, median and the 10th to 90th percentile of the loss over the iterations."""
    right: list[Line] = []
    if learned.evaluation.measured:
        steps = [float(i) for i in range(learned.evaluation.losses.shape[2])]
        for name, watched in zip(
            learned.evaluation.solvers, learned.evaluation.measures, strict=True
        ):
            right.append(Line(name, name, steps, watched[0].mean(axis=0).tolist(), "dashdot"))
    return dataclasses.replace(
        _losses_panel(learned, "Loss over iterations", "loss", learned.evaluation.losses),
        y_scale=loss_scale(learned),
        right=right,
        right_label=f"{learned.evaluation.measured[0]}, mean (dash-dotted)" if right else "",
    )


def loss_scale(learned: Learned) -> Scale:
    """Losses are shown on a logarithmic axis, unless they may be negative."""
    return "log" if learned.problem.nonnegative else "linear"


def distance_panel(learned: Learned) -> Panel:
    """How far losses are above their references."""
    evaluation = learned.evaluation
    known = evaluation.known
    distances = evaluation.losses[:, known] - evaluation.references[known, None]
    label = f"loss above {evaluation.above}"
    return _losses_panel(learned, f"Distance to {evaluation.above}", label, distances)


def _losses_panel(learned: Learned, title: str, label: str, curves: np.ndarray) -> Panel:
    by_name = dict(zip(learned.evaluation.solvers, curves, strict=True))
    return iterations_panel(title, label, by_name, learned.task.horizon)


def iterations_panel(
    title: str,
    label: str,
    curves: Mapping[str, Float[np.ndarray, "instance iteration"]],
    horizon: int,
    coverage: float = 0.8,
) -> Panel:
    """Mean, median and the band that holds a share of the instances, over the iterations."""
    steps = [float(i) for i in range(next(iter(curves.values())).shape[1])]
    lines: list[Line] = []
    bands: list[Band] = []
    for name, losses in curves.items():
        # "lower" and "higher" pick actual losses: nothing is interpolated towards infinity.
        low = np.quantile(losses, 0.5 - coverage / 2, axis=0, method="lower")
        high = np.quantile(losses, 0.5 + coverage / 2, axis=0, method="higher")
        middle = np.quantile(losses, 0.5, axis=0, method="lower")
        bands.append(Band(name, steps, low.tolist(), high.tolist()))
        lines.append(Line(f"{name}, median", name, steps, middle.tolist()))
        lines.append(Line(f"{name}, mean", name, steps, losses.mean(axis=0).tolist(), "dashed"))
    diverged = {name: int(np.isinf(losses[:, -1]).sum()) for name, losses in curves.items()}
    return Panel(
        title=title,
        x_label="iteration",
        y_label=label,
        y_scale="log",
        lines=lines,
        bands=bands,
        marks=[Mark(f"horizon ({horizon})", "horizon", float(horizon), "dotted")],
        notes=[f"{name} diverged on {number}" for name, number in diverged.items() if number],
    )


def shifted_figure(shifted: Shifted, problem: str) -> Figure:
    """Losses off the family, one panel for each shift; the first is the family itself."""
    horizon = shifted.losses.shape[3] - 1
    return Figure(
        name="shifted",
        title=f"{problem}: off the family, where no certificate holds "
        f"({shifted.losses.shape[2]} instances each)",
        groups=list(shifted.solvers),
        panels=[
            iterations_panel(name, "loss", dict(zip(shifted.solvers, curves, strict=True)), horizon)
            for name, curves in zip(shifted.shifts, shifted.losses, strict=True)
        ],
    )


def time_panel(learned: Learned) -> Panel:
    """Cumulative time to bring some test instances, one by one, to each accuracy."""
    evaluation = learned.evaluation
    dashes: list[Dash] = ["solid", "dashed", "dotted", "dashdot"]
    problems = [float(i + 1) for i in range(evaluation.alone)]
    lines: list[Line] = []
    missed = np.concatenate([evaluation.missed(), evaluation.external_missed()])
    every = np.concatenate([evaluation.seconds, evaluation.external_seconds])
    seconds = every[:, :, : evaluation.alone]
    for s, name in enumerate([*evaluation.solvers, *evaluation.external]):
        for a, accuracy in enumerate(evaluation.accuracy_names()):
            total = np.cumsum(seconds[s, a])
            label = f"{name}, {accuracy}" + missed_note(int(missed[s, a]))
            lines.append(Line(label, name, problems, total.tolist(), dashes[a % 4]))
    return Panel(
        title="Time to an accuracy, one instance at a time",
        x_label="instances solved",
        y_label="seconds, cumulative",
        y_scale="log",
        lines=lines,
    )


def missed_note(number: int) -> str:
    """How many instances were not brought to an accuracy, if any."""
    return f" ({number} missed)" if number else ""


def histogram_panel(learned: Learned) -> Panel:
    """Losses at the horizon, with the bound."""
    evaluation, horizon = learned.evaluation, learned.task.horizon
    final = {
        name: counted_losses(learned, losses[:, horizon])
        for name, losses in zip(evaluation.solvers[:2], evaluation.losses[:2], strict=True)
    }
    above, scale = counted_from(learned), counted_scale(learned)
    shown = np.concatenate(
        [losses[np.isfinite(losses) & ((losses > 0) | (scale == "linear"))]
         for losses in final.values()]
    )  # fmt: skip
    low, high = (shown.min(), shown.max()) if shown.size else (1e-3, 1.0)
    # The paper's bound is one for the loss itself.
    paper = [] if above else _paper_marks(learned)
    if scale == "log":
        beside = [mark.x for mark in paper]
        edges = np.geomspace(min([low, *beside]) / 2, max([high, *beside]) * 2, 60)
    else:
        edges = np.linspace(low, high if high > low else low + 1.0, 60)
    # What lies beyond an end, infinity included, is counted at that end.
    within = {name: np.clip(losses, edges[0], edges[-1]) for name, losses in final.items()}
    lost = [
        f"{name} diverged on {int(np.isinf(losses).sum())}"
        for name, losses in final.items()
        if np.isinf(losses).any()
    ]
    bars = [
        Bars(
            name,
            name,
            edges.tolist(),
            np.histogram(losses, edges)[0].tolist(),
        )
        for name, losses in within.items()
    ]
    means = [Mark(f"{n}, mean", n, float(losses.mean())) for n, losses in final.items()]
    return Panel(
        title=f"Loss after {horizon} iterations" + (f", above {above}" if above else ""),
        x_label=f"loss above {above}" if above else "loss",
        y_label="instances",
        x_scale=scale,
        bars=bars,
        marks=[*means, *_certified_marks(learned), *paper],
        notes=lost,
    )


def _certified_marks(learned: Learned) -> list[Mark]:
    """Certified losses at the horizon: of 80 % of instances, and in expectation, clipped."""
    values = {statement.name: statement.value for statement in learned.certificate.statements}
    quantile, mean = values[STATEMENT], values.get("loss, clipped")
    marks = [Mark(f"certified: 80% below {rounded_up(quantile, 3)}", "bound", quantile, "solid")]
    if mean is not None:
        label = f"certified: clipped mean below {rounded_up(mean, 3)}"
        marks.append(Mark(label, "bound", mean, "dashdot"))
    return marks


def _paper_marks(learned: Learned) -> list[Mark]:
    """The paper's bound, where losses allow one."""
    if not learned.problem.nonnegative:
        return []
    bound, point = learned.certified.bound, learned.certified.point_bound
    return [
        Mark(f"paper: {bound:.3g}, posterior (estimated)", "paper", bound),
        Mark(f"paper: {point:.3g}, this rule (estimated)", "paper", point, "dotted"),
    ]


def success_panel(learned: Learned) -> Panel:
    """The success probability on the test set, as a Beta posterior, and the constraint."""
    success, constraint = learned.evaluation.success, learned.task.constraint
    centre = constraint.lower - 4 * (1 - constraint.lower)
    x = np.linspace(max(0.0, min(centre, success.quantile_lower - 0.05)), 1.0, 800)
    return Panel(
        title=f"Success probability ({success.successes} of {success.trials} test instances)",
        x_label="probability of reaching the goal",
        y_label="density",
        lines=[Line("Beta posterior", "learned", x.tolist(), success.density(x).tolist())],
        marks=[
            Mark(f"estimate {success.probability:.3f}", "learned", success.probability),
            Mark(f"constraint, from {constraint.lower:g}", "bound", constraint.lower, "dotted"),
            Mark(f"constraint, up to {constraint.upper:g}", "bound", constraint.upper, "dotted"),
        ],
    )
