"""`surestep run`: learn, certify, evaluate and draw."""

import dataclasses
from pathlib import Path
from typing import Annotated, Any

import tyro

from surestep.auto.configure import seconds, too_short
from surestep.auto.files import absolute, is_file, title
from surestep.auto.from_file import configure_file
from surestep.base.errors import ConfigurationError
from surestep.cli.arguments import parse_known, require_seed, unset
from surestep.cli.interruption import working_in
from surestep.cli.joining import alone_or_together
from surestep.cli.learning import learn_and_report
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


@dataclasses.dataclass(frozen=True)
class FileArguments:
    """What a run of a user's own file takes besides."""

    budget: str = "2m"
    """How long training may take, like 90s, 2m or 1h."""
    seed: int = 0
    """Of data, training and samples."""


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
        _run_file(problem, given.out, settings + asked, leader)
    else:
        config = overridden(registry.preset(problem, given.preset), settings + asked)
        default = Path("runs") / f"{config.name}-{config.preset}-seed{config.seed}"
        learn_and_report(config, RunFolder(given.out or default), leader=leader)
    return 0


def _run_file(spec: str, out: Path | None, words: list[str], leader: Leader | None) -> None:
    given, settings = parse_known(FileArguments, words, f"surestep run {spec}")
    require_seed(given.seed)
    budget = seconds(given.budget)
    folder = RunFolder(out or Path("runs") / f"{title(spec).replace(':', '-')}-seed{given.seed}")
    working_in(folder.path)
    if folder.config_path.exists():
        # What was measured and chosen when the run began stays as it is.
        config = registry.read_config(folder)
        if getattr(config.problem, "file", None) != absolute(spec) or config.seed != given.seed:
            raise ConfigurationError(
                f"{folder.path} holds a run of another problem or seed: choose another --out"
            )
    else:
        report = reporter()
        report.say(f"{title(spec)}: solving a few instances to see what suits them")
        config = configure_file(spec, budget, given.seed, report)
        if warning := too_short(config, budget):
            report.say(f"{title(spec)}: {warning}")
    learn_and_report(overridden(config, settings), folder, spec, leader)


def overridden(config: RunConfig[Any], settings: list[str]) -> RunConfig[Any]:
    """The preset with the settings that were given on the command line."""
    return tyro.cli(
        registry.config_type(config),
        prog=f"surestep run {config.name} --preset {config.preset} [--out DIR]",
        description="Settings of the preset and their values; --out chooses the run's folder.",
        args=settings,
        default=config,
    )
