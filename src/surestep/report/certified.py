"""Certified losses over the iterations beside the test set's, as a figure."""

import math

import numpy as np
from jaxtyping import Float

from surestep.certify import percent
from surestep.report.counted import (
    STATEMENT,
    counted_from,
    counted_losses,
    counted_scale,
    statement_of,
)
from surestep.report.figures import Figure, Line, Mark, Panel
from surestep.run.learned import Learned


def certified(learned: Learned) -> Figure:
    """What each share of new instances is certified to be below, and what the test set shows."""
    panel = certified_panel(learned)
    return Figure(
        name="certified",
        title=f"{learned.certificate.problem}: certified losses and those of "
        f"{learned.evaluation.thresholds.size} test instances",
        groups=list(dict.fromkeys(line.group for line in panel.lines)),
        panels=[panel],
    )


def certified_panel(learned: Learned) -> Panel:
    """One pair of lines for each share: certified at some iterations, observed at all of them."""
    iterations, bounds = certified_quantiles(learned)
    horizon = learned.task.horizon
    seen = counted_losses(learned, learned.evaluation.losses[0, :, : horizon + 1])
    above = counted_from(learned)
    lines: list[Line] = []
    for share, bound in bounds.items():
        group = f"{percent(share)} of instances"
        at = [float(i) for i in iterations]
        steps = [float(i) for i in range(horizon + 1)]
        lines.append(Line(f"{group}, certified", group, at, bound))
        lines.append(
            Line(f"{group}, test set", group, steps, observed_quantile(seen, share), "dashed")
        )
    return Panel(
        title="Loss that a share of instances stays below: certified and observed",
        x_label="iteration",
        y_label=f"loss above {above}" if above else "loss",
        y_scale=counted_scale(learned),
        lines=lines,
        marks=[Mark(f"horizon ({horizon})", "horizon", float(horizon), "dotted")],
        notes=[
            f"no loss is certified for {percent(share)} of instances at "
            + ("any iteration" if np.all(np.isinf(bound)) else "some iterations")
            for share, bound in bounds.items()
            if np.any(np.isinf(bound))
        ],
    )


def certified_quantiles(learned: Learned) -> tuple[list[int], dict[float, list[float]]]:
    """The certified iterations, and by share the losses there; infinite where none is certified."""
    details = statement_of(learned, STATEMENT).details
    return details["iterations"], {
        float(share): [math.inf if loss is None else float(loss) for loss in losses]
        for share, losses in details["quantiles"].items()
    }


def observed_quantile(losses: Float[np.ndarray, "instance iteration"], share: float) -> list[float]:
    """At every iteration the smallest loss that at least this share of instances is at or below."""
    return np.quantile(losses, share, axis=0, method="inverted_cdf").tolist()
