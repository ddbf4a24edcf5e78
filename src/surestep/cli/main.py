"""The command line: the list of commands, and which exit code each way to end has.

Nothing heavy is imported before it is known what to do, so that help answers at once.
"""

import contextlib
import importlib
import os
import sys
from typing import NoReturn

from surestep.__about__ import __version__
from surestep.base.compilation_cache import keep_compiled_programs
from surestep.base.errors import ConfigurationError, SurestepError, unknown
from surestep.cli.explanation import explain
from surestep.cli.interruption import SIGNALLED, stopping_safely

COMMANDS = (
    "run",
    "new",
    "check",
    "resume",
    "report",
    "list",
    "solve",
    "verify",
    "certify",
    "plan",
    "audit",
    "figure",
    "table",
    "monitor",
)
"""Each is a module of this package, with its arguments and a function `main`."""

USAGE = """\
surestep: learn an optimization algorithm for a family of problems, with a certificate.

  surestep run PROBLEM [--preset tiny|quick|paper|best] [--seed N] [--out DIR] [--until plan]
      [settings]
      learn, certify, evaluate and draw; on an existing DIR, go on where it stopped
  surestep run PROBLEM --preset P --help
      every setting of that preset, with its value
  surestep new my_problem.py
      write a commented file to start from, for a family of your own
  surestep check my_problem.py[:NAME]
      what is wrong or slow with a problem of your own, and what to change
  surestep run my_problem.py[:NAME] [--budget 2m] [--accuracy 1e-6] [--use single|batch|both]
      [--seed N] [--out DIR] [settings]
      the same as for the problems that come along, with the rule that is fastest on yours
  surestep resume DIR [--word TEXT] [--problem my_problem.py[:NAME]]
      go on with a run that was interrupted, or stopped at its plan, with a verifier's word; a run's
      folder runs no code, so name your own file
  surestep report DIR [--problem my_problem.py[:NAME]]
      write the report and the figures of a run that has ended again
  surestep list
      the problems and their presets
  surestep solve SOLVER PROBLEM --instances FILE.npz --out FILE.npz [--preset P]
      [--iterations N] [--tolerance T] [--policy posterior --seed S]
      solve a file of instances with a saved solver; PROBLEM is a name, a file or a run's folder
  surestep verify DIR [--rerun K] [--retrain] [--problem my_problem.py[:NAME]]
      recompute certificates from what is stored; roll the deployed rule and K other samples out
      again; do everything again from the seed
  surestep certify DIR --instances SEED|FILE.npz|DIR [--size N] [--epsilon E] [--deployed]
      [--problem FILE]
      certify a trained rule again on fresh instances: all samples, or the deployed one alone
  surestep certify DIR --until "within 1e-4 in 50 iterations: 0.999" [--budget 2m] [--most N]
      [--epsilon E] [--seed N] [--problem FILE]
      draw fresh instances until this is proved or refuted; it may stop at any time
  surestep certify PROBLEM --rule NAME [--preset P] [--horizon N] [--size N] [--epsilon E]
      certify a classical rule
  surestep certify OUTCOMES.npz|.csv [--pilot FILE | --claims CLAIM ...] [--out DIR]
      [--solver NAME] [--accuracies A ...] [--epsilon E] [--signed]
      certify anyone's solver by its losses, gaps or hits on instances
  surestep certify DIR --size N --pilot FILE | --claims CLAIM ...
      make the plan for that before there are outcomes
  surestep plan --failure F --confidence C --samples K [--observed R] [--curve DIR]
      how many train instances a certificate needs
  surestep audit [--repeats N] [--size N] [--epsilon E]
      are certificates false as rarely as they say? on families whose truth is known
  surestep figure NAME [--seed N] [--out DIR] [--runs DIR ...]
      one of the paper's small figures: estimation, sampling, choices, experiments
  surestep table DIR [--out FILE.parquet|FILE.csv]
      the evaluation of a run as a table: a row for each solver, instance and iteration
  surestep monitor STATE.json [--failure P] [--delta D] < OUTCOMES
      is a certified failure probability still credible? fed every outcome, 0 or 1, line by line

run, resume and certify share their rollouts among processes, on one host or on many, that are all
given the same command and one of
  --distributed auto                                       under Slurm, Open MPI or Kubernetes
  --coordinator HOST:PORT --processes N --process I        elsewhere; process 0 writes the folder

Exit codes: 0 done; 2 wrong input; 3 no rule met the success constraint (no certificate);
4 the run folder or the solver's file cannot be used; 5 a certificate does not stand, a claim is not
proved, or an alarm;
6 another process of the run is lost; 130 interrupted, 143 by SIGTERM (after these three, the same
command goes on).
"""


def start() -> NoReturn:
    """Run the command that was typed, and end the process."""
    code = main()
    if code > SIGNALLED:
        # An orderly end would wait for what JAX computes in the background.
        with contextlib.suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def main(words: list[str] | None = None) -> int:
    """Run a command and return its exit code."""
    words = sys.argv[1:] if words is None else words
    if not words or words[0] in ("-h", "--help", "help"):
        print(USAGE, end="")
        return 0
    if words[0] == "--version":
        print(__version__)
        return 0
    try:
        return _dispatch(words[0], words[1:])
    except (SurestepError, BrokenPipeError, KeyboardInterrupt) as error:
        return explain(error)


def _dispatch(command: str, words: list[str]) -> int:
    if command == "bench":
        raise ConfigurationError(
            "benchmarks are not installed with surestep, they are in its source tree: type python "
            "-m benchmarks there (python -m benchmarks --help)"
        )
    if command not in COMMANDS:
        raise ConfigurationError(unknown("command", command, COMMANDS))
    # JAX, which commands import, reads from the environment where compiled programs are kept.
    keep_compiled_programs()
    with stopping_safely():
        return importlib.import_module(f"surestep.cli.{command}").main(words)
