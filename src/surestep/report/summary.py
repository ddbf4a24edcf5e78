"""A run's outcome as a table of plain text."""

import math

import numpy as np
from jaxtyping import Float

from surestep.evaluate.break_even import BreakEven
from surestep.evaluate.off_family import Shifted
from surestep.report.figures import missed_note
from surestep.run.learned import Learned


def summary(learned: Learned) -> str:
    """Losses at the horizon and the cost of each accuracy, for every solver, as plain text.

    **Arguments:**

    - `learned`: what `learn` or `fit` returned.

    **Returns:** several lines of text.

    **Example:**

    ```python
    print(ss.report.summary(learned))
    ```
    """
    if learned.evaluated is None:
        return "\n".join(learned.incomplete)
    evaluation, horizon, prior = learned.evaluated, learned.task.horizon, learned.prior
    head = [
        f"Sampling the prior: {prior.proposals} proposals, {prior.accepted} accepted, "
        f"{prior.outside} outside the success constraint, {prior.undecided} undecided.",
        f"On {evaluation.thresholds.size} test instances the learned rule reached the goal on "
        f"{evaluation.success.successes} of {evaluation.success.trials}.",
        "",
    ]
    final = evaluation.losses[:, :, horizon]
    title = f"loss after {horizon} iterations"
    lines = [*head, *_loss_table(title, evaluation.solvers, final), ""]
    if evaluation.above:
        distances = evaluation.distances(final)
        title = f"of it above {evaluation.above}"
        lines += [*_loss_table(title, evaluation.solvers, distances), ""]
    lines += [*_accuracy_table(learned), "", *_worth(learned)]
    if learned.shifted is not None:
        lines += ["", *_shifted_table(learned.shifted)]
    notes = [f"Note: {note}." for note in evaluation.notes]
    if notes or learned.incomplete:
        lines += ["", *notes, *learned.incomplete]
    return "\n".join(lines)


def _loss_table(
    title: str, solvers: list[str], losses: Float[np.ndarray, "solver instance"]
) -> list[str]:
    return [
        f"{'':<22}{title:^34}",
        f"{'':<22}{'median':>11}{'mean':>11}{'largest':>12}",
        *(
            f"{name:<22}{np.median(one):>11.3g}{one.mean():>11.3g}{one.max():>12.3g}"
            for name, one in zip(solvers, losses, strict=True)
        ),
    ]


def _accuracy_table(learned: Learned) -> list[str]:
    evaluation = learned.evaluation
    timed = evaluation.seconds.shape[2]
    lines = [
        f"Gradient evaluations (median/90th percentile, {timed} instances) and milliseconds of a "
        f"solve (alone, mean of {evaluation.alone}/in a batch):",
        f"{'':<22}" + "".join(_cell(f"to {name}") for name in evaluation.accuracy_names()),
    ]
    if evaluation.above:
        lines[0] = lines[0].removesuffix(":") + f", counted from {evaluation.above}:"
    # An instance that was not brought there counts as infinitely expensive.
    middle, high = (evaluation.gradient_quantile(share) for share in (0.5, 0.9))
    for s, name in enumerate(evaluation.solvers):
        cells = []
        for a, missed in enumerate(evaluation.missed()[s]):
            single = 1e3 * evaluation.mean_seconds()[s, a]
            batch = 1e3 * evaluation.seconds_batch[s, a] / timed
            gradients = f"{middle[s, a]:.0f}/{high[s, a]:.0f}"
            cells.append(f"{gradients}, {single:.2g}/{batch:.2g} ms{missed_note(int(missed))}")
        lines.append(f"{name:<22}" + "".join(map(_cell, cells)))
    if evaluation.external:
        lines += ["", *_external_table(learned)]
    return lines


def _cell(text: str) -> str:
    return f"{text:>38}"


def _external_table(learned: Learned) -> list[str]:
    evaluation = learned.evaluation
    counted = f" above {evaluation.above}" if evaluation.above else ""
    lines = [
        "Solvers of other libraries, milliseconds of a solve (alone, mean of "
        f"{evaluation.alone}) and the loss{counted} that they ended with (median):"
    ]
    distances = evaluation.external_distances()
    seconds = evaluation.mean_seconds()[len(evaluation.solvers) :]
    for s, name in enumerate(evaluation.external):
        cells = []
        for a, missed in enumerate(evaluation.external_missed()[s]):
            note = missed_note(int(missed))
            cells.append(f"{1e3 * seconds[s, a]:.2g} ms, {distances[s, a]:.2g}{note}")
        lines.append(f"{name:<22}" + "".join(map(_cell, cells)))
    return lines


def _worth(learned: Learned) -> list[str]:
    """After how many solves training has paid for itself."""
    lines = [
        f"Training took {learned.training_seconds:.3g} s. It has paid for itself, against the "
        "fastest other solver, after:"
    ]
    for name, one in zip(learned.evaluation.accuracy_names(), learned.break_even(), strict=True):
        solves = f"{math.ceil(one.solves)} solves" if math.isfinite(one.solves) else "never"
        lines.append(f"  to {name:<10}{solves:<20}{_reason(one)}")
    return lines


def _reason(one: BreakEven) -> str:
    if not one.opponent:
        return "(there is no other solver)"
    if one.missed:
        return f"({one.opponent} solves {one.missed} instances more)"
    times = f"{one.learned_seconds:.2g} s a solve, {one.opponent} {one.opponent_seconds:.2g} s"
    return f"({times})"


def _shifted_table(shifted: Shifted) -> list[str]:
    _, _, number, steps = shifted.losses.shape
    reached = shifted.successes().sum(axis=2)
    lines = [
        f"Off the family, where no certificate holds ({number} instances each): loss after "
        f"{steps - 1} iterations, median/largest, and how often the goal was reached",
        f"{'':<36}" + "".join(_cell(name) for name in shifted.solvers),
    ]
    for i, name in enumerate(shifted.shifts):
        cells = [
            f"{np.median(losses):.3g}/{losses.max():.3g}, {reached[i, s]} of {number}"
            for s, losses in enumerate(shifted.losses[i, :, :, -1])
        ]
        lines.append(f"{name:<36}" + "".join(map(_cell, cells)))
    return lines
