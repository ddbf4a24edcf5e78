"""What follows a certificate, or goes with it, and must not cost it: a failure is a sentence."""

from collections.abc import Callable
from typing import Any, TypeVar

from surestep.base.errors import RunFolderError
from surestep.base.progress import Reporter
from surestep.evaluate.evaluated import LEARNED, Evaluated
from surestep.evaluate.off_family import Shifted, evaluate_shifted
from surestep.evaluate.test_set import evaluate
from surestep.evaluate.timing import named
from surestep.problem import PriorSet, TestSet, TrainSet, working_precision
from surestep.rules.base import Rule
from surestep.run.begun import Begun
from surestep.run.config import RunConfig
from surestep.run.stored import INCOMPLETE
from surestep.solver.familiar import Familiar
from surestep.train import Experiment, Task

Result = TypeVar("Result")


def shown_baselines(config: RunConfig[Any], experiment: Experiment) -> dict[str, Rule]:
    """The opponents that the test set shows beside the learned rule."""
    return experiment.chosen(config.evaluate.baselines or experiment.baselines)


def familiar_with(
    task: Task, prior: PriorSet, train: TrainSet, report: Reporter
) -> Familiar | None:
    """What instances usually look like; a certificate is not lost to those that have no numbers."""
    try:
        with working_precision(task.problem):
            return Familiar.of(task.problem, prior, train, task.block)
    except Exception as error:
        report.say(f"monitors will not watch the instances themselves: {named(error)}")
        return None


def looked_at(
    run: Begun, deployed: Rule, data: TestSet
) -> tuple[Evaluated | None, Shifted | None, tuple[str, ...]]:
    """How the rule does on the test set and off the family, and what went wrong there."""
    config, experiment, task, report = run.config, run.experiment, run.task, run.report
    settings = config.evaluate

    def on_test_set() -> Evaluated:
        shown = shown_baselines(config, experiment)
        if experiment.informed is not None:
            shown = shown | dict(experiment.informed(deployed))
        more = (experiment.measures, experiment.external, report)
        return evaluate(settings, task, deployed, shown, experiment.accuracies, data, *more)

    def off_family() -> Shifted:
        shown = {LEARNED: deployed} | experiment.chosen(tuple(experiment.baselines)[:1])
        number = settings.shifted
        return evaluate_shifted(experiment.shifts, task, shown, number, config.seed, report)

    evaluated, wrong = _attempted(run, "evaluate", Evaluated, on_test_set)
    if not (experiment.shifts and settings.shifted):
        return evaluated, None, wrong
    shifted, more = _attempted(run, "shifted", Shifted, off_family)
    return evaluated, shifted, wrong + more


def _attempted(
    run: Begun, name: str, kind: type[Result], compute: Callable[[], Result]
) -> tuple[Result | None, tuple[str, ...]]:
    """A stage that nothing certified rests on: its failure is a sentence and a mark."""
    try:
        return run.stage(name, kind, lambda _: compute()), ()
    except RunFolderError:
        raise
    except Exception as error:  # opponents and measures may be anybody's code
        folder = run.folder
        again = "" if folder is None else f"; surestep resume {folder.path} tries it again"
        sentence = (
            f"The stage {name} failed and is incomplete ({named(error)}). Certificate and solver "
            f"do not depend on it and stand{again}."
        )
        run.report.say(sentence)
        if folder is not None:
            folder.mark(name, state=INCOMPLETE, reason=named(error))
        return None, (sentence,)
