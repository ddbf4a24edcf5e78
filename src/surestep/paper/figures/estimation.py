"""How the estimate of a success probability narrows until it stands."""

import numpy as np
from jaxtyping import Bool

from surestep.base.progress import Reporter
from surestep.report.figures import Figure, Line, Mark, Panel
from surestep.train import Constraint, estimate_success

TRUTH = 0.8
CONSTRAINT = Constraint(
    lower=0.0, quantile_lower=0.05, quantile_upper=0.95, width=0.15, early_decision=0.0
)
"""The paper's example; nothing but the width ends the estimation."""
SHOWN = (1, 4, 10, 25, 50)
"""After how many trials the posterior is drawn, beside the last one."""


def estimation(seed: int, report: Reporter) -> Figure:
    """The Beta posterior after some trials and at the end, when its quantiles are close."""
    del report  # It takes no time.
    outcomes = np.random.default_rng(seed).random(10_000) < TRUTH
    end = estimate_success([outcomes], CONSTRAINT).trials
    shown = [trials for trials in SHOWN if trials < end]
    return Figure(
        name="estimation",
        title=f"Estimating a probability of {TRUTH}: {end} trials bring the quantiles within "
        f"{CONSTRAINT.width:g} of each other",
        groups=["posterior", "quantiles", "truth"],
        panels=[_panel(outcomes, trials) for trials in [*shown, end]],
    )


def _panel(outcomes: Bool[np.ndarray, " trial"], trials: int) -> Panel:
    successes = int(outcomes[:trials].sum())
    found = CONSTRAINT.assess(successes, trials)
    x = np.linspace(0, 1, 500)
    width = found.quantile_upper - found.quantile_lower
    return Panel(
        title=f"{successes} of {trials} succeeded: quantiles {width:.3f} apart",
        x_label="success probability",
        y_label="density",
        lines=[Line("Beta posterior", "posterior", x.tolist(), found.density(x).tolist())],
        marks=[
            Mark(f"{CONSTRAINT.quantile_lower:g} quantile", "quantiles", found.quantile_lower),
            Mark(f"{CONSTRAINT.quantile_upper:g} quantile", "quantiles", found.quantile_upper),
            Mark("truth", "truth", TRUTH, "dotted"),
        ],
    )
