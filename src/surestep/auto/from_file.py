"""The run of a problem that is defined in a user's file."""

import dataclasses
import functools
from pathlib import Path

from surestep.auto.choice import Choice, experiment_for
from surestep.auto.choice_file import NAME as CHOICE
from surestep.auto.choice_file import read_choice
from surestep.auto.configure import Config, OwnSettings
from surestep.auto.files import absolute, open_file, title
from surestep.auto.fit import decided
from surestep.base.errors import ConfigurationError
from surestep.base.progress import Reporter
from surestep.problem import Problem
from surestep.train import Experiment


@functools.cache
def _opened(file: str, changed: float) -> Problem | Experiment:
    """A file is run once a process, so that what was compiled for it serves again."""
    del changed
    return open_file(file)


def runnable_problem(file: str) -> Problem:
    """The problem of a file that can be run from the command line."""
    path = Path(file.rpartition(":")[0])
    problem = _opened(file, path.stat().st_mtime if path.exists() else 0.0)
    if isinstance(problem, Experiment):
        raise ConfigurationError(
            f"{title(file)} is an experiment: its rule and opponents are chosen already, so run "
            "it from Python, surestep.learn(config, experiment); a Problem can be run from here"
        )
    return problem


def configure_file(
    spec: str, wanted: OwnSettings, seed: int, report: Reporter
) -> tuple[Config, Choice]:
    """Numbers and a rule for the problem in a file."""
    file = absolute(spec)
    wanted = dataclasses.replace(wanted, file=file)
    return decided(runnable_problem(file), title(spec), wanted, seed, report)[1:]


def problem_in(spec: str) -> Problem:
    """The problem in a file, whether it is alone there or in an experiment."""
    found = open_file(spec)
    return found.problem if isinstance(found, Experiment) else found


def build(config: Config, named: str, folder: Path | None) -> Experiment:
    """The experiment of a configuration, with the problem in the file that the user has named.

    The rule that was chosen lies in the run's folder.
    """
    if not named:
        raise no_code(config, "--problem {file}")
    # Which of the file's names is meant is no code, and can be taken from the run.
    name = config.problem.file.rpartition(":")[2]
    problem = runnable_problem(absolute(named if ":" in named or not name else f"{named}:{name}"))
    if folder is None:
        raise ConfigurationError(
            "which rule was chosen for a problem of your own is kept in its run's folder: name one"
        )
    choice = read_choice(folder / CHOICE, problem)
    return experiment_for(problem, choice, config.problem.accuracies)


def no_code(config: Config, instead: str) -> ConfigurationError:
    """The refusal to run a file only because a run's folder names it."""
    if not config.problem.file:
        return ConfigurationError(
            f"the problem {config.name} was defined in Python, not in a file: go on from there, "
            "with the same call of surestep.fit, or name a file that defines it"
        )
    file = config.problem.file
    return ConfigurationError(
        f"this run's problem is Python code in a file, and a folder, which may be a stranger's, "
        f"runs no code. If {file} is yours, or you have read it, name it: "
        + instead.format(file=file)
    )
