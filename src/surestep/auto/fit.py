"""From a user's problem to a run: `plan_fit` and `fit`."""

import dataclasses
from pathlib import Path
from typing import Any

from surestep.auto.arena import Use
from surestep.auto.choice import Choice, choose, experiment_for
from surestep.auto.choice_file import NAME as CHOICE
from surestep.auto.choice_file import read_choice, write_choice
from surestep.auto.configure import Config, OwnSettings, configure, seconds, survey_checked
from surestep.auto.goals import goal_for
from surestep.auto.survey import Survey
from surestep.base.clock import Stopwatch
from surestep.base.errors import ConfigurationError, unknown
from surestep.base.progress import Reporter, Silence
from surestep.problem import Problem, name_of
from surestep.report import write_report
from surestep.run.config import RunConfig
from surestep.run.learned import Learned
from surestep.run.pipeline import learn
from surestep.storage.records import from_plain
from surestep.storage.run_folder import RunFolder
from surestep.train import Experiment

_LONGEST_RACE, _SHORTEST_RACE = 0.45, 0.2
"""Shares of the budget that the race may take: at most, and however long the rest may be."""
_AFTER, _FILES = 1.8, 4.0
"""What follows the race takes so many times as long as what came before it, because both are mostly
compiling; and so many seconds for report and files."""


@dataclasses.dataclass(frozen=True)
class FitPlan:
    """What `fit` would do with a problem: change it with `dataclasses.replace`, then `learn`.

    The rule is chosen already: `choice.entries` lists the winner, then the other candidates, the
    fastest first, each with `name`, `trained`, `iterations` (to the accuracy on nine of ten
    instances; infinite if it was not reached), and the seconds of a solve `alone` and in a `batch`
    (infinite if that was not measured). `choice.rule` is the winner's rule, inside a check.

    **Example:**

    ```python
    plan = ss.plan_fit(problem, budget="1m")
    print(plan.words)
    for entry in plan.choice.entries:
        print(entry.name, entry.trained, entry.iterations, entry.batch)
    learned = ss.learn(plan.config, plan.experiment)
    ```
    """

    config: Config
    """Every number of the run."""
    experiment: Experiment
    """The problem with the rule that was chosen for it, and its opponents."""
    choice: Choice
    """The rule that was chosen, its opponents, and the race that decided it; `choice.smoothness`
    is the largest curvature that was met."""
    survey: Survey | None
    """What was found on some instances of the prior set: losses at starts and minima, curvature,
    a metric, a predictor of solutions. None for a run that had begun: it keeps its choice."""

    @property
    def words(self) -> str:
        """The rule that was chosen, in words."""
        return self.choice.words


def plan_fit(
    problem: Problem,
    budget: str | float = "2m",
    seed: int = 0,
    accuracy: float = 1e-6,
    use: Use = "both",
) -> FitPlan:
    """Survey a problem, choose a rule, and say how `fit` would go on from there.

    The choice is made by the clock: candidates are tuned, trained and timed on the prior set.

    **Arguments:**

    - `problem`: a `Problem`, for example from `surestep.make_problem`.
    - `budget`: a time like `"90s"`, `"10m"` or `"1h"`, or a number of seconds.
    - `seed`: decides data sets and sampling; what is timed may differ from call to call.
    - `accuracy`, `use`: as for `fit`.

    **Returns:** a `FitPlan`. `surestep.learn(plan.config, plan.experiment)` carries it out.

    **Raises:** `surestep.errors.ProblemError` if the problem breaks its contract, and
    `surestep.errors.ConfigurationError` if the budget is no time, the accuracy is not between 0 and
    1, or the use is unknown.

    **Example:**

    ```python
    plan = ss.plan_fit(problem, budget="1m", accuracy=1e-4, use="batch")
    sizes = dataclasses.replace(plan.config.sizes, train=1000)
    learned = ss.learn(dataclasses.replace(plan.config, sizes=sizes), plan.experiment)
    ```
    """
    wanted = OwnSettings(accuracy=accuracy, use=use, budget=seconds(budget))
    return _planned(problem, wanted, seed, None, Silence())


def fit(
    problem: Problem,
    budget: str | float = "2m",
    seed: int = 0,
    accuracy: float = 1e-6,
    use: Use = "both",
    out: str | Path | None = None,
    report: Reporter | None = None,
    **changes: Any,
) -> Learned:
    """Find the fastest solver for a problem, certify it and evaluate it.

    Classical rules that know the family, trained and untrained, are compared by the clock. The
    winner is handed out, whether or not training has won anything. It makes a fixed number of
    iterations and is checked once after them (`surestep.rules.Checked`).

    **Arguments:**

    - `problem`: a `Problem`, for example from `surestep.make_problem`.
    - `budget`: a time like `"90s"`, `"10m"` or `"1h"`, or a number of seconds, for the whole run.
      What does not fit is left out: samples of the posterior, opponents, then instances. The
      report says what.
    - `seed`: decides data sets and sampling. The choice is measured, so another call may choose
      another rule.
    - `accuracy`: how close a solve should come: the share of what there is to gain that may be
      left on nine of ten instances. Candidates are compared by the time that takes.
    - `use`: `"single"` for solves one at a time, `"batch"` for many at once, or `"both"`.
    - `out`: a folder for the run. It gets all that `surestep run` leaves, the report included, and
      the same call goes on with a run that was interrupted, with the rule that was chosen then.
    - `report`: where progress is told; by default nowhere.
    - `changes`: fields of `RunConfig` that are to be other than they would be. A `horizon` shorter
      than the chosen one ends before the check.

    **Returns:** a `Learned`: the solver, its certificate and its evaluation.

    **Raises:** `surestep.errors.ProblemError` if the problem breaks its contract,
    `surestep.errors.InfeasibleError` if no rule meets the success constraint, and
    `surestep.errors.RunFolderError` if the folder holds something else.

    **Example:**

    ```python
    learned = ss.fit(problem, budget="2m", accuracy=1e-4, use="single", out="runs/mine")
    print(learned.certificate)
    learned.save("solver.safetensors")
    ```
    """
    report = report or Silence()
    folder = None if out is None else RunFolder(Path(out))
    wanted = OwnSettings(accuracy=accuracy, use=use, budget=seconds(budget))
    plan = _planned(problem, wanted, seed, folder, report, **changes)
    report.say(f"chosen: {plan.words}")
    learned = learn(plan.config, plan.experiment, folder, report)
    if folder is not None:
        write_report(learned, folder)
    return learned


def _planned(
    problem: Problem,
    wanted: OwnSettings,
    seed: int,
    folder: RunFolder | None,
    report: Reporter,
    **changes: Any,
) -> FitPlan:
    known = tuple(field.name for field in dataclasses.fields(RunConfig))
    for name in changes:
        if name not in known:
            raise ConfigurationError(unknown("setting of a run", name, known))
    if folder is not None:
        folder.require_free()
    config = _begun(folder, name_of(problem), seed, wanted)
    if config is None or folder is None:
        found, config, choice = decided(problem, name_of(problem), wanted, seed, report)
        if folder is not None:
            write_choice(folder.path / CHOICE, choice)
    else:
        found, choice = None, read_choice(folder.path / CHOICE, problem)
    config = dataclasses.replace(config, **changes)
    experiment = experiment_for(problem, choice, config.problem.accuracies)
    return FitPlan(config, experiment, choice, found)


def decided(
    problem: Problem, name: str, wanted: OwnSettings, seed: int, report: Reporter
) -> tuple[Survey, Config, Choice]:
    """Survey a problem, hold the race, and find the numbers of a run."""
    wanted.validate()
    watch = Stopwatch()
    report.say(f"{name}: solving a few instances to see what suits them")
    found = survey_checked(problem, seed, wanted.budget, report)
    goal_for(problem, found)  # a problem that has none is refused before the race
    allowed = race_seconds(wanted.budget, watch.seconds)
    choice = choose(problem, found, seed, wanted.accuracy, wanted.use, allowed, report)
    left = wanted.budget - watch.seconds
    config, choice = configure(problem, found, choice, name, left, seed, wanted)
    if config.problem.left_out:
        without = ", ".join(config.problem.left_out)
        report.say(f"left out, to keep the budget of {wanted.budget:g} s: {without}")
    return found, config, choice


def race_seconds(budget: float, spent: float) -> float:
    """What the race may take of a budget, of which the survey has spent so many seconds."""
    left = budget - spent - _AFTER * spent - _FILES
    return min(max(left, _SHORTEST_RACE * budget), _LONGEST_RACE * budget)


def _begun(folder: RunFolder | None, name: str, seed: int, wanted: OwnSettings) -> Config | None:
    """The configuration of a run that has begun: what was measured then stays as it is."""
    if folder is None or not folder.kept(folder.config_path).exists():
        return None
    plain = folder.stored_config()
    if not isinstance(plain, dict) or (plain.get("name"), plain.get("seed")) != (name, seed):
        raise ConfigurationError(
            f"{folder.path} holds a run of another problem or seed: choose another folder"
        )
    config = from_plain(Config, plain, "config")
    require_same(folder.path, config.problem, wanted)
    return config


def require_same(folder: Path, begun: OwnSettings, wanted: OwnSettings) -> None:
    """Refuse to go on with a run that was asked for something else when it began."""
    for name in ("accuracy", "use", "budget"):
        before, now = getattr(begun, name), getattr(wanted, name)
        if before != now:
            raise ConfigurationError(
                f"the run in {folder} was begun with {name} {before}, not {now}, and its rule was "
                "chosen for that: ask for the same, or choose another folder"
            )
