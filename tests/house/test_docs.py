"""What the documentation prints is what happens.

Blocks that learn take minutes. They are run if SURESTEP_SLOW_DOCS is set; else everything before
them is, and they are compiled.
"""

import importlib.util
import os
import re
import shlex
import warnings
from pathlib import Path
from typing import Any

import jax
import pytest

from surestep.auto.doctor import examine
from surestep.cli.main import USAGE, main

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
SLOW = bool(os.environ.get("SURESTEP_SLOW_DOCS"))
LEARNS = ("# it learns", "# not run here")
BLOCK = re.compile(r"^```(\w+)(?: title=\"(.*?)\")?\n(.*?)^```", re.DOTALL | re.MULTILINE)
COMMANDS = re.compile(r"^\$ (?:.* \| )?surestep (.*)$", re.MULTILINE)


def blocks(page: Path) -> list[tuple[str, str, str]]:
    """Language, title and text of every block."""
    return [(b[1], b[2] or "", b[3]) for b in BLOCK.finditer(page.read_text())]


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)  # as for a script in this folder
    with jax.enable_x64(False):  # what JAX does unless told otherwise
        yield tmp_path


@pytest.mark.parametrize("page", ["concepts.md", "your-own-problem.md", "programmes.md"])
def test_the_blocks_of_a_page_run_in_order(page, place):
    if page == "programmes.md":
        pytest.importorskip("cvxpy", reason="the extra `programmes` is not installed")
    names: dict[str, Any] = {}
    ran = 0
    for language, _, text in blocks(DOCS / page):
        if language == "python" and (SLOW or not text.startswith(LEARNS)):
            exec(compile(text, page, "exec"), names)
            ran += 1
    assert ran >= 6


SOLVERS = {
    text: re.findall(r"^(?:import|from) (osqp|sklearn|torch)\b", text, re.MULTILINE)[0]
    for language, _, text in blocks(DOCS / "any-solver.md")
    if language == "python"
}


@pytest.mark.parametrize("text", SOLVERS, ids=list(SOLVERS.values()))
def test_solvers_of_other_libraries_are_certified_as_printed(text, place, capsys):
    """Where the library is there; the numbers that the page shows are those of one version."""
    pytest.importorskip(SOLVERS[text])
    with warnings.catch_warnings():
        exec(compile(text, "any-solver.md", "exec"), {})
    assert "With confidence 95% all of these hold at once:" in capsys.readouterr().out


def test_every_problem_that_is_shown_keeps_its_contract(place):
    names: dict[str, Any] = {}
    for language, _, text in blocks(DOCS / "your-own-problem.md"):
        if language == "python" and not text.startswith(LEARNS):
            exec(text, names)
    for name in ("shifted", "sparse"):
        assert any("losses and gradients" in note for note in examine(names[name]))


def test_the_tutorial(place, capsys):
    """The file, the commands and the code, as printed and in this order."""
    names: dict[str, Any] = {}
    shown, files = [], []
    learned = False
    for language, title, text in blocks(DOCS / "tutorial.md"):
        if title:
            Path(title).write_text(text)
            files.append(title)
        elif language == "console":
            for command in COMMANDS.findall(text):
                learned = learned or command.startswith("run ")
                if SLOW or not learned:
                    assert main(shlex.split(command)) == 0
                    shown.append(command)
            if shown and shown[-1].startswith("check"):
                found = capsys.readouterr().out.splitlines()
                told = [line for line in text.splitlines() if line[:1] not in "$"]
                # How long a gradient takes is another number every time.
                assert [a for a in told if " takes " not in a] == [
                    b for b in found if " takes " not in b
                ]
        elif language == "python":
            code = compile(text, "tutorial.md", "exec")
            if SLOW or not learned:
                exec(code, names)
    assert files == ["logistic.py"]
    assert shown[0] == "check logistic.py"
    if SLOW:
        assert Path("runs/logistic/report.html").exists()
        assert names["solution"].covered


def test_the_example_of_the_readme(place):
    [text] = [text for language, _, text in blocks(ROOT / "README.md") if language == "python"]
    names: dict[str, Any] = {}
    before, _, after = text.partition("learned = ")
    assert "save" in after and "solve" in after
    if SLOW:
        exec(text, names)
        assert names["solution"].covered
    else:
        compile(text, "README.md", "exec")
        exec(before, names)
        assert examine(names["problem"])


def test_every_command_has_a_section_and_a_real_invocation():
    # Benchmarks are no command any more but `python -m benchmarks`, see docs/benchmarks.md.
    commands = set(re.findall(r"^  surestep (\w+)", USAGE, re.MULTILINE))
    assert len(commands) >= 14
    page = (DOCS / "commands.md").read_text()
    sections = re.split(r"^## surestep (\w+)$", page, flags=re.MULTILINE)[1:]
    told = dict(zip(sections[::2], sections[1::2], strict=True))
    assert set(told) == commands
    for name, section in told.items():
        assert any(command.split()[0] == name for command in COMMANDS.findall(section)), name


def test_the_options_that_pages_print_exist(capsys):
    known: dict[str, str] = {"run": USAGE}
    printed = [
        shlex.split(command)
        for page in DOCS.glob("*.md")
        for language, _, text in blocks(page)
        if language == "console"
        for command in COMMANDS.findall(text)
    ]
    assert len(printed) > 15
    for name, *words in printed:
        if name not in known:
            with pytest.raises(SystemExit):
                main([name, "--help"])
            known[name] = capsys.readouterr().out
        for option in (word for word in words if word.startswith("--") and word != "--help"):
            assert re.search(rf"{option}\b", known[name]), (name, option)


def test_the_readme_is_read_once():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 110


OLD_WORDS = re.compile(
    r"side by side|(?<!-)(?<!`)\babreast|\bnudge|\bstocks?\b|\bgoes on\b|at home in", re.I
)


@pytest.mark.parametrize("page", sorted(DOCS.glob("*.md")), ids=lambda page: page.stem)
def test_pages_use_the_words_of_the_field(page):
    """Batch, perturbation, data set, resume: one word for each idea."""
    if page.stem != "design":  # the record of what was built, with the words of its time
        assert OLD_WORDS.findall(page.read_text()) == []


def test_an_old_word_is_found():
    assert OLD_WORDS.findall("four at a time, side by side; `--abreast 4`; Nudges") == [
        "side by side",
        "Nudge",
    ]


def test_links_of_the_readme_lead_somewhere():
    links = re.findall(r"\]\((?!https?:)([^)#]+)", (ROOT / "README.md").read_text())
    assert len(links) > 10
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_a_site_that_loads_from_elsewhere_is_noticed(tmp_path):
    spec = importlib.util.spec_from_file_location("offline", DOCS / "offline.py")
    assert spec is not None and spec.loader is not None
    offline = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(offline)
    (tmp_path / "good.html").write_text(
        '<link rel="canonical" href="https://a.b/"><a href="https://a.b/">b</a><img src="c.png">'
    )
    assert offline.loaded_from_elsewhere(tmp_path) == []
    (tmp_path / "bad.html").write_text(
        '<script src="//a.b/x.js"></script><link rel="stylesheet" href="https://a.b/f.css">'
    )
    (tmp_path / "bad.css").write_text("@font-face { src: url('https://a.b/font.woff2') }")
    assert offline.loaded_from_elsewhere(tmp_path) == [
        "bad.html: //a.b/x.js",
        "bad.html: https://a.b/f.css",
        "bad.css: url('http...",
    ]
