"""A command's words become a dataclass; what does not fit is refused in one plain line.

tyro reads the words, from the types of the fields, and writes the help, from their docstrings. It
reports errors in boxes of several lines. Here they become errors of surestep's own, in the words
that other programs use.
"""

import contextlib
import dataclasses
import difflib
import io
import itertools
import os
import re
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar, get_args

import tyro

from surestep.base.errors import ConfigurationError

Given = TypeVar("Given")

_POSITIONAL = get_args(tyro.conf.Positional[str])[1]
_HELP = frozenset({"-h", "--help"})
_STYLE = (
    tyro.conf.FlagCreatePairsOff,  # --flag, and no --no-flag
    tyro.conf.DisallowNone,  # "None" is a name like any other
    tyro.conf.HelptextFromCommentsOff,
)
_ENDLESS = "100000"
"""Columns of a terminal in which tyro breaks no line of an error."""

_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_PLAIN = (
    (
        r"Error parsing (\S+):.* invalid literal for int\(\) with base \d+: (.*)",
        r"argument \1: invalid int value: \2",
    ),
    (
        r"Error parsing (\S+):.* could not convert string to float: (.*)",
        r"argument \1: invalid float value: \2",
    ),
    (
        r"Error parsing (\S+):.* did not match expected argument count (\d+).*",
        r"argument \1: expected \2 arguments",
    ),
    (
        r"Missing value for argument '(.*?)'\. Expected 1 values\.",
        r"argument \1: expected one argument",
    ),
    (
        r"Missing value for argument '(.*?)'\. Expected (\d+) values\.",
        r"argument \1: expected \2 arguments",
    ),
    (
        r"invalid choice (.*) for argument '(.*?)'\. Expected one of \((.*?),?\)\.",
        r"argument \2: invalid choice: \1 (choose from \3)",
    ),
)
"""What tyro says of an argument, and how it is said here. Other errors keep tyro's words."""


def parse(kind: type[Given], words: Sequence[str], program: str, description: str = "") -> Given:
    """Read all words of a command; `--help` among them prints the help and exits.

    Args:
        kind: a dataclass whose fields are the arguments
        words: what follows the name of the command
        program: the command as it is typed, for the help and for errors
        description: the help's first paragraph, if it is not the docstring of `kind`
    """
    given, unknown = _read(kind, words, program, description, helps=True)
    if unknown:
        raise ConfigurationError(f"{_unrecognized(kind, unknown)} ({program} --help)")
    return given


def parse_known(kind: type[Given], words: Sequence[str], program: str) -> tuple[Given, list[str]]:
    """Read the words that belong to `kind`, and return the others, `--help` too, in their order."""
    return _read(kind, words, program, "", helps=False)


def unset(metavar: str) -> Any:
    """How the help shows an option that has no value unless it is given."""
    return tyro.conf.arg(metavar=metavar, help_behavior_hint="")


def require_seed(seed: int) -> None:
    """Refuse a seed that JAX's keys cannot take."""
    if not 0 <= seed < 2**31:
        raise ConfigurationError(f"--seed must be a whole number from 0 to 2^31 - 1: {seed}")


def _read(
    kind: type[Given], words: Sequence[str], program: str, description: str, helps: bool
) -> tuple[Given, list[str]]:
    _require_no_values_of_flags(kind, words, program)
    if helps and words and words[0].replace("_", "-").startswith("--tyro-"):
        # tyro's own options would write scripts of a shell.
        raise ConfigurationError(f"{_unrecognized(kind, words)} ({program} --help)")
    shown = io.StringIO()
    try:
        with contextlib.redirect_stderr(shown), _columns_for(words):
            given, unknown = tyro.cli(
                kind,
                prog=program,
                description=description or None,
                args=words,
                return_unknown_args=True,
                add_help=helps,
                config=_STYLE,
            )
    except SystemExit as ended:
        if not ended.code:
            raise
        # An option that does not exist explains the rest, which tyro does not always see.
        strange = _unknown_options(kind, words) if helps else []
        message = _unrecognized(kind, strange) if strange else _plain(shown.getvalue(), kind)
        raise ConfigurationError(f"{message} ({program} --help)") from None
    for name in _options(kind):
        if getattr(given, name) == ():
            message = f"argument {_option(name)}: expected at least one argument"
            raise ConfigurationError(f"{message} ({program} --help)")
    return given, unknown


def _options(kind: Any) -> list[str]:
    """The fields that are no positional arguments."""
    return [
        field.name
        for field in dataclasses.fields(kind)
        if _POSITIONAL not in getattr(field.type, "__metadata__", ())
    ]


def _metavars(kind: Any) -> dict[str, str]:
    """The names of fields, by what the help calls them."""
    return {
        metavar: field.name
        for field in dataclasses.fields(kind)
        for note in getattr(field.type, "__metadata__", ())
        if (metavar := getattr(note, "metavar", None)) is not None
    }


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")


def _require_no_values_of_flags(kind: Any, words: Sequence[str], program: str) -> None:
    flags = {_option(field.name) for field in dataclasses.fields(kind) if field.type is bool}
    for word in words:
        name, equals, value = word.partition("=")
        if equals and name in flags:
            message = f"argument {name}: it takes no value, and was given {value!r}"
            raise ConfigurationError(f"{message} ({program} --help)")


def _unknown_options(kind: Any, words: Sequence[str]) -> list[str]:
    known = {_option(name) for name in _options(kind)} | _HELP
    return [
        word
        for word in itertools.takewhile(lambda word: word != "--", words)
        if re.match(r"--?[A-Za-z]", word) and word.partition("=")[0].replace("_", "-") not in known
    ]


def _unrecognized(kind: Any, words: Sequence[str]) -> str:
    message = f"unrecognized arguments: {' '.join(words)}"
    known = [_option(name) for name in _options(kind)]
    for word in words:
        name = word.partition("=")[0]
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.7)
        if near and name[:2] == "--":
            return f"{message}; did you mean {near[0]}?"
    return message


@contextlib.contextmanager
def _columns_for(words: Sequence[str]) -> Iterator[None]:
    """Make the terminal seem wide while errors are written; help is laid out for the real one."""
    before = os.environ.get("COLUMNS")
    if not _HELP & set(words):
        os.environ["COLUMNS"] = _ENDLESS
    try:
        yield
    finally:
        os.environ.pop("COLUMNS", None)
        if before is not None:
            os.environ["COLUMNS"] = before


def _plain(shown: str, kind: Any) -> str:
    """One line that says what tyro's many say."""
    said = _essence(shown)
    if said and said[0].startswith("Missing from"):
        # Arguments stand one step to the right, and what they mean two steps.
        shown_as = _metavars(kind)
        words = [line.split()[0] for line in said if re.match(r" {4}\S", line)]
        names = [shown_as.get(word, word) for word in words]
        return f"the following arguments are required: {', '.join(names)}"
    text = " ".join(" ".join(said or shown.splitlines()).split())
    for theirs, ours in _PLAIN:
        if re.fullmatch(theirs, text):
            return re.sub(theirs, ours, text)
    return text


def _essence(shown: str) -> list[str]:
    """The lines between the title of an error and the next rule across, with their indentation.

    Where the terminal can show one there is a box around it all, with the title in its edge; else
    the title is a line of its own, with a rule below.
    """
    lines = _COLOURS.sub("", shown).splitlines()
    boxed = [line for line in lines if line[:1] == "│"]
    inside = [line[2:].rstrip("│ ") for line in boxed or lines[2:]]
    return list(itertools.takewhile(lambda line: not line or line.strip("─-"), inside))
