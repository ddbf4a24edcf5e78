"""From a user's problem to a run: `plan_fit` and `fit`."""

import dataclasses
from pathlib import Path
from typing import Any

from surestep.auto.choice import experiment_for, pick
from surestep.auto.configure import Config, configure, seconds, survey_checked, too_short
from surestep.auto.survey import Survey
from surestep.base.errors import ConfigurationError
from surestep.base.progress import Reporter, Silence
from surestep.problem import Problem, name_of
from surestep.report import write_report
from surestep.run.learned import Learned
from surestep.run.pipeline import learn
from surestep.storage.records import from_plain
from surestep.storage.run_folder import RunFolder
from surestep.train import Experiment


@dataclasses.dataclass(frozen=True)
class FitPlan:
    """What `fit` would do with a problem: change it with `dataclasses.replace`, then `learn`.

    **Example:**

    ```python
    plan = ss.plan_fit(problem, budget="1m")
    print(plan.words, plan.config.horizon, plan.survey.smoothness)
    learned = ss.learn(plan.config, plan.experiment)
    ```
    """

    survey: Survey
    """What was found on a few instances of the prior set."""
    config: Config
    """Every number of the run."""
    experiment: Experiment
    """The problem with the rule that was picked for it, and its opponents."""
    words: str
    """The rule that was picked, in words."""


def plan_fit(problem: Problem, budget: str | float = "2m", seed: int = 0) -> FitPlan:
    """Survey a problem, and say how `fit` would learn a solver for it.

    **Arguments:**

    - `problem`: a `Problem`, for example from `surestep.make_problem`.
    - `budget`: a time like `"90s"`, `"10m"` or `"1h"`, or a number of seconds.
    - `seed`: decides data sets, training and sampling.

    **Returns:** a `FitPlan`. `surestep.learn(plan.config, plan.experiment)` carries it out.

    **Raises:** `surestep.errors.ProblemError` if the problem breaks its contract, and
    `surestep.errors.ConfigurationError` if the budget is no time.

    **Example:**

    ```python
    plan = ss.plan_fit(problem, budget="1m")
    config = dataclasses.replace(plan.config, horizon=50)
    learned = ss.learn(config, plan.experiment)
    ```
    """
    return _planned(problem, seconds(budget), seed, None, Silence())


def fit(
    problem: Problem,
    budget: str | float = "2m",
    seed: int = 0,
    out: str | Path | None = None,
    report: Reporter | None = None,
    **changes: Any,
) -> Learned:
    """Learn a solver for a problem, certify it and evaluate it, in about the time that is given.

    **Arguments:**

    - `problem`: a `Problem`, for example from `surestep.make_problem`.
    - `budget`: a time like `"90s"`, `"10m"` or `"1h"`, or a number of seconds.
    - `seed`: decides data sets, training and sampling.
    - `out`: a folder for the run. It gets all that `surestep run` leaves, the report included, and
      the same call goes on with a run that was interrupted.
    - `report`: where progress is told; by default nowhere.
    - `changes`: fields of `RunConfig` that are to be other than they would be.

    **Returns:** a `Learned`: the solver, its certificate and its evaluation.

    **Raises:** `surestep.errors.ProblemError` if the problem breaks its contract,
    `surestep.errors.InfeasibleError` if no rule meets the success constraint, and
    `surestep.errors.RunFolderError` if the folder holds something else.

    **Example:**

    ```python
    learned = ss.fit(problem, budget="2m", out="runs/mine")
    print(learned.certificate)
    learned.save("solver.safetensors")
    ```
    """
    report, allowed = report or Silence(), seconds(budget)
    folder = None if out is None else RunFolder(Path(out))
    plan = _planned(problem, allowed, seed, folder, report, **changes)
    report.say(f"learning: {plan.words}")
    if warning := too_short(plan.config, allowed):
        report.say(warning)
    learned = learn(plan.config, plan.experiment, folder, report)
    if folder is not None:
        write_report(learned, folder)
    return learned


def _planned(
    problem: Problem,
    budget: float,
    seed: int,
    folder: RunFolder | None,
    report: Reporter,
    **changes: Any,
) -> FitPlan:
    config = _begun(folder, name_of(problem), seed)
    begun = None if config is None else config.problem
    found = survey_checked(problem, seed, budget, report, begun)
    config = config or configure(problem, found, name_of(problem), budget, seed)
    config = dataclasses.replace(config, **changes)
    experiment = experiment_for(problem, found, config.guard, config.problem.accuracies)
    return FitPlan(found, config, experiment, pick(problem, found, config.guard).words)


def _begun(folder: RunFolder | None, name: str, seed: int) -> Config | None:
    """The configuration of a run that has begun: what was measured then stays as it is."""
    if folder is None or not folder.config_path.exists():
        return None
    plain = folder.stored_config()
    if not isinstance(plain, dict) or (plain.get("name"), plain.get("seed")) != (name, seed):
        raise ConfigurationError(
            f"{folder.path} holds a run of another problem or seed: choose another folder"
        )
    return from_plain(Config, plain, "config")
