"""The run of a problem that is defined in a user's file."""

import dataclasses
import functools
from pathlib import Path

from surestep.auto.choice import experiment_for
from surestep.auto.configure import Config, configure, survey_checked, surveyed
from surestep.auto.files import absolute, open_file, title
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


def configure_file(spec: str, budget: float, seed: int, report: Reporter | None = None) -> Config:
    """Numbers for the problem in a file."""
    file = absolute(spec)
    problem = runnable_problem(file)
    found = survey_checked(problem, seed, budget, report)
    config = configure(problem, found, title(spec), budget, seed)
    settings = dataclasses.replace(config.problem, file=file)
    return dataclasses.replace(config, problem=settings)


def problem_in(spec: str) -> Problem:
    """The problem in a file, whether it is alone there or in an experiment."""
    found = open_file(spec)
    return found.problem if isinstance(found, Experiment) else found


def build(config: Config, named: str) -> Experiment:
    """The experiment of a configuration, with the problem in the file that the user has named."""
    if not named:
        raise no_code(config, "--problem {file}")
    # Which of the file's names is meant is no code, and can be taken from the run.
    name = config.problem.file.rpartition(":")[2]
    problem = runnable_problem(absolute(named if ":" in named or not name else f"{named}:{name}"))
    found = surveyed(problem, config.sizes.prior, config.seed, config.problem)
    return experiment_for(problem, found, config.guard, config.problem.accuracies)


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
