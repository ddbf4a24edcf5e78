"""The report's page: numbers against what they are made from, drawings read back, refusals."""

import dataclasses
import html
import json
import math
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from support import outcome
from support.outcome import ACCURACIES, CONFIG, HORIZON, STATUS, TEST
from surestep.base.errors import RunFolderError
from surestep.certify.certificate import Certificate, rounded_down, rounded_up
from surestep.problem.goal import Goal
from surestep.report import write_report
from surestep.report.certified import certified_panel, certified_quantiles, observed_quantile
from surestep.report.figures import Band, Bars, Dash, Field, Line, Mark, Panel
from surestep.report.files import run_figures
from surestep.report.page import flattened, goal_in_words, render_page, write_page
from surestep.report.page_tables import (
    Comparison,
    certified_table,
    cost_table,
    defeats,
    duration,
    external_table,
    ledger_table,
    loss_table,
    number,
    ordinal,
)
from surestep.report.reading import describe, legend, numbers
from surestep.report.svg import Axis, classes, cut_off, draw_svg, not_positive
from surestep.storage.records import from_plain, to_json
from surestep.storage.run_folder import RunFolder

LEARNED = outcome.outcome()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A run's folder with all that a report takes from it."""
    run = RunFolder(tmp_path_factory.mktemp("page"))
    run.config_path.write_text(json.dumps(CONFIG))
    run.save("population", outcome.population())
    for name, facts in STATUS.items():
        run.mark(name, **facts)
    return run


@pytest.fixture(scope="module")
def page(folder):
    return write_page(LEARNED, folder, run_figures(LEARNED, folder), {}).read_text()


def words(page):
    """The text of a page, one space between words."""
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", page)).split())


def test_the_page_says_everything_the_certificate_says(page):
    shown = words(page)
    for statement in LEARNED.certificate.statements:
        assert statement.plain in shown or statement.sentence in shown
        for text in [*statement.assumptions, *statement.estimates]:
            assert text[1:] in shown
    for share in LEARNED.certificate.ledger:
        assert share.name in shown
    goal = next(s for s in LEARNED.certificate.statements if s.name == "missing the goal")
    assert f"\u2265 {rounded_down(100 * (1 - goal.value), 3)}%" in shown
    for text in ("valley", "steep & narrow", "step_sizes.initial", "1e-06", "0.10", "12.5 s"):
        assert text in shown
    assert "The square of the distance to a point, times 3." in shown
    assert "What stands here is not on the page" not in shown


def test_sections_come_in_order_and_those_without_content_not_at_all(page):
    everything = re.findall(r'<h2 id="(\w+)"', page)
    assert everything == [
        "learned", "certificate", "test", "curves", "profiles", "solvers", "worth", "shifted",
        "population", "configuration", "use", "made",
    ]  # fmt: skip
    assert [f'#{name}"' in page for name in everything] == [True] * len(everything)
    bare = dataclasses.replace(LEARNED, shifted=None)
    figures = run_figures(bare, RunFolder(Path("none")))
    without = re.findall(r'<h2 id="(\w+)"', render_page(bare, CONFIG, {}, figures, []))
    assert without == [n for n in everything if n not in ("shifted", "population")]


def test_a_page_is_small_and_the_same_every_time(page, folder):
    assert len(page.encode()) < 300_000
    assert write_page(LEARNED, folder, run_figures(LEARNED, folder), {}).read_text() == page
    assert [p for p in folder.path.iterdir() if p.name.endswith(".new")] == []


def test_a_certificate_that_was_stored_gives_the_same_page(page, folder, tmp_path):
    LEARNED.certificate.save(tmp_path / "certificate.json")
    stored = Certificate.load(tmp_path / "certificate.json")
    again = dataclasses.replace(LEARNED, certificate=stored)
    assert render_page(again, CONFIG, folder.status(), run_figures(again, folder), []) == page


def test_a_report_names_what_it_wrote(folder):
    picture = folder.figures / "pictures.png"
    picture.parent.mkdir(exist_ok=True)
    Image.new("L", (4, 4)).save(picture)
    paths = write_report(LEARNED, folder, {"pictures": picture})
    assert list(paths)[:2] == ["report", "figure"]
    assert all(path.exists() for name, path in paths.items() if name != "certificate")
    assert (folder.figures / "certified.json").exists()
    shown = paths["report"].read_text()
    assert shown.count("data:image/png;base64,") == 1 and "figures/pictures.png" in shown


def test_pictures_that_are_too_large_are_named_and_others_ignored(folder, tmp_path):
    large, text = tmp_path / "large.png", tmp_path / "text.txt"
    large.write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(1_500_000))
    text.write_text("no picture")
    figures = run_figures(LEARNED, folder)
    shown = write_page(LEARNED, folder, figures, {"large": large, "t": text}).read_text()
    assert "large.png is too large for this page" in words(shown)
    assert "data:image" not in shown and "text.txt" not in shown


HOSTILE = "\"'><script>steal()</script><img src=//a.b/x onerror=steal()></style><!--{{ 7*7 }}]]>"


def hostile(value: Any) -> Any:
    """The same with every text followed by one that would break out, names and kinds apart."""
    if isinstance(value, dict):
        return {key: inner if key == "kind" else hostile(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [hostile(inner) for inner in value]
    words = ("inf", "-inf", "nan")
    return value + HOSTILE if isinstance(value, str) and value not in words else value


class Tags(HTMLParser):
    """What a browser would make of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def test_nothing_that_a_stranger_wrote_becomes_markup(folder):
    plain = json.loads(to_json(LEARNED.certificate))
    statements = [entry | {"name": kept["name"]} for entry, kept in
                  zip(hostile(plain["statements"]), plain["statements"], strict=True)]  # fmt: skip
    certificate = from_plain(Certificate, hostile(plain) | {"statements": statements})
    evaluation = LEARNED.evaluation
    learned = dataclasses.replace(
        LEARNED,
        certificate=certificate,
        evaluated=dataclasses.replace(
            evaluation,
            solvers=[evaluation.solvers[0], *hostile(evaluation.solvers[1:])],
            external=hostile(evaluation.external),
        ),
    )
    status = {f"{name}{HOSTILE}": hostile(facts) for name, facts in STATUS.items()}
    status |= {"made_with": {"environments": [{f"jax{HOSTILE}": HOSTILE}]}}
    config = {f"{name}{HOSTILE}": hostile(value) for name, value in CONFIG.items()} | {
        "problem": {"file": f"/home/{HOSTILE}/x.py:y"}, "name": HOSTILE,
    }  # fmt: skip
    shown = render_page(learned, config, status, run_figures(learned, folder), [])
    assert shown.count(html.escape("<script>steal()")) > 20
    tags = Tags()
    tags.feed(shown)
    assert [tag for tag, _ in tags.found].count("script") == 1
    assert "{{" not in shown.replace(html.escape(HOSTILE), "").replace("{{ 7*7 }}", "")
    for tag, attributes in tags.found:
        assert tag not in ("iframe", "object", "embed", "base", "form"), tag
        assert not [name for name in attributes if name.startswith("on")], (tag, attributes)
        for name in ("src", "href"):
            assert (attributes.get(name) or "#").startswith(("#", "data:")), (tag, attributes)


def test_a_configuration_that_cannot_be_read_is_refused(tmp_path):
    with pytest.raises(RunFolderError, match=r"config\.json cannot be read"):
        write_page(LEARNED, RunFolder(tmp_path), {}, {})


def test_certified_losses_are_the_certificates_and_observed_ones_order_statistics():
    details = next(s for s in LEARNED.certificate.statements if s.name == "losses over iterations")
    iterations, bounds = certified_quantiles(LEARNED)
    assert iterations == details.details["iterations"]
    panel = certified_panel(LEARNED)
    for share, (sure, seen) in zip(
        bounds, zip(panel.lines[::2], panel.lines[1::2], strict=True), strict=True
    ):
        assert sure.y == [v or math.inf for v in details.details["quantiles"][f"{share:g}"]]
        ranked = np.sort(LEARNED.evaluation.losses[0], axis=0)[math.ceil(share * TEST) - 1]
        assert seen.y == ranked[: HORIZON + 1].tolist()
    table = certified_table(LEARNED)
    assert [row[0].text for row in table.rows] == [str(i) for i in iterations]
    assert table.rows[-1][3].text == rounded_up(details.value)


def test_a_test_set_above_what_is_certified_is_marked():
    worse = LEARNED.evaluation.losses.copy()
    worse[0] *= 1e3
    evaluation = dataclasses.replace(LEARNED.evaluation, losses=worse)
    table = certified_table(dataclasses.replace(LEARNED, evaluated=evaluation))
    assert {cell.badge for row in table.rows for cell in row[2::2]} == {"above"}
    assert {cell.badge for row in certified_table(LEARNED).rows for cell in row} == {""}


def test_shares_without_a_certified_loss_are_said_to_have_none():
    statements = LEARNED.certificate.statements
    place = next(i for i, s in enumerate(statements) if s.name == "losses over iterations")
    details = statements[place].details
    quantiles = details["quantiles"] | {"0.95": [None] * len(details["iterations"])}
    changed = dataclasses.replace(statements[place], details=details | {"quantiles": quantiles})
    certificate = dataclasses.replace(
        LEARNED.certificate, statements=[*statements[:place], changed, *statements[place + 1 :]]
    )
    learned = dataclasses.replace(LEARNED, certificate=certificate)
    assert "no loss is certified for 95% of instances at any iteration" in (
        certified_panel(learned).notes
    )
    assert certified_table(learned).rows[0][7].text == "none"


def test_quantiles_by_hand():
    losses = np.array([[5.0], [1.0], [4.0], [2.0], [3.0]])
    assert [observed_quantile(losses, s) for s in (0.2, 0.5, 0.8, 0.81)] == [[1], [3], [4], [5]]


def test_tables_rank_the_learned_rule_where_it_stands():
    table, comparisons = loss_table(LEARNED)
    final = LEARNED.evaluation.losses[:, :, HORIZON]
    assert [cell.text for cell in table.rows[0][1:]] == [
        number(f(final[0])) for f in (np.median, np.mean, np.max)
    ]
    assert [cell.badge for cell in table.rows[0][1:]] == ["2nd of 3"] * 3
    assert [cell.badge for cell in table.rows[1][1:]] == [""] * 3
    assert [cell.badge for cell in table.rows[2][1:]] == ["ahead"] * 3
    costs, more = cost_table(LEARNED)
    assert costs.rows[1][3].note == "7 missed"
    found = defeats([*comparisons, *more])
    assert [d.ahead for d in found] == [["conjugate gradients"]]
    assert len(found[0].comparisons) == 3 + 2 * len(ACCURACIES)


def compared(*keys):
    solvers = [f"solver {i}" for i in range(len(keys))]
    return Comparison("cost", solvers, list(keys), [str(key) for key in keys])


def test_standings_by_hand():
    assert compared((2.0,), (2.0,), (3.0,)).standing == "best"
    behind = compared((2.0,), (1.0,), (math.inf,), (1.5,))
    assert behind.standing == "3rd of 4" and behind.ahead == ["solver 1", "solver 3"]
    # Fewer misses count before the time.
    assert compared((1, 0.1), (0, 9.0)).ahead == ["solver 1"]
    assert [cell.badge for cell in compared((1.0,)).cells()] == [""]
    both = [compared((2.0,), (1.0,)), compared((3.0,), (1.0,)), compared((1.0,), (2.0,))]
    assert [(d.ahead, len(d.comparisons)) for d in defeats(both)] == [(["solver 1"], 2)]


def test_solvers_of_other_libraries_count_as_opponents():
    assert external_table(LEARNED) is None
    fast = np.full((1, len(ACCURACIES), TEST), 1e-6)
    evaluation = dataclasses.replace(
        LEARNED.evaluation, external=["outsider"], external_losses=fast, external_seconds=fast
    )
    learned = dataclasses.replace(LEARNED, evaluated=evaluation)
    table = external_table(learned)
    assert table is not None
    assert [cell.badge for cell in table.rows[0][1:]] == ["ahead", ""] * len(ACCURACIES)
    times = cost_table(learned)[1][1]
    assert times.ahead == ["conjugate gradients", "outsider"] and times.standing == "3rd of 4"


def test_a_page_without_opponents_or_defeats_says_so():
    figures = run_figures(LEARNED, RunFolder(Path("none")))

    def text(keep):
        e = LEARNED.evaluation
        cut = {
            name: getattr(e, name)[keep]
            for name in (
                "losses", "gradients", "measures", "reach_iterations", "reach_gradients",
                "reach_status", "seconds", "seconds_batch",
            )
        }  # fmt: skip
        evaluation = dataclasses.replace(e, **cut, solvers=[e.solvers[i] for i in keep])
        learned = dataclasses.replace(LEARNED, evaluated=evaluation)
        return words(render_page(learned, CONFIG, STATUS, figures, []))

    assert "There was no other solver to compare with" in text([0])
    assert "in all 7 comparisons" in text([0, 1])
    assert "Where the learned rule loses It is behind in 7 of 7 comparisons" in text([0, 1, 2])


def test_the_ledger_rounds_to_the_safe_side_and_adds_up():
    table = ledger_table(LEARNED.certificate)
    values = {s.name: s.value for s in LEARNED.certificate.statements}
    for row in table.rows[:-1]:
        shown, exact = float(row[1].text.replace("\u2212", "-")), values[row[0].text]
        lower = row[0].text.startswith(("advantage", "saving"))
        assert (shown <= exact) if lower else (shown >= exact)
        assert shown == pytest.approx(exact, rel=2e-3)
    assert table.rows[-1][3].text == "0.05"
    assert sum(float(row[4].text[:-1]) for row in table.rows[:-1]) == pytest.approx(100, abs=0.5)


def test_small_words():
    assert [ordinal(n) for n in (1, 2, 3, 4, 11, 12, 13, 21, 112)] == [
        "1st", "2nd", "3rd", "4th", "11th", "12th", "13th", "21st", "112th",
    ]  # fmt: skip
    shown = (0.0, 1234.5, -1e-7, 2.5e7, math.inf, math.nan)
    assert [number(v) for v in shown] == [
        "0", "1230", "\u22121e\u221207", "2.5e+07", "\u221e", "\u2013",
    ]  # fmt: skip
    assert [duration(s) for s in (65.0, 0.5, 2e-5)] == ["65 s", "500 ms", "20 \u00b5s"]
    assert goal_in_words(Goal(0.2, 1)) == "a loss of at most 0.2 times the loss at the start"
    assert goal_in_words(Goal(3, 0)) == "a loss of at most 3"
    assert goal_in_words(Goal(1, 0.5)) == "a loss of at most (loss at the start)^0.5"


def test_settings_are_flattened():
    assert flattened(CONFIG) == {
        "run": {"name": "valley", "preset": "quick", "seed": "7"},
        "problem": {"width": "3.5", "label": "steep & narrow"},
        "sample": {"samples": "3", "step_sizes.initial": "1e-06"},
    }


def panel(**changes: Any):
    return Panel("T", "x", "y", **changes)


def drawn(one, groups=("a", "b")):
    return draw_svg(one, classes(groups), "p", "words")


def ticks(svg):
    """The labels of a drawing's ticks and where they stand."""
    return re.findall(r'<text x="(\S+)" y="(\S+)" [^>]*class="tick">([^<]*)', svg)


def test_axes_map_ends_to_ends_and_powers_evenly():
    axis = Axis(1.0, 1e4, "log", 100.0, 500.0)
    np.testing.assert_allclose(axis([1, 10, 100, 1e4]), [100, 200, 300, 500])
    assert np.isnan(axis([0.0, -1.0, np.inf, np.nan])).all()
    np.testing.assert_allclose(axis.clamped([0.0, np.inf, 1e9]), [100, 500, 500])
    np.testing.assert_allclose(Axis(-1.0, 1.0, "linear", 10.0, 0.0)([0.0, 1.0]), [5, 0])


@pytest.mark.parametrize(
    ("low", "high"), [(1e-26, 1e4), (3.0, 40.0), (2.0, 9e299), (0.11, 0.12), (1, 2)]
)
def test_ticks_are_few_round_and_inside(low, high):
    found = Axis(low, high, "log", 0.0, 1.0).ticks()
    assert 2 <= len(found) <= 8
    assert all(low <= t <= high for t in found)


def test_a_line_can_be_read_back_from_its_drawing():
    y = [1.0, 100.0, math.inf, 10.0, 1000.0]
    one = panel(lines=[Line("l", "a", [0, 1, 2, 3, 4], y)], y_scale="log")
    svg = drawn(one)
    data = re.search(r'd="([^"]*)" class="line s0 solid"', svg)
    assert data is not None
    points = [
        (c, float(a), float(b)) for c, a, b in re.findall(r"([ML])(\S+) (\S+?)(?=[ML]|$)", data[1])
    ]
    assert [c for c, *_ in points] == ["M", "L", "M", "L"]  # the gap
    x, height = (np.array([p[i] for p in points]) for i in (1, 2))
    np.testing.assert_allclose((x - x[0]) / (x[-1] - x[0]) * 4, [0, 1, 3, 4], atol=1e-2)
    logs = (height[0] - height) / (height[0] - height[-1]) * 3
    np.testing.assert_allclose(logs, [0, 2, 1, 3], atol=1e-2)


def test_what_blows_up_does_not_flatten_what_the_panel_is_about():
    lines = [
        Line("learned, mean", "learned", [0, 1], [1.0, 0.1]),
        Line("wild, mean", "wild", [0, 1], [1.0, 1e250]),
    ]
    one = panel(lines=lines, y_scale="log")
    assert cut_off(one) == ["wild"]
    heights = re.findall(
        r'd="M\S+ (\S+)L\S+ (\S+)" class="line s0 solid emphasised"',
        drawn(one, ("learned", "wild")),
    )
    assert abs(float(heights[0][0]) - float(heights[0][1])) > 15
    assert cut_off(panel(lines=lines[:1], y_scale="log")) == []
    gone = [lines[0], Line("gone, mean", "wild", [0, 1, 2], [1.0, 0.0, math.inf])]
    assert not_positive(panel(lines=gone, y_scale="log")) == ["wild"]
    assert not_positive(panel(lines=gone)) == not_positive(one) == []
    tame = [lines[0], Line("tame, mean", "wild", [0, 2], [1.0, 1.0])]
    found = [drawn(panel(lines=some, y_scale="log"), ("learned", "wild")) for some in (gone, tame)]
    assert ticks(found[0]) == ticks(found[1]) != []


def test_extreme_and_empty_panels_are_drawn():
    for y in ([0.0, 0.0], [math.nan, math.inf], [1e-320, 1e308], [7.0, 7.0]):
        for scale in ("log", "linear"):
            one = panel(lines=[Line("l", "a", [0, 1], y)], y_scale=scale)
            assert "NaN" not in drawn(one) and "nan" not in drawn(one) and "inf" not in drawn(one)
    assert "<rect" not in drawn(panel(bars=[Bars("b", "a", [0, 1, 2], [0, 0])]))
    band = panel(bands=[Band("a", [0, 1], [0.0, 1.0], [math.inf, 2.0])], y_scale="log")
    assert 'class="band s0"' in drawn(band)


def test_legends_tell_colours_and_dashes_apart_where_labels_allow():
    dashes: dict[str, Dash] = {"median": "solid", "mean (3 missed)": "dashed"}
    lines = [
        Line(f"{group}, {meaning}", group, [0], [1], dash)
        for group in ("a", "b")
        for meaning, dash in dashes.items()
    ]
    styles = classes(["a", "b"])
    assert [(k.label, k.style) for k in legend(panel(lines=lines), styles)] == [
        ("a", "s0 solid"), ("b", "s1 solid"), ("median", "plain solid"), ("mean", "plain dashed"),
    ]  # fmt: skip
    other = [*lines, Line("a, other", "a", [0], [1], "dashed")]
    assert len(legend(panel(lines=other), styles)) == 5


def test_numbers_of_a_panel_are_values_that_its_lines_have():
    x = [float(i) for i in range(101)]
    one = panel(
        lines=[Line("l", "a", x, [v**2 for v in x]), Line("late", "b", [50, 100], [1, 2])],
        marks=[Mark("m", "bound", 3.0)],
    )
    lines, marks = numbers(one)
    for row in lines.rows:
        at = float(row[0].text)
        assert row[1].text == number(at**2)
        assert row[2].text == ("\u2013" if at < 50 else "1" if at < 100 else "2")
    assert lines.rows[0][0].text == "0" and lines.rows[-1][0].text == "100"
    assert marks.rows[0][1].text == "3"
    assert "At the right end: l 10000; late 2." in describe(one)


def test_a_histogram_in_words_keeps_every_instance():
    bars = [Bars("b", "a", np.geomspace(1, 10, 13).tolist(), list(range(12)))]
    (table,) = numbers(panel(bars=bars))
    assert sum(float(row[1].text) for row in table.rows) == sum(range(12))
    assert len(table.rows) == 3


def test_every_figure_of_a_run_has_styles_for_all_its_groups(folder):
    for figure in run_figures(LEARNED, folder).values():
        styles = classes(figure.groups)
        for one in figure.panels:
            for part in (*one.lines, *one.bands, *one.bars, *one.marks, *one.points):
                assert part.group in styles


def test_fields_of_colours_are_refused():
    with pytest.raises(ValueError, match="not fields"):
        drawn(panel(field=Field("f", [0], [0], [[1]])))
