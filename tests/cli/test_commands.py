"""Every command's arguments: their help, and what is said when they are wrong."""

import ast
import dataclasses
import importlib
import inspect
import io
import itertools
import pkgutil
import re
import sys
from pathlib import Path
from typing import Annotated, Any

import pytest
import tyro

import surestep.cli
from surestep.base.errors import ConfigurationError
from surestep.cli.arguments import parse, parse_known, unset
from surestep.cli.main import COMMANDS, USAGE, main

# `surestep run` has the settings of a preset for options; tyro shows them itself (test_main.py).
PLAIN = [name for name in COMMANDS if name != "run"]


def module(name) -> Any:
    return importlib.import_module(f"surestep.cli.{name}")


def words_of_fields(kind) -> dict[str, str]:
    """The docstrings of a dataclass's fields, also of those that it inherits."""
    found = {}
    for one in inspect.getmro(kind)[:-1]:
        [definition] = ast.parse(inspect.getsource(one)).body
        assert isinstance(definition, ast.ClassDef)
        body = definition.body
        for field, words in itertools.pairwise(body):
            if isinstance(field, ast.AnnAssign) and isinstance(words, ast.Expr):
                assert isinstance(field.target, ast.Name)
                found[field.target.id] = " ".join(ast.literal_eval(words.value).split())
    return found


def test_the_list_of_commands_is_the_modules_that_exist():
    there = {one.name for one in pkgutil.iter_modules(surestep.cli.__path__)} - {"__main__"}
    made = {name for name in there if {"Arguments", "main"} <= set(vars(module(name)))}
    assert made == set(COMMANDS)
    assert list(dict.fromkeys(re.findall(r"^  surestep (\w+)", USAGE, re.MULTILINE))) == [*COMMANDS]


@pytest.mark.parametrize("name", PLAIN)
def test_help_has_the_words_of_every_field(name, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit) as ended:
        main([name, "--help"])
    assert ended.value.code == 0
    shown = " ".join(re.sub(r"[│╭╮╰╯─]", " ", capsys.readouterr().out).split())
    assert f"usage: surestep {name} " in shown
    kind = module(name).Arguments
    assert " ".join(kind.__doc__.split()) in shown
    fields = dataclasses.fields(kind)
    words = words_of_fields(kind)
    assert set(words) == {field.name for field in fields}
    for field in fields:
        positional = field.name in ("folder", "subject", "file", "state", "name") or (
            field.name in ("problem", "solver") and field.default is dataclasses.MISSING
        )
        assert (f"--{field.name}" in shown) != positional
        assert words[field.name] in shown


@pytest.mark.parametrize("name", PLAIN)
@pytest.mark.parametrize("before", [[], ["something"]])
def test_an_option_that_does_not_exist_is_named_in_one_line(name, before, capsys):
    assert main([name, *before, "--no-such-option", "1"]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert re.fullmatch(
        rf"surestep: unrecognized arguments: .*--no-such-option.* \(surestep {name} --help\)\n",
        said.err,
    )


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("plan", "the following arguments are required: --failure (surestep plan --help)"),
        (
            "solve s --out b.npz",
            "the following arguments are required: problem, --instances (surestep solve --help)",
        ),
        ("plan --failure", "argument --failure: expected one argument (surestep plan --help)"),
        ("plan --failure --samples 3", "argument --failure: expected one argument"),
        ("plan --failure x", "argument --failure: invalid float value: 'x' (surestep plan --help)"),
        ("plan --failure 1 --failure x", "argument --failure: invalid float value: 'x'"),
        ("plan --failure 0.1 --samples 1.5", "argument --samples: invalid int value: '1.5'"),
        ("plan --fail 0.1", "unrecognized arguments: --fail; did you mean --failure?"),
        ("monitor s.json --failure None", "argument --failure: invalid float value: 'None'"),
        ("audit 3", "unrecognized arguments: 3 (surestep audit --help)"),
        ("list --all", "unrecognized arguments: --all (surestep list --help)"),
        ("report a b", "unrecognized arguments: b (surestep report --help)"),
        ("new -f a.py", "unrecognized arguments: -f (surestep new --help)"),
        ("figure experiments --runs", "argument --runs: expected at least one argument"),
        ("certify a --no-deployed", "unrecognized arguments: --no-deployed; did you mean"),
        ("certify a --deployed=1", "argument --deployed: it takes no value, and was given '1'"),
        ("certify a --deployed yes", "unrecognized arguments: yes (surestep certify --help)"),
        (
            "solve s p --instances a.npz --out b.npz --policy best",
            "argument --policy: invalid choice: 'best' "
            "(choose from 'deployed', 'posterior', 'point')",
        ),
        ("run quadratics --preset", "argument --preset: expected one argument"),
        ("run mine.py --seed one", "argument --seed: invalid int value: 'one' (surestep run mine"),
        ("plan --tyro-print-completion bash", "unrecognized arguments: --tyro-print-completion"),
        ("resume a --processes", "argument --processes: expected one argument (surestep --help)"),
    ],
)
def test_wrong_arguments_are_explained_in_one_line(line, message, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")  # narrower than the message
    assert main(line.split()) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith(f"surestep: {message}")
    assert said.err.count("\n") == 1 and said.err.endswith("--help)\n")


@dataclasses.dataclass(frozen=True)
class Sample:
    """Arguments of every kind."""

    place: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="DIR")]
    """A folder."""
    failure: float
    """A number."""
    two_words: int = 0
    """A whole number."""
    pair: Annotated[tuple[Path, Path] | None, unset("OLD NEW")] = None
    """Two files."""
    several: Annotated[tuple[str, ...] | None, unset("PART [PART ...]")] = None
    """Parts."""
    flag: bool = False
    """On."""


class Output(io.StringIO):
    """Standard output as a terminal in colour, as a pipe, or where only ASCII can be shown."""

    def __init__(self, encoding: str, terminal: bool) -> None:
        super().__init__()
        self._encoding, self._terminal = encoding, terminal

    @property
    def encoding(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self._encoding

    def isatty(self) -> bool:
        return self._terminal


@pytest.mark.parametrize(
    ("encoding", "terminal"), [("utf-8", True), ("utf-8", False), ("ascii", False)]
)
def test_errors_read_the_same_on_every_terminal(encoding, terminal, monkeypatch):
    monkeypatch.setattr(sys, "stdout", Output(encoding, terminal))
    monkeypatch.setenv("TERM", "xterm-256color")
    long = "x" * 300
    for line, message in (
        ("", "the following arguments are required: place, --failure (it --help)"),
        (f"a --failure {long}", f"argument --failure: invalid float value: '{long}' (it --help)"),
        ("a --failure 1 --pair b", "argument --pair: expected 2 arguments (it --help)"),
        ("a --failure 1 --two-words", "argument --two-words: expected one argument (it --help)"),
    ):
        with pytest.raises(ConfigurationError) as refused:
            parse(Sample, line.split(), "it")
        assert str(refused.value) == message


def test_arguments_are_read_as_their_types_say():
    line = "--several a b --flag --failure=1e-3 --pair c d --two-words -4 --two-words 5 -- -e"
    assert parse(Sample, line.split(), "it") == Sample(
        Path("-e"), 1e-3, 5, (Path("c"), Path("d")), ("a", "b"), True
    )


def test_what_is_not_known_is_handed_on_in_order():
    line = "a --x.y_z=3 --failure 1 -h --seed -1 b --evaluate.baselines c d --two-words 2"
    given, rest = parse_known(Sample, line.split(), "it")
    assert given == Sample(Path("a"), 1.0, 2)
    assert rest == ["--x.y_z=3", "-h", "--seed", "-1", "b", "--evaluate.baselines", "c", "d"]


@pytest.mark.parametrize("line", ["--help", "-h", "--preset tiny --help", "--seed 3 --help"])
def test_help_of_run_without_a_problem_is_that_of_all_commands(line, capsys):
    assert main(["run", *line.split()]) == 0
    assert capsys.readouterr().out == USAGE


@pytest.mark.parametrize("line", ["quadratics -h --preset tiny", "--preset tiny quadratics --help"])
def test_help_of_run_with_a_problem_shows_its_settings(line, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["run", *line.split()])
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    assert "surestep run quadratics --preset tiny" in shown and "--sizes.train" in shown


def test_benchmarks_are_elsewhere(capsys):
    for words in ([], ["--quick"], ["--help"]):
        assert main(["bench", *words]) == 2
        said = capsys.readouterr().err
        assert "source tree" in said and "python -m benchmarks" in said
        assert said.count("\n") == 1
