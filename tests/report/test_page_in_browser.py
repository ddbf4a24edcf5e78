"""The report's page in a real browser: what it asks for, complains about, and how it is laid out.

These tests need Chromium (on Debian: `apt-get install chromium`) and are skipped without it.
"""

import io
import itertools
import json
from typing import Any

import numpy as np
import pytest
from PIL import Image

from support import outcome
from support.browser import CHROMIUM, browser
from support.outcome import CONFIG, STATUS
from surestep.report.files import run_figures
from surestep.report.page import write_page
from surestep.storage.run_folder import RunFolder

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium to open pages with")

PHONE, DESK = 390, 1280
HOSTILE = "\"'><script>window.hacked = 1</script><img src=x onerror='hacked = 2'>&lt;{{ 7 * 7 }}]]>"


def written(folder, learned, name):
    """A page in a folder of its own, with a population and a picture."""
    run = RunFolder(folder)
    config = CONFIG | {"name": name, "problem": {"label": name, name: 1}}
    run.config_path.write_text(json.dumps(config))
    run.save("population", outcome.population())
    for stage, facts in STATUS.items():
        run.mark(stage, **facts)
    run.mark("made_with", environments=[{"device": name}])
    picture = folder / "wide.png"
    Image.fromarray(np.tile(np.arange(256, dtype=np.uint8), (40, 8))).save(picture)
    return write_page(learned, run, run_figures(learned, run), {name: picture})


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    return written(tmp_path_factory.mktemp("page"), outcome.outcome(), "valley")


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    learned = outcome.renamed(outcome.outcome(), HOSTILE)
    return written(tmp_path_factory.mktemp("hostile"), learned, HOSTILE)


@pytest.fixture(scope="module")
def tab(tmp_path_factory):
    with browser(tmp_path_factory.mktemp("profile")) as found:
        yield found


def outside(tab):
    return [url for url in tab.requests if not url.startswith(("file:", "data:"))]


OVERFLOWING = """[...document.querySelectorAll('body *')].filter(e =>
  !e.parentElement.closest('.scroll, pre, svg') && e.closest('.skip, .hidden') === null
  && e.getBoundingClientRect().right > innerWidth + 0.5).map(e => e.outerHTML.slice(0, 120))"""
OPEN = "document.querySelectorAll('details').forEach(d => { d.open = true; })"


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [PHONE, DESK])
def test_a_page_asks_for_nothing_complains_of_nothing_and_fits(page, tab, width, dark):
    tab.open(page, width, dark)
    for _ in range(2):
        assert tab.evaluate("document.documentElement.scrollWidth") <= width
        assert tab.evaluate("innerWidth") == width
        assert tab.evaluate(OVERFLOWING) == []
        # Once more with everything that can be opened.
        tab.evaluate(OPEN)
    assert tab.complaints == []
    assert outside(tab) == []
    assert sum(url.startswith("file:") for url in tab.requests) == 1
    brightness = np.asarray(Image.open(io.BytesIO(tab.screenshot())).convert("L")).mean()
    assert brightness < 70 if dark else brightness > 200


def test_paper_is_white_however_the_screen_is(page, tab):
    tab.open(page, DESK, dark=True)
    scheme = {"name": "prefers-color-scheme", "value": "dark"}
    tab.call("Emulation.setEmulatedMedia", media="print", features=[scheme])
    assert tab.evaluate("getComputedStyle(document.body).color") == "rgb(28, 31, 35)"
    assert tab.evaluate("getComputedStyle(document.querySelector('nav')).display") == "none"


def test_headings_and_landmarks(page, tab):
    tab.open(page, DESK)
    levels = tab.evaluate(
        "[...document.querySelectorAll('h1,h2,h3,h4,h5,h6')].map(h => +h.tagName[1])"
    )
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))
    for landmark in ("header", "nav", "main", "footer"):
        assert tab.evaluate(f"document.querySelectorAll('{landmark}').length") == 1
    assert tab.evaluate("document.documentElement.lang") == "en"
    identifiers = tab.evaluate("[...document.querySelectorAll('[id]')].map(e => e.id)")
    assert len(set(identifiers)) == len(identifiers)
    links = tab.evaluate("[...document.querySelectorAll('a')].map(a => a.getAttribute('href'))")
    assert {link[1:] for link in links} <= set(identifiers)


def accessible(tab) -> list[tuple[str, str]]:
    """Roles and names as a screen reader is given them."""
    nodes: list[Any] = tab.call("Accessibility.getFullAXTree")["nodes"]
    return [
        (node["role"]["value"], node.get("name", {}).get("value", ""))
        for node in nodes
        if not node.get("ignored")
    ]


def test_every_figure_and_table_has_a_name_and_its_numbers(page, tab):
    tab.open(page, DESK)
    tab.evaluate(OPEN)
    found = accessible(tab)
    images = [name for role, name in found if role == "image"]
    drawings = tab.evaluate("document.querySelectorAll('svg.plot').length")
    # Four panels, the certified curves, two profiles, two shifts, a population; one picture.
    assert drawings == 10 and len(images) == drawings + 1
    assert all(images) and len(set(images)) == len(images)
    assert all(name for role, name in found if role in ("table", "region", "button", "link"))
    assert tab.evaluate("""[...document.querySelectorAll('svg.plot')].every(s =>
      s.querySelector('desc').textContent.length > 40
      && s.closest('figure').querySelectorAll('details td').length > 0)""")
    assert tab.evaluate("""[...document.querySelectorAll('th')].every(t => t.scope)
      && [...document.querySelectorAll('table')].every(t => t.caption.textContent)""")


CONTRASTS = """(() => {
  const parse = c => (c.match(/[\\d.]+/g) || []).map(Number);
  const light = c => { const [r, g, b] = c.map(v => { v /= 255;
    return v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const ground = e => { for (; e; e = e.parentElement) {
    const c = parse(getComputedStyle(e).backgroundColor);
    if (c.length === 3 || c[3] === 1) return c; } return [255, 255, 255]; };
  const ratio = (a, b) => { const [x, y] = [light(a), light(b)].sort((p, q) => q - p);
    return (x + 0.05) / (y + 0.05); };
  const found = [];
  for (const e of document.querySelectorAll('body *')) {
    const own = [...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim());
    if (!own || ['SCRIPT', 'title', 'desc'].includes(e.tagName)) continue;
    const style = getComputedStyle(e), svg = e instanceof SVGElement;
    const r = ratio(parse(svg ? style.fill : style.color), ground(e));
    if (r < 4.5) found.push([e.outerHTML.slice(0, 80), r]);
  }
  for (const e of document.querySelectorAll('path.line, path.mark')) {
    const r = ratio(parse(getComputedStyle(e).stroke), ground(e));
    if (r < 3) found.push([e.getAttribute('class'), r]);
  }
  return found;
})()"""


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_text_and_lines_stand_out(page, tab, dark):
    tab.open(page, DESK, dark)
    assert tab.evaluate(CONTRASTS) == []


def test_the_keyboard_reaches_what_scrolls_and_the_content_first(page, tab):
    tab.open(page, PHONE)
    for kind in ("keyDown", "keyUp"):
        tab.call("Input.dispatchKeyEvent", type=kind, key="Tab", code="Tab")
    assert tab.evaluate("document.activeElement.textContent") == "Skip to the content"
    assert tab.evaluate("document.activeElement.getBoundingClientRect().left") >= 0
    assert tab.evaluate("""[...document.querySelectorAll('body *')].filter(e =>
      e.scrollWidth > e.clientWidth + 1 && getComputedStyle(e).overflowX === 'auto')
      .every(e => e.tabIndex === 0)""")


def test_without_scripts_nothing_is_missing_but_the_copy_buttons(page, tab):
    tab.open(page, DESK)
    blocks = tab.evaluate("document.querySelectorAll('pre').length")
    assert tab.evaluate("document.querySelectorAll('button').length") == blocks > 0
    remove = "document.querySelectorAll('button').forEach(b => b.remove())"
    text = tab.evaluate(f"{remove}; document.body.innerText")
    tab.open(page, DESK, scripts=False)
    assert tab.evaluate("document.querySelectorAll('button').length") == 0
    assert tab.evaluate("document.body.innerText") == text
    assert tab.complaints == []


def test_the_copy_button_copies_or_selects(page, tab):
    tab.open(page, DESK)
    label = tab.evaluate("""new Promise(done => {
      const button = document.querySelector('button');
      new MutationObserver(() => done(button.textContent)).observe(button, {childList: true});
      button.click();
    })""")
    assert label in ("Copied", "Selected: press Ctrl-C")


def test_names_are_shown_as_they_are_and_run_nothing(hostile, tab):
    for width in (PHONE, DESK):
        tab.open(hostile, width)
        assert tab.complaints == [] and outside(tab) == []
        assert tab.evaluate("document.documentElement.scrollWidth") <= width
    assert tab.evaluate("typeof window.hacked") == "undefined"
    assert tab.evaluate("document.querySelectorAll('script').length") == 1
    assert tab.evaluate("document.querySelectorAll('img').length") == 1
    assert tab.evaluate("document.querySelectorAll('[onerror]').length") == 0
    assert tab.evaluate("document.querySelector('h1').textContent").endswith(HOSTILE)
    assert tab.evaluate("document.title") == f"{HOSTILE}: learned solver and certificate"
    assert HOSTILE in tab.evaluate("document.querySelector('.legend').textContent")
    assert HOSTILE in tab.evaluate("document.querySelector('desc').textContent")
    assert HOSTILE in tab.evaluate("document.querySelector('.settings').textContent")


def test_the_pages_policy_stops_what_it_does_not_bring_along(page, tab):
    tab.open(page, DESK)
    stopped = tab.evaluate("""new Promise(done => {
      const seen = [];
      addEventListener('securitypolicyviolation', e => {
        seen.push(e.effectiveDirective);
        if (seen.length === 3) done(seen.sort());
      });
      const script = document.createElement('script');
      script.textContent = 'window.hacked = 1';
      document.body.append(script);
      new Image().src = 'http://example.invalid/x.png';
      fetch('http://example.invalid/').catch(() => {});
    })""")
    assert stopped == ["connect-src", "img-src", "script-src-elem"]
    assert tab.evaluate("typeof window.hacked") == "undefined"
