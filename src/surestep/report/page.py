"""The report of a run as one page: `report.html`, which needs nothing beside itself."""

import dataclasses
import json
import math
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from markupsafe import Markup

from surestep.certify import percent, rounded_down, rounded_up
from surestep.evaluate.break_even import TRAINING
from surestep.problem import Goal, working_precision
from surestep.report import page_tables as tables
from surestep.report.counted import STATEMENT, counted_from, statement_of
from surestep.report.figures import Figure, Panel
from surestep.report.moved import moved_table, moved_words
from surestep.report.page_tables import Table, duration
from surestep.report.pictures import Picture, pictures_in
from surestep.report.race_table import race_table, speed
from surestep.report.reading import Key, describe, legend, numbers
from surestep.report.shell import policy, template, text
from surestep.report.strata import predictions_table, strata_table
from surestep.report.svg import classes, cut_off, draw_svg, not_positive
from surestep.report.until import until_statement, until_table
from surestep.rules.base import Rule, hyper_of
from surestep.run.learned import Learned
from surestep.storage.files import write_text
from surestep.storage.run_folder import RunFolder

STAGES = (*TRAINING, "certify", "evaluate", "shifted")
_BANDS = "The shaded band holds the middle 80% of the instances."


@dataclasses.dataclass(frozen=True)
class Plot:
    """A panel as the page shows it."""

    title: str
    svg: Markup
    legend: list[Key]
    notes: list[str]
    tables: list[Table]


@dataclasses.dataclass(frozen=True)
class Tile:
    """A number to remember, and whether it is certified or was only seen."""

    value: str
    words: str
    kind: str


def write_page(
    learned: Learned,
    folder: RunFolder,
    figures: Mapping[str, Figure],
    pictures: Mapping[str, Path],
) -> Path:
    """Write the page into the run's folder."""
    path = folder.path / "report.html"
    write_text(path, page_of(learned, folder, figures, pictures, folder.path))
    return path


def page_of(
    learned: Learned,
    folder: RunFolder,
    figures: Mapping[str, Figure],
    pictures: Mapping[str, Path],
    place: Path,
) -> str:
    """The text of a run's page; the pictures lie below `place`."""
    config = folder.read_kept(folder.config_path)
    return render_page(learned, config, folder.status(), figures, pictures_in(pictures, place))


def render_page(
    learned: Learned,
    config: Mapping[str, Any],
    status: Mapping[str, Any],
    figures: Mapping[str, Figure],
    pictures: list[Picture],
) -> str:
    """The page's text, from a run's outcome, its configuration and status, and its figures."""
    losses, loss_comparisons = tables.loss_table(learned)
    costs, cost_comparisons = tables.cost_table(learned)
    comparisons = [*loss_comparisons, *cost_comparisons]
    certificate = learned.certificate
    own = config.get("problem") or {}
    return template("page.html").render(
        certificate=certificate,
        confidence=percent(1 - certificate.epsilon),
        main=until_statement(learned) or statement_of(learned, "missing the goal"),
        until=until_table(learned),
        strata=strata_table(certificate),
        predictions=predictions_table(certificate),
        moved=moved_table(certificate),
        moved_words=moved_words(certificate),
        goal=goal_in_words(learned.task.goal),
        family=_family(learned),
        tiles=_tiles(learned, loss_comparisons[0], bool(status.get("race"))),
        facts=_facts(learned, config),
        stages=_stages(status),
        sure=[s for s in certificate.statements if s.rigorous],
        estimated=[s for s in certificate.statements if not s.rigorous],
        ledger=tables.ledger_table(certificate),
        plots={name: plots(figure) for name, figure in figures.items()},
        certified=tables.certified_table(learned),
        losses=losses,
        costs=costs,
        external=tables.external_table(learned),
        race=race_table(status.get("race", {})),
        race_words=status.get("race", {}).get("words", ""),
        left_out=list(own.get("left_out", ())),
        budget=duration(float(own.get("budget", math.nan))),
        notes=[*(f"{note}." for note in learned.evaluation.notes), *learned.incomplete],
        alone=len(learned.evaluation.solvers) + len(learned.evaluation.external) == 1,
        compared=len(comparisons),
        lost=sum(1 for c in comparisons if c.ahead),
        defeats=tables.defeats(comparisons),
        together=_enumerated,
        break_even=tables.break_even_table(learned),
        training=duration(learned.training_seconds),
        shifted=None if learned.shifted is None else tables.shifted_table(learned.shifted),
        pictures=pictures,
        settings=flattened(config),
        use=_use(config),
        made_with=status.get("made_with", {}).get("environments", []),
        style=Markup(text("page.css")),
        script=Markup(text("page.js")),
        policy=policy(),
    )


def plots(figure: Figure) -> list[Plot]:
    """A figure's panels, drawn and in words."""
    styles = classes(figure.groups)
    return [
        Plot(
            title=panel.title,
            svg=Markup(draw_svg(panel, styles, f"{figure.name}-{i}", describe(panel))),
            legend=legend(panel, styles),
            notes=_notes(panel),
            tables=numbers(panel),
        )
        for i, panel in enumerate(figure.panels)
    ]


def _notes(panel: Panel) -> list[str]:
    notes = [f"{note}." for note in panel.notes]
    if panel.bands:
        notes.insert(0, _BANDS)
    beyond = cut_off(panel)
    if beyond:
        notes.append(f"Cut off at the panel's edge: {', '.join(beyond)}.")
    if not_positive(panel):
        names = ", ".join(not_positive(panel))
        notes.append(f"Values of 0 and below have no place on this axis: {names}.")
    return notes


def goal_in_words(goal: Goal) -> str:
    """What counts as success, for people."""
    if goal.kind == "decrease":
        power = {0.0: "", 1.0: " times the gradient's norm there"}.get(
            goal.exponent, f" \u00d7 (the gradient's norm there)^{goal.exponent:g}"
        )
        return f"a loss that is below the loss at the start by at least {goal.scale:g}{power}"
    if goal.exponent == 0:
        return f"a loss of at most {goal.scale:g}"
    if goal.exponent == 1:
        return f"a loss of at most {goal.scale:g} times the loss at the start"
    factor = "" if goal.scale == 1 else f"{goal.scale:g} \u00d7 "
    return f"a loss of at most {factor}(loss at the start)^{goal.exponent:g}"


def flattened(config: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """Settings by group, nested ones with dotted names; JSON is how values are written."""
    groups: dict[str, dict[str, str]] = {"run": {}}
    for name, value in config.items():
        if isinstance(value, Mapping):
            groups[name] = dict(_leaves(value))
        else:
            groups["run"][name] = _plain(value)
    return groups


def _leaves(value: Mapping[str, Any], where: str = "") -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for name, item in value.items():
        found += (
            _leaves(item, f"{where}{name}.")
            if isinstance(item, Mapping)
            else [(f"{where}{name}", _plain(item))]
        )
    return found


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _tiles(learned: Learned, median: tables.Comparison, raced: bool) -> list[Tile]:
    horizon, success = learned.task.horizon, learned.evaluation.success
    missing, losses = statement_of(learned, "missing the goal"), statement_of(learned, STATEMENT)
    reach = rounded_down(100 * (1 - missing.value), 3)
    above = f" above {counted_from(learned)}" if counted_from(learned) else ""
    found = [
        *_until_tile(learned),
        Tile(
            f"\u2265 {reach}%",
            f"of new instances reach the goal within {horizon} iterations",
            "certified",
        ),
        Tile(
            f"\u2264 {rounded_up(losses.value, 3)}" if math.isfinite(losses.value) else "none",
            f"loss{above} of at least 80% of new instances after {horizon} iterations",
            "certified",
        ),
        Tile(
            f"{success.successes} of {success.trials}",
            "test instances reached the goal",
            "observed",
        ),
    ]
    won = speed(learned.evaluation) if raced else None
    if won is not None:
        # The rule was chosen by the clock, so the clock says how it compares.
        found.append(Tile(*won, "observed"))
    elif len(median.solvers) > 1:
        rank = len(median.ahead) + 1
        names = median.ahead
        if len(names) > 3:
            names = [*names[:2], f"{len(names) - 2} others"]
        behind = f", behind {_enumerated(names)}" if names else ""
        found.append(
            Tile(
                f"{tables.ordinal(rank)} of {len(median.solvers)}",
                f"solvers by median test loss{behind}",
                "observed",
            )
        )
    return found


def _until_tile(learned: Learned) -> list[Tile]:
    """After how many iterations most instances are close enough, if that is certified."""
    statement = until_statement(learned)
    if statement is None or not math.isfinite(statement.value):
        return []
    details = statement.details
    words = details["targets"][details["headline"]["target"]]["words"]
    share = percent(details["headline"]["share"])
    return [
        Tile(
            f"{statement.value:.0f} iterations",
            f"until at least {share} of new instances {words}",
            "certified",
        )
    ]


def _enumerated(names: list[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else names[0]


def _facts(learned: Learned, config: Mapping[str, Any]) -> dict[str, str]:
    sizes, prior = learned.certificate.sizes, learned.prior
    with working_precision(learned.problem):
        weights = hyper_of(learned.deployed).size
    kind = type(learned.deployed).__name__
    about = _first_paragraph(learned.deployed)
    tested = learned.evaluation.thresholds.size
    return {
        "Rule": f"{kind}, {weights} learned numbers" + (f": {about}" if about else ""),
        **_around(learned.deployed),
        "Goal": goal_in_words(learned.task.goal),
        "Horizon": f"{learned.task.horizon} iterations",
        "Training": f"{duration(learned.training_seconds)} (all stages before certifying)",
        "Instances": f"{sizes['prior']} prior, {sizes['validation']} validation, "
        f"{sizes['train']} train, {tested} test",
        "Prior": f"{len(prior.hypers)} sampled rules ({prior.proposals} proposals: "
        f"{prior.accepted} accepted, {prior.outside} outside the success constraint, "
        f"{prior.undecided} undecided); rule {learned.certificate.deployed_sample} is deployed",
        "Preset": str(config.get("preset", "")),
        "Seed": str(config.get("seed", "")),
    }


def _family(learned: Learned) -> str:
    """What the family is, in a sentence or two."""
    summary, about = learned.problem.summary, _first_paragraph(learned.problem)
    return f"{summary[0].upper()}{summary[1:]}. {about}" if summary else about


def _around(rule: object) -> dict[str, str]:
    """What is inside a rule that was put around others."""
    inside = []
    while isinstance(rule := getattr(rule, "rule", None), Rule):
        inside.append(f"{type(rule).__name__}: {_first_paragraph(rule)}")
    return {"Inside it": " ".join(inside)} if inside else {}


def _first_paragraph(thing: object) -> str:
    """The beginning of a thing's own description, or of its class's, if there is one."""
    text = str(getattr(thing, "about", None) or type(thing).__doc__ or "").strip()
    # Dataclasses without one are given their signature.
    if text.startswith(f"{type(thing).__name__}("):
        return ""
    return " ".join(text.split("\n\n")[0].split()).replace("`", "")


def _stages(status: Mapping[str, Any]) -> dict[str, str]:
    return {
        name: duration(float(status[name]["seconds"]))
        for name in STAGES
        if "seconds" in status.get(name, {})
    }


def _use(config: Mapping[str, Any]) -> dict[str, str]:
    """Code that uses the solver, to be run in the run's folder."""
    settings = config.get("problem")
    file = settings.get("file") if isinstance(settings, Mapping) else ""
    known = isinstance(settings, Mapping) and "file" not in settings
    # The file is named by who runs this: a folder runs no code by itself.
    opened, option = (".", "") if known else (str(file), f" --problem {shlex.quote(str(file))}")
    opens = bool(file) or known
    python = [
        "import surestep as ss",
        "",
        f"problem = ss.open_problem({json.dumps(opened)})"
        if opens
        else "problem = ...  # the problem that this run was given",
        'solver = ss.load("solver.safetensors", problem)',
        "solution = solver.solve(thetas)  # your instances, stacked",
        "print(solution.loss, solution.covered)",
    ]
    shell = [
        f"surestep solve solver.safetensors {shlex.quote(opened)} --instances data.npz "
        "--out solutions.npz",
        f"surestep verify . --rerun 20{option}",
    ]
    return {"python": "\n".join(python), "shell": "\n".join(shell if opens else [])}
