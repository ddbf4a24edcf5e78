"""The command line.

Nothing heavy is imported before it is known what to do, so that help answers at once.
"""

import argparse
import logging
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from surestep.__about__ import __version__
from surestep.errors import ConfigurationError, SurestepError

if TYPE_CHECKING:
    from surestep.config import RunConfig
    from surestep.learning import Learned
    from surestep.progress import Reporter
    from surestep.store import RunFolder

INTERRUPTED = 130

USAGE = """\
surestep: learn an optimization algorithm for a family of problems, with a certificate.

  surestep run PROBLEM [--preset tiny|quick|paper] [--seed N] [--out DIR] [settings]
      learn, certify, evaluate and draw; on an existing DIR, go on where it stopped
  surestep run PROBLEM --preset P --help
      every setting of that preset, with its value
  surestep resume DIR
      go on with a run that was interrupted
  surestep list
      the problems and their presets

Exit codes: 0 done; 2 wrong input; 3 no rule met the success constraint (no certificate);
4 the run folder cannot be used; 130 interrupted (the same command goes on).
"""


def main(arguments: list[str] | None = None) -> int:
    """Run a command and return its exit code."""
    arguments = sys.argv[1:] if arguments is None else arguments
    commands = {"run": _run, "resume": _resume, "list": _list}
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(USAGE, end="")
        return 0
    if arguments[0] == "--version":
        print(__version__)
        return 0
    signal.signal(signal.SIGTERM, _stop)
    try:
        if arguments[0] not in commands:
            raise ConfigurationError(_no_command(arguments[0], tuple(commands)))
        return commands[arguments[0]](arguments[1:])
    except SurestepError as error:
        print(f"surestep: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("surestep: interrupted; the same command goes on from here", file=sys.stderr)
        return INTERRUPTED


def _stop(*_: object) -> NoReturn:
    raise KeyboardInterrupt


def _no_command(name: str, known: tuple[str, ...]) -> str:
    from surestep.names import unknown  # noqa: PLC0415

    return unknown("command", name, known)


def _run(arguments: list[str]) -> int:
    parser = _Parser(prog="surestep run", add_help=False, allow_abbrev=False)
    parser.add_argument("problem", nargs="?")
    parser.add_argument("--preset", default="quick")
    parser.add_argument("--out", type=Path)
    if arguments and arguments[0][:1] == "-" and not {"-h", "--help"} & set(arguments):
        raise ConfigurationError("the problem comes first: surestep run PROBLEM [settings]")
    known, rest = parser.parse_known_args(arguments)
    if known.problem is None:
        if {"-h", "--help"} & set(rest):
            print(USAGE, end="")
            return 0
        raise ConfigurationError("say which problem to run: surestep run PROBLEM (surestep list)")
    from surestep import problems  # noqa: PLC0415
    from surestep.store import RunFolder  # noqa: PLC0415

    config = _overridden(problems.preset(known.problem, known.preset), rest)
    default = Path("runs") / f"{config.name}-{config.preset}-seed{config.seed}"
    return _carry_out(config, RunFolder(known.out or default))


def _resume(arguments: list[str]) -> int:
    parser = _Parser(prog="surestep resume", allow_abbrev=False)
    parser.add_argument("folder", type=Path, help="the run's folder")
    folder = parser.parse_args(arguments).folder
    from surestep import problems  # noqa: PLC0415
    from surestep.store import RunFolder  # noqa: PLC0415

    run = RunFolder(folder)
    return _carry_out(problems.read_config(run), run)


def _list(arguments: list[str]) -> int:
    _Parser(prog="surestep list", allow_abbrev=False).parse_args(arguments)
    from surestep import problems  # noqa: PLC0415

    for name in problems.NAMES:
        print(f"{name}: {problems.summary(name)}")
        for preset, config in problems.presets(name).items():
            print(
                f"  --preset {preset:<6} {config.locate.steps} training steps, "
                f"{config.sample.samples} samples, {config.horizon} iterations, "
                f"{config.sizes.train} train instances"
            )
    return 0


def _overridden(config: "RunConfig[Any]", arguments: list[str]) -> "RunConfig[Any]":
    """The preset with the settings that were given on the command line."""
    import tyro  # noqa: PLC0415

    from surestep import problems  # noqa: PLC0415

    return tyro.cli(
        problems.config_type(config.name),
        prog=f"surestep run {config.name} --preset {config.preset} [--out DIR]",
        description="Settings of the preset and their values; --out chooses the run's folder.",
        args=arguments,
        default=config,
    )


def _carry_out(config: "RunConfig[Any]", folder: "RunFolder") -> int:
    from surestep import problems  # noqa: PLC0415
    from surestep.learning import learn  # noqa: PLC0415
    from surestep.report import write_report  # noqa: PLC0415

    config.validate()
    report = _reporter()
    report.say(f"{config.name}, preset {config.preset}, seed {config.seed}, in {folder.path}")
    learned = learn(config, problems.build(config), folder, report)
    paths = write_report(learned, folder)
    _show(learned, paths)
    return 0


def _reporter() -> "Reporter":
    from rich.console import Console  # noqa: PLC0415

    from surestep.progress import Live, Logged  # noqa: PLC0415

    console = Console(stderr=True)
    if console.is_terminal:
        return Live(console)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S"))
    logger = logging.getLogger("surestep")
    logger.handlers = [handler]
    logger.setLevel(logging.INFO)
    return Logged()


def _show(learned: "Learned", paths: dict[str, Path]) -> None:
    from surestep.report import summary  # noqa: PLC0415

    print()
    print(learned.certificate)
    print()
    print(summary(learned))
    print()
    for name, path in paths.items():
        print(f"{name + ':':<13}{path}")


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigurationError(f"{message} ({self.prog} --help)")


if __name__ == "__main__":
    sys.exit(main())
