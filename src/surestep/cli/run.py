"""`surestep run`: learn, certify, evaluate and draw."""

import dataclasses
from pathlib import Path
from typing import Annotated, Any

import tyro

from surestep.auto.arena import Use
from surestep.auto.choice_file import NAME as CHOICE
from surestep.auto.choice_file import write_choice
from surestep.auto.configure import OwnSettings, outline, seconds
from surestep.auto.files import absolute, is_file, title
from surestep.auto.fit import require_same
from surestep.auto.from_file import configure_file
from surestep.base.errors import ConfigurationError
from surestep.cli.arguments import parse_known, require_seed, unset
from surestep.cli.interruption import working_in
from surestep.cli.joining import alone_or_together
from surestep.cli.learning import Until, learn_and_report
from surestep.cli.main import USAGE
from surestep.cli.reporting import reporter
from surestep.paper import registry
from surestep.run.config import RunConfig
from surestep.run.distributed import Leader
from surestep.storage.run_folder import RunFolder


@dataclasses.dataclass(frozen=True)
class Arguments:
    """Learn, certify, evaluate and draw; every setting of the preset is an option too."""

    problem: Annotated[tyro.conf.Positional[str | None], unset("PROBLEM")] = None
    """A problem's name, or a file, like my_problem.py or my_problem.py:problem."""
    preset: str = "quick"
    """Whose settings to start from: tiny, quick, paper or best."""
    out: Annotated[Path | None, unset("DIR")] = None
    """The run's folder (runs/PROBLEM-PRESET-seedN)."""
    until: Until = "end"
    """Where to stop: "plan" before the train set is opened, so that a verifier can give a word."""


@dataclasses.dataclass(frozen=True)
class FileArguments:
    """What a run of a user's own file takes besides."""

    budget: str = "2m"
    """How long training may take, like 90s, 2m or 1h."""
    seed: int = 0
    """Of data, training and samples."""
    accuracy: float = 1e-6
    """How close a solve should come: the share of what there is to gain that may be left."""
    use: Use = "both"
    """Whether the solver is for single instances, for batches, or for both."""


def main(words: list[str]) -> int:
    """Carry out the command, alone or with other processes."""
    return alone_or_together(words, carry_out)


def carry_out(words: list[str], leader: Leader | None) -> int:
    """Run a problem that comes along, or one of a user's own file."""
    asked = [word for word in words if word in ("-h", "--help")]
    if words and words[0][:1] == "-" and not asked:
        raise ConfigurationError("the problem comes first: surestep run PROBLEM [settings]")
    # Help is about the settings of a problem; where none is named, about all commands.
    rest = [word for word in words if word not in asked]
    given, settings = parse_known(Arguments, rest, "surestep run")
    # Of a problem that is not there tyro makes "[]" if an option stands in its place.
    problem = given.problem if given.problem in words else None
    if problem is None:
        if not asked:
            message = "say which problem to run: surestep run PROBLEM (surestep list)"
            raise ConfigurationError(message)
        print(USAGE, end="")
    elif is_file(problem):
        _run_file(problem, given, settings + asked, leader)
    else:
        config = overridden(registry.preset(problem, given.preset), settings + asked)
        default = Path("runs") / f"{config.name}-{config.preset}-seed{config.seed}"
        learn_and_report(config, RunFolder(given.out or default), leader=leader, until=given.until)
    return 0


def _run_file(spec: str, asked: Arguments, words: list[str], leader: Leader | None) -> None:
    given, settings = parse_known(FileArguments, words, f"surestep run {spec}")
    require_seed(given.seed)
    budget = seconds(given.budget)
    folder = RunFolder(
        asked.out or Path("runs") / f"{title(spec).replace(':', '-')}-seed{given.seed}"
    )
    folder.require_free()
    working_in(folder.path)
    wanted = OwnSettings(accuracy=given.accuracy, use=given.use, budget=budget)
    if folder.kept(folder.config_path).exists():
        # What was measured and chosen when the run began stays as it is.
        config = registry.read_config(folder)
        if getattr(config.problem, "file", None) != absolute(spec) or config.seed != given.seed:
            raise ConfigurationError(
                f"{folder.path} holds a run of another problem or seed: choose another --out"
            )
        require_same(folder.path, config.problem, wanted)
    else:
        # Settings that nobody knows, and help, are answered before anything is computed.
        overridden(outline(title(spec), budget, given.seed, wanted), settings)
        config, choice = configure_file(spec, wanted, given.seed, reporter())
        reporter().say(f"chosen: {choice.words}")
        overridden(config, settings).validate()
        write_choice(folder.path / CHOICE, choice)
    learn_and_report(overridden(config, settings), folder, spec, leader, asked.until)


def overridden(config: RunConfig[Any], settings: list[str]) -> RunConfig[Any]:
    """The preset with the settings that were given on the command line."""
    return tyro.cli(
        registry.config_type(config),
        prog=f"surestep run {config.name} --preset {config.preset} [--out DIR]",
        description="Settings of the preset and their values; --out chooses the run's folder.",
        args=settings,
        default=config,
    )
