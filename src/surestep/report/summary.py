"""A run's outcome as a table of plain text."""

import numpy as np

from surestep.learning import Learned
from surestep.rollout import Status


def summary(learned: Learned) -> str:
    """Losses at the horizon and the cost of each accuracy, for every solver."""
    evaluation, horizon, prior = learned.evaluation, learned.task.horizon, learned.prior
    head = [
        f"Sampling the prior: {prior.proposals} proposals, {prior.accepted} accepted, "
        f"{prior.outside} outside the success constraint, {prior.undecided} undecided.",
        f"On {evaluation.thresholds.size} test instances the learned rule reached the goal on "
        f"{evaluation.success.successes} of {evaluation.success.trials}.",
        "",
        f"{'':<22}{'loss after ' + str(horizon) + ' iterations':^34}",
        f"{'':<22}{'median':>11}{'mean':>11}{'largest':>12}",
    ]
    losses = [
        f"{name:<22}{np.median(final):>11.3g}{final.mean():>11.3g}{final.max():>12.3g}"
        for name, final in zip(evaluation.solvers, evaluation.losses[:, :, horizon], strict=True)
    ]
    return "\n".join([*head, *losses, "", *_accuracy_table(learned)])


def _accuracy_table(learned: Learned) -> list[str]:
    evaluation = learned.evaluation
    lines = [
        "Gradient evaluations (median) and seconds (all instances, one at a time / as a batch):",
        f"{'':<22}" + "".join(f"{'to ' + format(a, 'g'):>32}" for a in evaluation.accuracies),
    ]
    if evaluation.above:
        lines[0] = lines[0].removesuffix(":") + f", counted from {evaluation.above}:"
    for s, name in enumerate(evaluation.solvers):
        cells = []
        for a in range(len(evaluation.accuracies)):
            # An instance that was not brought there counts as infinitely expensive.
            reached = evaluation.reach_status[s, a] == Status.REACHED
            gradients = np.median(np.where(reached, evaluation.reach_gradients[s, a], np.inf))
            single, batch = evaluation.seconds[s, a].sum(), evaluation.seconds_batch[s, a]
            missed = int(np.sum(~reached))
            note = f" ({missed} missed)" if missed else ""
            cells.append(f"{gradients:.0f}, {single:.2g}/{batch:.2g} s{note}")
        lines.append(f"{name:<22}" + "".join(f"{cell:>32}" for cell in cells))
    if evaluation.external:
        lines += ["", *_external_table(learned)]
    return lines


def _external_table(learned: Learned) -> list[str]:
    evaluation = learned.evaluation
    counted = f" above {evaluation.above}" if evaluation.above else ""
    lines = [
        f"Solvers of other libraries, seconds (all instances, one at a time) and the loss{counted} "
        "that they ended with (median):"
    ]
    distances = np.median(evaluation.external_losses - evaluation.references, axis=2)
    for s, name in enumerate(evaluation.external):
        cells = []
        for a, missed in enumerate(evaluation.external_missed()[s]):
            note = f" ({missed} missed)" if missed else ""
            seconds = evaluation.external_seconds[s, a].sum()
            cells.append(f"{seconds:.2g} s, {distances[s, a]:.2g}{note}")
        lines.append(f"{name:<22}" + "".join(f"{cell:>32}" for cell in cells))
    return lines
