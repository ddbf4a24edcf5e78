"""How a population's members did, round after round, as a figure."""

import numpy as np

from surestep.report.figures import Figure, Line, Panel, Points
from surestep.train import Chosen


def history(problem: str, chosen: Chosen) -> Figure:
    """One line a member, as long as it took part; the winner stands out, and its best round."""
    others = [i for i in range(chosen.merits.shape[1]) if i != chosen.member]
    winner = _line(chosen, chosen.member, f"winner: member {chosen.member}", "winner")
    best = int(np.argmin(winner.y))
    panel = Panel(
        title=f"{chosen.merits.shape[1]} rules, the better half goes on",
        x_label="round",
        y_label="merit on the prior set (power of ten of the loss)",
        lines=[
            # One entry in the legend is enough for all the others; the winner is drawn last.
            *(
                _line(chosen, i, "other members" if first else "", "others")
                for first, i in zip([True] + [False] * len(others), others, strict=False)
            ),
            winner,
        ],
        points=[
            Points("best of all", "winner", [winner.x[best]], [winner.y[best]], 8.0),
        ],
        notes=[f"the winner learns {chosen.rate:g} times as fast as locate.learning_rate says"],
    )
    return Figure("population", f"{problem}: the population", ["winner", "others"], [panel])


def _line(chosen: Chosen, member: int, label: str, group: str) -> Line:
    merits = chosen.merits[:, member]
    rounds = np.flatnonzero(~np.isnan(merits))
    return Line(label, group, rounds.astype(float).tolist(), merits[rounds].tolist())
