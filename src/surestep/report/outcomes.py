"""The page of a certificate of anyone's solver: statements, what they rest on, and figures."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float
from markupsafe import Markup

from surestep.certify import Certificate, Statement, Target, percent, rounded_down, rounded_up
from surestep.certify.evidence import Evidence, reached_in
from surestep.certify.outcome_plan import OutcomePlan, evidence_for
from surestep.certify.outcomes import Outcomes
from surestep.certify.targets import ITERATIONS
from surestep.report.certified import observed_quantile
from surestep.report.figures import Figure, Line, Panel
from surestep.report.page import plots
from surestep.report.page_tables import Cell, Heading, Table, number
from surestep.report.shell import policy, template, text
from surestep.run.outcomes import OutcomeFolder
from surestep.run.verify.finished import Check
from surestep.storage.files import read_text, write_text

_FEW = 6  # targets that a figure shows


def write_outcomes_page(folder: OutcomeFolder) -> Path:
    """Write the page of a folder that holds a certificate of outcomes."""
    write_text(folder.report_path, _page_of(folder))
    return folder.report_path


def verify_outcomes_page(folder: OutcomeFolder) -> list[Check]:
    """Whether the page is the one that the folder gives; other versions write another."""
    if not (folder.report_path.exists() and folder.made_here()):
        return []
    same = read_text(folder.report_path) == _page_of(folder)
    reason = "is not what the folder gives (surestep report writes it again)"
    return [Check("the report", same, "" if same else reason)]


def _page_of(folder: OutcomeFolder) -> str:
    return render_outcomes(folder.plan(), Outcomes.of(folder.outcomes()), folder.certificate())


def render_outcomes(plan: OutcomePlan, outcomes: Outcomes, certificate: Certificate) -> str:
    """The page's text."""
    evidence = evidence_for(plan, outcomes)
    panels = [] if plan.plain_hits else _panels(plan, evidence, certificate)
    figure = Figure(
        "outcomes",
        certificate.problem,
        list(dict.fromkeys(line.group for panel in panels for line in panel.lines)),
        panels,
    )
    return template("outcomes.html").render(
        certificate=certificate,
        confidence=percent(1 - certificate.epsilon),
        main=certificate.statements[0],
        until=_until(plan, evidence, certificate),
        ledger=_ledger(certificate),
        plots=plots(figure),
        made=_made(plan),
        settings=_settings(plan),
        shell=_shell(certificate),
        style=Markup(text("page.css")),
        script=Markup(text("page.js")),
        policy=policy(),
    )


def _panels(plan: OutcomePlan, evidence: Evidence, certificate: Certificate) -> list[Panel]:
    """Losses that shares of instances stay below, and how many are close when."""
    steps = [float(i) for i in plan.terms.iterations]
    found = [
        _levels(plan, evidence, statement)
        for statement in certificate.statements
        if statement.details.get("counted") in ("loss", "above") and len(steps) > 1
    ]
    shares = [
        Line(target.words(plan.terms.above), target.words(plan.terms.above), steps,
             np.mean(there[:, None] <= np.array(steps), axis=0).tolist())
        for target, there in list(_settled(plan, evidence))[:_FEW]
    ]  # fmt: skip
    if len(steps) > 1:
        found.append(
            Panel(
                title="Observed: share of instances that are there, and stay there",
                x_label="iteration",
                y_label="share of instances",
                lines=shares,
            )
        )
    return found


def _levels(plan: OutcomePlan, evidence: Evidence, statement: Statement) -> Panel:
    """Certified quantiles of losses, beside those of the outcomes themselves."""
    details, terms = statement.details, plan.terms
    counted = details["counted"] == "above"
    seen = evidence.losses[0]
    seen = np.maximum(seen - evidence.references[:, None], 0.0) if counted else seen
    steps, lines = [float(i) for i in terms.iterations], []
    for share, losses in details["quantiles"].items():
        group = f"{percent(float(share))} of instances"
        below = observed_quantile(seen, float(share))
        certified = [math.inf if loss is None else float(loss) for loss in losses]
        at = [float(i) for i in details["iterations"]]
        lines += [
            Line(f"{group}, certified", group, at, certified),
            Line(f"{group}, observed", group, steps, below, "dashed"),
        ]
    return Panel(
        title="Loss that a share of instances stays below: certified and observed",
        x_label="iteration",
        y_label=f"loss above {terms.above}" if counted and terms.above else "loss",
        y_scale="log" if terms.bounded or terms.above else "linear",
        lines=lines,
    )


def _settled(
    plan: OutcomePlan, evidence: Evidence
) -> list[tuple[Target, Float[np.ndarray, " instance"]]]:
    """From which iteration on instances are at every target."""
    return [
        (target, reached_in(evidence.reach[0], ITERATIONS, number))
        for number, target in enumerate(plan.terms.targets)
    ]


def _until(plan: OutcomePlan, evidence: Evidence, certificate: Certificate) -> Table | None:
    """For every accuracy and share the certified iterations, and those observed."""
    known = dict(_settled(plan, evidence))
    tables = [s.details for s in certificate.statements if "iterations" in s.details]
    tables = [details for details in tables if "targets" in details]
    if not tables:
        return None
    shares = list(dict.fromkeys(share for details in tables for share in details["iterations"]))
    head = [
        [
            Heading("New instances"),
            *(Heading(f"{percent(float(s))} of instances", 2) for s in shares),
        ],
        [Heading(name) for _ in shares for name in ("certified", "observed")],
    ]
    rows = [
        _until_row(target, at, details["iterations"], shares, known)
        for details in tables
        for at, target in enumerate(details["targets"])
    ]
    return Table("Iterations until shares of instances are so close, and stay there", head, rows)


def _until_row(
    target: Mapping[str, Any],
    at: int,
    certified: Mapping[str, Sequence[float | None]],
    shares: Sequence[str],
    known: Mapping[Target, Float[np.ndarray, " instance"]],
) -> list[Cell]:
    """The row of one target: certified iterations, and those that were observed."""
    seen = known[Target(target["kind"], target["value"])]
    row = [Cell(target["words"])]
    for share in shares:
        sure = certified[share][at] if share in certified else None
        observed = float(np.quantile(seen, float(share), method="inverted_cdf"))
        row += [
            Cell("none" if sure is None else f"{sure:.0f}"),
            Cell(f"{observed:.0f}" if np.isfinite(observed) else "missed"),
        ]
    return row


def _ledger(certificate: Certificate) -> Table:
    """What every share of epsilon pays for."""
    values = {statement.name: statement.value for statement in certificate.statements}
    rows = [
        [
            Cell(share.name),
            Cell(_bound(share.name, values[share.name])),
            Cell(number(share.epsilon)),
            Cell(f"{100 * share.epsilon / certificate.epsilon:.1f}%"),
        ]
        for share in certificate.ledger
    ]
    head = [[Heading(words) for words in ("Statement", "Value", "Epsilon", "Share")]]
    return Table("The ledger: what each share of epsilon pays for", head, rows)


def _bound(name: str, value: float) -> str:
    if not math.isfinite(value):
        return "none"
    # Advantages and savings are bounded from below, everything else from above.
    lower = name.startswith(("advantage over ", "saving over "))
    return (rounded_down if lower else rounded_up)(value).replace("-", "\u2212")


def _made(plan: OutcomePlan) -> str:
    """Where the plan comes from."""
    if plan.pilot_size:
        return f"It was made from a pilot of {plan.pilot_size} other instances."
    return "Its claims were named beforehand." if plan.settings.claims else ""


def _settings(plan: OutcomePlan) -> dict[str, Any]:
    given = plan.settings
    named = {
        "Solver": given.solver,
        "Instances": given.problem,
        "Number of instances": plan.terms.train_size,
        "Epsilon": given.epsilon,
        "Claims": "; ".join(given.claims),
        "Accuracies": ", ".join(f"{value:g}" for value in given.accuracies),
        "Losses": "may be negative" if given.signed else "at least 0",
        "Recorded after": f"{len(plan.terms.iterations)} numbers of iterations, the last one "
        f"{plan.terms.horizon}",
    }
    return {name: value for name, value in named.items() if value != ""}


def _shell(certificate: Certificate) -> str:
    """Commands that check the certificate, and watch if it stays true."""
    lines = ["surestep verify ."]
    failing = {"missing the goal", "no hit"}
    for statement in certificate.statements:
        if statement.name in failing or "asked" in statement.details:
            lines += [
                f"# one outcome a line, 1 where this fails: {statement.plain}",
                f"surestep monitor state.json --failure {rounded_up(statement.value)} < outcomes",
            ]
            break
    return "\n".join(lines)
