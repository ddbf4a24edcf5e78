"""The command line.

Nothing heavy is imported before it is known what to do, so that help answers at once.
"""

import argparse
import logging
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from surestep.__about__ import __version__
from surestep.base.compilation_cache import keep_compiled_programs
from surestep.base.errors import ConfigurationError, SurestepError
from surestep.cli.interruption import INTERRUPTED, stopping_safely

if TYPE_CHECKING:
    from surestep.base.progress import Reporter
    from surestep.run.config import RunConfig
    from surestep.run.distributed import Leader
    from surestep.run.pipeline import Learned
    from surestep.storage.run_folder import RunFolder

    Command = Callable[[list[str], "Leader | None"], int]

USAGE = """\
surestep: learn an optimization algorithm for a family of problems, with a certificate.

  surestep run PROBLEM [--preset tiny|quick|paper|best] [--seed N] [--out DIR] [settings]
      learn, certify, evaluate and draw; on an existing DIR, go on where it stopped
  surestep run PROBLEM --preset P --help
      every setting of that preset, with its value
  surestep new my_problem.py
      write a commented file to start from, for a family of your own
  surestep check my_problem.py[:NAME]
      what is wrong or slow with a problem of your own, and what to change
  surestep run my_problem.py[:NAME] [--budget 2m] [--seed N] [--out DIR] [settings]
      the same as for the problems that come along, with a rule that is picked for yours
  surestep resume DIR [--problem my_problem.py[:NAME]]
      go on with a run that was interrupted; a run's folder runs no code, so name your own file
  surestep report DIR [--problem my_problem.py[:NAME]]
      write the report and the figures of a run that has ended again
  surestep list
      the problems and their presets
  surestep solve SOLVER PROBLEM --instances FILE.npz --out FILE.npz [--preset P]
      [--iterations N] [--tolerance T] [--policy posterior --seed S]
      solve a file of instances with a saved solver; PROBLEM is a name, a file or a run's folder
  surestep verify DIR [--rerun K] [--problem my_problem.py[:NAME]]
      recompute certificates from what is stored; roll K random instances out again
  surestep certify DIR --instances SEED|FILE.npz|DIR [--size N] [--epsilon E] [--deployed]
      [--problem FILE]
      certify a trained rule again on fresh instances: all samples, or the deployed one alone
  surestep certify PROBLEM --rule NAME [--preset P] [--horizon N] [--size N] [--epsilon E]
      certify a classical rule
  surestep plan --failure F --confidence C --samples K [--observed R] [--curve DIR]
      how many train instances a certificate needs
  surestep audit [--repeats N] [--size N] [--epsilon E]
      are certificates false as rarely as they say? on families whose truth is known
  surestep figure NAME [--seed N] [--out DIR] [--runs DIR ...]
      one of the paper's small figures: estimation, sampling, choices, experiments
  surestep table DIR [--out FILE.parquet|FILE.csv]
      the evaluation of a run as a table: a row for each solver, instance and iteration
  surestep bench [--quick] [--only PART ...] [--out DIR]
      how long every stage takes, how that grows, and how much of the machine it uses
  surestep bench --compare OLD.json NEW.json
      what has become slower by more than noise explains (exit code 5)
  surestep monitor STATE.json [--failure P] [--delta D] < OUTCOMES
      is a certified failure probability still credible? fed every outcome, 0 or 1, line by line

run, resume and certify share their rollouts among processes, on one host or on many, that are all
given the same command and one of
  --distributed auto                                       under Slurm, Open MPI or Kubernetes
  --coordinator HOST:PORT --processes N --process I        elsewhere; process 0 writes the folder

Exit codes: 0 done; 2 wrong input; 3 no rule met the success constraint (no certificate);
4 the run folder or the solver's file cannot be used; 5 a certificate does not stand, an alarm,
or a benchmark that is slower beyond noise; 6 another process of the run is lost; 130 interrupted
(after both, the same command goes on).
"""


def main(arguments: list[str] | None = None) -> int:
    """Run a command and return its exit code."""
    arguments = sys.argv[1:] if arguments is None else arguments
    commands = {
        "run": lambda given: _together(given, _run),
        "new": _new,
        "check": _check,
        "resume": lambda given: _together(given, _resume),
        "report": _report,
        "list": _list,
        "solve": _solve,
        "verify": _verify,
        "certify": lambda given: _together(given, _certify),
        "plan": _plan,
        "audit": _audit,
        "figure": _figure,
        "table": _table,
        "bench": _bench,
        "monitor": _monitor,
    }
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(USAGE, end="")
        return 0
    if arguments[0] == "--version":
        print(__version__)
        return 0
    try:
        if arguments[0] not in commands:
            raise ConfigurationError(_no_command(arguments[0], tuple(commands)))
        keep_compiled_programs()
        with stopping_safely():
            return commands[arguments[0]](arguments[1:])
    except (SurestepError, BrokenPipeError, KeyboardInterrupt) as error:
        return _explain(error)


def _explain(error: BaseException) -> int:
    """Tell the user of an error, and say which exit code it means."""
    if isinstance(error, SurestepError):
        print(f"surestep: {error}", file=sys.stderr)
        return error.exit_code
    if isinstance(error, BrokenPipeError):
        # Whoever read the output has seen enough; Python would complain again while it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    if isinstance(error, KeyboardInterrupt):
        print("surestep: interrupted; the same command goes on from here", file=sys.stderr)
        return INTERRUPTED
    traceback.print_exception(error)
    return 1


_TOGETHER = (
    "Several processes share the rollouts if all are given the same command and either "
    "--distributed auto or --coordinator HOST:PORT --processes N --process I; --patience S says "
    "after how many seconds without a sign of life one of them is lost (60)."
)
_JOINING = ("--distributed", "--coordinator", "--processes", "--process", "--patience")


def _together(arguments: list[str], command: "Command") -> int:
    """Carry out a command, alone or, if the arguments say how to find them, with others."""
    if not any(argument.partition("=")[0] in _JOINING for argument in arguments):
        return command(arguments, None)
    parser = _Parser(prog="surestep", add_help=False, allow_abbrev=False)
    parser.add_argument("--distributed", choices=["auto"])
    parser.add_argument("--coordinator")
    parser.add_argument("--processes", type=int)
    parser.add_argument("--process", type=int)
    parser.add_argument("--patience", type=float, default=60.0)
    given, rest = parser.parse_known_args(arguments)
    said = (given.coordinator, given.processes, given.process)
    if (given.distributed is None) == (said == (None, None, None)):
        raise ConfigurationError(
            "say either --distributed auto, or --coordinator, --processes and --process"
        )
    from surestep.cli.workers import together  # noqa: PLC0415
    from surestep.run.distributed import Joining  # noqa: PLC0415

    joining = Joining(*said, patience=given.patience)
    return together(joining, lambda leader: command(rest, leader), _explain, rest)


def _no_command(name: str, known: tuple[str, ...]) -> str:
    from surestep.base.errors import unknown  # noqa: PLC0415

    return unknown("command", name, known)


def _run(arguments: list[str], leader: "Leader | None") -> int:
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
    from surestep.auto.files import is_file  # noqa: PLC0415
    from surestep.paper import registry  # noqa: PLC0415
    from surestep.storage.run_folder import RunFolder  # noqa: PLC0415

    if is_file(known.problem):
        return _run_file(known.problem, known.out, rest, leader)
    config = _overridden(registry.preset(known.problem, known.preset), rest)
    default = Path("runs") / f"{config.name}-{config.preset}-seed{config.seed}"
    return _carry_out(config, RunFolder(known.out or default), leader=leader)


def _run_file(spec: str, out: Path | None, arguments: list[str], leader: "Leader | None") -> int:
    parser = _Parser(prog=f"surestep run {spec}", add_help=False, allow_abbrev=False)
    parser.add_argument("--budget", default="2m")
    parser.add_argument("--seed", type=int, default=0)
    known, rest = parser.parse_known_args(arguments)
    from surestep.auto.configure import seconds, too_short  # noqa: PLC0415
    from surestep.auto.files import absolute, title  # noqa: PLC0415
    from surestep.auto.from_file import configure_file  # noqa: PLC0415
    from surestep.paper import registry  # noqa: PLC0415
    from surestep.storage.run_folder import RunFolder  # noqa: PLC0415

    if not 0 <= known.seed < 2**31:
        raise ConfigurationError(f"--seed must be a whole number from 0 to 2^31 - 1: {known.seed}")
    budget = seconds(known.budget)
    folder = RunFolder(out or Path("runs") / f"{title(spec).replace(':', '-')}-seed{known.seed}")
    if folder.config_path.exists():
        # What was measured and chosen when the run began stays as it is.
        config = registry.read_config(folder)
        if getattr(config.problem, "file", None) != absolute(spec) or config.seed != known.seed:
            raise ConfigurationError(
                f"{folder.path} holds a run of another problem or seed: choose another --out"
            )
    else:
        _reporter().say(f"{title(spec)}: solving a few instances to see what suits them")
        config = configure_file(spec, budget, known.seed)
        if warning := too_short(config, budget):
            _reporter().say(f"{title(spec)}: {warning}")
    return _carry_out(_overridden(config, rest), folder, spec, leader)


def _new(arguments: list[str]) -> int:
    parser = _Parser(prog="surestep new", allow_abbrev=False)
    parser.add_argument("file", type=Path, help="where to write it, like my_problem.py")
    path = parser.parse_args(arguments).file
    from surestep.cli.starter import write_starter  # noqa: PLC0415

    write_starter(path)
    print(f"{path} is written. Next: surestep check {path}, then surestep run {path}")
    return 0


def _check(arguments: list[str]) -> int:
    parser = _Parser(prog="surestep check", allow_abbrev=False)
    parser.add_argument("problem", help="a file, like my_problem.py or my_problem.py:problem")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(arguments)
    from surestep.auto.doctor import check_file  # noqa: PLC0415

    for line in check_file(given.problem, given.seed):
        print(line)
    return 0


def _resume(arguments: list[str], leader: "Leader | None") -> int:
    parser = _Parser(prog="surestep resume", allow_abbrev=False, epilog=_TOGETHER)
    parser.add_argument("folder", type=Path, help="the run's folder")
    _add_own_file(parser)
    given = parser.parse_args(arguments)
    from surestep.paper import registry  # noqa: PLC0415
    from surestep.storage.run_folder import RunFolder  # noqa: PLC0415

    run = RunFolder(given.folder)
    return _carry_out(registry.read_config(run), run, given.problem, leader)


def _report(arguments: list[str]) -> int:
    parser = _Parser(prog="surestep report", allow_abbrev=False)
    parser.add_argument("folder", type=Path, help="the run's folder")
    _add_own_file(parser)
    given = parser.parse_args(arguments)
    from surestep.cli.commands import report_again  # noqa: PLC0415

    report_again(given.folder, given.problem)
    return 0


def _list(arguments: list[str]) -> int:
    _Parser(prog="surestep list", allow_abbrev=False).parse_args(arguments)
    from surestep.paper import registry  # noqa: PLC0415

    for name in registry.NAMES:
        print(f"{name}: {registry.summary(name)}")
        for preset, config in registry.presets(name).items():
            print(
                f"  --preset {preset:<6} {config.locate.steps} training steps, "
                f"{config.sample.samples} samples, {config.horizon} iterations, "
                f"{config.sizes.train} train instances"
            )
    return 0


def _solve(arguments: list[str]) -> int:
    parser = _Parser(prog="surestep solve", allow_abbrev=False)
    parser.add_argument("solver", type=Path, help="the solver's file (solver.safetensors)")
    parser.add_argument("problem", help="a problem's name, or the folder of a run")
    parser.add_argument("--preset", default="quick", help="whose settings a name means")
    parser.add_argument("--instances", type=Path, required=True, help="an .npz file")
    parser.add_argument("--out", type=Path, required=True, help="where solutions go, an .npz file")
    parser.add_argument("--iterations", type=int, help="how many (the certificate's)")
    parser.add_argument("--tolerance", type=float, help="stop where the loss is below")
    parser.add_argument("--policy", default="point", choices=["point", "posterior"])
    parser.add_argument("--seed", type=int, help="for the policy posterior, which draws")
    given = parser.parse_args(arguments)
    if (given.policy == "posterior") != (given.seed is not None):
        raise ConfigurationError("--seed goes with --policy posterior, which draws")
    if given.seed is not None and not 0 <= given.seed < 2**31:
        raise ConfigurationError(f"--seed must be a whole number from 0 to 2^31 - 1: {given.seed}")
    from surestep.cli.batch import solve_file  # noqa: PLC0415

    solve_file(
        given.solver, given.problem, given.preset, given.instances, given.out, given.iterations,
        given.tolerance, given.policy, given.seed,
    )  # fmt: skip
    return 0


def _verify(arguments: list[str]) -> int:
    parser = _Parser(prog="surestep verify", allow_abbrev=False)
    parser.add_argument("folder", type=Path, help="the run's folder")
    more = "instances to roll out again (64 at least of what another kind of machine made)"
    parser.add_argument("--rerun", type=int, default=0, help=more)
    _add_own_file(parser)
    given = parser.parse_args(arguments)
    if given.rerun < 0:
        raise ConfigurationError("--rerun must not be negative")
    from surestep.cli.commands import verify_run  # noqa: PLC0415

    verify_run(given.folder, given.rerun, given.problem)
    return 0


def _certify(arguments: list[str], leader: "Leader | None") -> int:
    parser = _Parser(prog="surestep certify", allow_abbrev=False, epilog=_TOGETHER)
    parser.add_argument("subject", help="a run's folder, or a problem")
    parser.add_argument("--instances", help="a seed to draw fresh instances, or a file of them")
    parser.add_argument("--deployed", action="store_true", help="the deployed rule alone")
    parser.add_argument("--rule", help="the classical rule of a problem to certify")
    parser.add_argument("--preset", default="quick", help="whose goal and sizes to use")
    parser.add_argument("--horizon", type=int, default=0, help="iterations (the preset's)")
    parser.add_argument("--size", type=int, default=0, help="instances to draw (the preset's)")
    parser.add_argument("--epsilon", type=float, default=0.05, help="what it may cost")
    parser.add_argument("--seed", type=int, default=0, help="seed of a classical rule's data")
    _add_own_file(parser)
    given = parser.parse_args(arguments)
    if min(given.size, given.horizon, given.seed) < 0:
        raise ConfigurationError("--size, --horizon and --seed must not be negative")
    from surestep.cli.commands import certify_baseline, certify_fresh  # noqa: PLC0415

    if given.rule is not None:
        if leader is not None or given.deployed:
            raise ConfigurationError("a classical rule is certified by one process, and alone")
        certify_baseline(
            given.subject, given.preset, given.rule, given.horizon, given.size, given.epsilon,
            given.seed,
        )  # fmt: skip
    elif given.instances is not None:
        certify_fresh(
            Path(given.subject), given.instances, given.size, given.epsilon, _reporter(),
            given.problem, given.deployed, leader,
        )  # fmt: skip
    else:
        raise ConfigurationError(
            "say what to certify: a run's folder on --instances, or a problem's --rule"
        )
    return 0


def _plan(arguments: list[str]) -> int:
    parser = _Parser(prog="surestep plan", allow_abbrev=False)
    parser.add_argument("--failure", type=float, required=True, help="probability to certify")
    parser.add_argument("--confidence", type=float, default=0.95)
    parser.add_argument("--samples", type=int, default=100, help="samples of the prior")
    parser.add_argument("--stake", type=float, default=0.9, help="prior weight that is bet")
    parser.add_argument("--observed", type=float, default=0.0, help="failure rate to expect")
    parser.add_argument("--share", type=float, default=1 / 7, help="of epsilon, for the goal")
    parser.add_argument("--curve", type=Path, help="folder for a figure")
    given = parser.parse_args(arguments)
    from surestep.cli.commands import plan_sizes  # noqa: PLC0415

    plan_sizes(
        given.failure, given.confidence, given.samples, given.stake, given.observed, given.share,
        given.curve,
    )  # fmt: skip
    return 0


def _audit(arguments: list[str]) -> int:
    parser = _Parser(prog="surestep audit", allow_abbrev=False)
    parser.add_argument("--repeats", type=int, default=2000, help="data sets a family")
    parser.add_argument("--size", type=int, default=60, help="instances a data set")
    parser.add_argument("--epsilon", type=float, default=0.3, help="large, so that counts tell")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(arguments)
    if given.repeats < 1 or given.size < 1 or given.seed < 0:
        raise ConfigurationError("--repeats and --size must be at least 1, --seed not negative")
    from surestep.cli.commands import run_audit  # noqa: PLC0415

    run_audit(given.repeats, given.size, given.epsilon, given.seed)
    return 0


def _figure(arguments: list[str]) -> int:
    parser = _Parser(prog="surestep figure", allow_abbrev=False)
    parser.add_argument("name", help="estimation, sampling, choices or experiments")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("figures"), help="where it is written")
    parser.add_argument("--runs", type=Path, nargs="+", default=[], help="for experiments")
    given = parser.parse_args(arguments)
    if not 0 <= given.seed < 2**31:
        raise ConfigurationError(f"--seed must be a whole number from 0 to 2^31 - 1: {given.seed}")
    from surestep.cli.commands import draw_figure  # noqa: PLC0415

    draw_figure(given.name, given.seed, given.runs, given.out, _reporter())
    return 0


def _table(arguments: list[str]) -> int:
    parser = _Parser(prog="surestep table", allow_abbrev=False)
    parser.add_argument("folder", type=Path, help="the run's folder")
    parser.add_argument("--out", type=Path, help="where it is written (DIR/table.parquet)")
    given = parser.parse_args(arguments)
    from surestep.cli.commands import write_run_table  # noqa: PLC0415

    write_run_table(given.folder, given.out or given.folder / "table.parquet")
    return 0


def _bench(arguments: list[str]) -> int:
    parser = _Parser(prog="surestep bench", allow_abbrev=False)
    parser.add_argument("--quick", action="store_true", help="smaller sizes, fewer rounds")
    parser.add_argument("--only", nargs="+", metavar="PART", help="stages, speed, memory, learned")
    parser.add_argument("--out", type=Path, help="where results and page go (bench)")
    parser.add_argument("--compare", type=Path, nargs=2, metavar=("OLD", "NEW"), help="two files")
    given = parser.parse_args(arguments)
    if given.compare and (given.quick or given.only or given.out):
        raise ConfigurationError("--compare measures nothing: it goes with no other option")
    from benchmarks.command import compare_benchmarks, run_benchmarks  # noqa: PLC0415

    if given.compare:
        compare_benchmarks(*given.compare)
    else:
        run_benchmarks(given.only or (), given.quick, given.out or Path("bench"), _reporter())
    return 0


def _monitor(arguments: list[str]) -> int:
    parser = _Parser(prog="surestep monitor", allow_abbrev=False)
    parser.add_argument("state", type=Path, help="where the monitor's state is kept")
    parser.add_argument("--failure", type=float, help="the certified failure probability")
    parser.add_argument("--delta", type=float, default=0.01, help="probability of a false alarm")
    given = parser.parse_args(arguments)
    from surestep.cli.commands import watch  # noqa: PLC0415

    watch(given.state, given.failure, given.delta)
    return 0


def _overridden(config: "RunConfig[Any]", arguments: list[str]) -> "RunConfig[Any]":
    """The preset with the settings that were given on the command line."""
    import tyro  # noqa: PLC0415

    from surestep.paper import registry  # noqa: PLC0415

    return tyro.cli(
        registry.config_type(config),
        prog=f"surestep run {config.name} --preset {config.preset} [--out DIR]",
        description="Settings of the preset and their values; --out chooses the run's folder.",
        args=arguments,
        default=config,
    )


def _add_own_file(parser: argparse.ArgumentParser) -> None:
    words = "your file that defines the run's problem: folders run no code, what you name does"
    parser.add_argument("--problem", default="", metavar="FILE.py[:NAME]", help=words)


def _carry_out(
    config: "RunConfig[Any]",
    folder: "RunFolder",
    own_file: str = "",
    leader: "Leader | None" = None,
) -> int:
    from surestep.paper import registry  # noqa: PLC0415
    from surestep.report import write_report  # noqa: PLC0415
    from surestep.run.pipeline import learn  # noqa: PLC0415

    config.validate()
    report = _reporter()
    report.say(f"{config.name}, preset {config.preset}, seed {config.seed}, in {folder.path}")
    experiment = registry.build(config, own_file)
    if leader is not None:
        from surestep.cli.workers import subject_of  # noqa: PLC0415
        from surestep.run.batch_size import settled  # noqa: PLC0415

        # All processes go at the pace of this one.
        config = settled(config, experiment, folder, report)
        leader.introduce(subject_of(config, own_file=own_file))
    learned = learn(config, experiment, folder, report, leader)
    pictures = registry.draw(config, experiment, learned, folder.figures)
    paths = write_report(learned, folder, pictures) | {"solver": folder.solver_path}
    _show(learned, paths)
    return 0


def _reporter() -> "Reporter":
    from rich.console import Console  # noqa: PLC0415

    from surestep.base.progress import Live, Logged  # noqa: PLC0415

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
