"""After how many iterations instances are close enough: certified, beside the test set."""

import numpy as np
from jaxtyping import Float

from surestep.certify import Statement, Target, percent
from surestep.certify.evidence import reach_of_paths, reached_in
from surestep.certify.targets import ITERATIONS
from surestep.report.page_tables import Cell, Heading, Table
from surestep.run.learned import Learned

UNTIL = "iterations until"


def until_statement(learned: Learned) -> Statement | None:
    """The certificate's statement about iterations, if it makes one."""
    return next((s for s in learned.certificate.statements if s.name == UNTIL), None)


def until_table(learned: Learned) -> Table | None:
    """For every accuracy and share the certified iterations, and those of the test set."""
    statement = until_statement(learned)
    if statement is None:
        return None
    details = statement.details
    shares = list(details["iterations"])
    head = [
        [
            Heading("New instances"),
            *(Heading(f"{percent(float(s))} of instances", 3) for s in shares),
        ],
        [
            Heading(name)
            for _ in shares
            for name in ("iterations, certified", "test set", "gradients, certified")
        ],
    ]
    rows: list[list[Cell]] = []
    for number, target in enumerate(details["targets"]):
        seen = settled(learned, Target(target["kind"], target["value"]))
        row = [Cell(target["words"])]
        for share in shares:
            certified = details["iterations"][share][number]
            observed = float(np.quantile(seen, float(share), method="inverted_cdf"))
            later = certified is not None and observed > certified
            row += [
                Cell(_count(certified)),
                Cell(
                    _count(observed) if np.isfinite(observed) else "missed",
                    "later" if later else "",
                    "bad" if later else "",
                ),
                Cell(_count(details["gradients"][share][number])),
            ]
        rows.append(row)
    return Table("Iterations until shares of instances are so close, and stay there", head, rows)


def settled(learned: Learned, target: Target) -> Float[np.ndarray, " instance"]:
    """From which iteration on test instances are at a target until the horizon; infinite if not.

    Of those whose reference is known.
    """
    evaluation, known = learned.evaluation, learned.evaluation.known
    losses = evaluation.losses[0, known, : learned.task.horizon + 1]
    references, thresholds = evaluation.references[known], evaluation.thresholds[known]
    levels = target.levels(references, evaluation.starts[known], thresholds)
    return reached_in(reach_of_paths(losses, levels[:, None]), ITERATIONS, 0)


def _count(number: float | None) -> str:
    return "none" if number is None else f"{number:.0f}"
