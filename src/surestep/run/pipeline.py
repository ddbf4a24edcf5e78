"""The stages in order: from a problem to a certified rule, with every result kept on the way."""

import dataclasses
import time
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from surestep.base.errors import ConfigurationError, InfeasibleError, RunFolderError
from surestep.base.machine import provenance
from surestep.base.progress import Reporter, Silence
from surestep.certify import (
    Certified,
    Pilot,
    Plan,
    certify,
    issue,
    pilot_run,
    plan_run,
    possible_opponents,
    references_for,
)
from surestep.evaluate.break_even import training_seconds
from surestep.evaluate.evaluated import LEARNED, Evaluated
from surestep.evaluate.off_family import Shifted, evaluate_shifted, require_same_form
from surestep.evaluate.test_set import evaluate
from surestep.evaluate.timing import named
from surestep.problem import Problem, Split, Theta, check_problem, instance, working_precision
from surestep.rollout.batched import BLOCK, rollouts
from surestep.rollout.tiles import Crew
from surestep.rules import GradientDescent
from surestep.rules.base import Rule, require_fit, solver_fingerprint, with_hyper
from surestep.run.batch_size import settled
from surestep.run.charges import OWN, charge, record_hashes
from surestep.run.config import RunConfig
from surestep.run.learned import Learned, solver_of
from surestep.run.stored import INCOMPLETE
from surestep.solver.familiar import Familiar
from surestep.solver.signature import PROBES
from surestep.storage.checkpoint import NoCheckpoint
from surestep.storage.records import to_json
from surestep.storage.run_folder import RunFolder, axes
from surestep.train import Chosen, Experiment, Imitated, Located, Sampled, Task, choose, hyper_at
from surestep.train.imitate import imitate
from surestep.train.locate import locate
from surestep.train.references import minima_to_train_with
from surestep.train.sample import sample

Result = TypeVar("Result")


@dataclasses.dataclass(frozen=True)
class Solved:
    """The least losses of the prior set's instances, found once by a trusted solver."""

    minima: np.ndarray = dataclasses.field(metadata=axes("instance"))


def learn(
    config: RunConfig[Any],
    experiment: Experiment,
    folder: RunFolder | None = None,
    report: Reporter | None = None,
    crew: Crew | None = None,
) -> Learned:
    """Learn a rule, certify it and evaluate it: all stages, in order.

    **Arguments:**

    - `config`: every number of the run, from `surestep.paper.preset` or `surestep.plan_fit`.
    - `experiment`: the problem with its rule and its opponents.
    - `folder`: where results are kept; a run that was interrupted goes on from there.
    - `report`: where progress is told; by default nowhere.
    - `crew`: who rolls out while certifying; by default this process with all its devices.

    **Returns:** a `Learned`.

    **Raises:** `surestep.errors.ConfigurationError` or `surestep.errors.ProblemError` before any
    work is done, `surestep.errors.InfeasibleError` if no rule meets the success constraint, and
    `surestep.errors.RunFolderError` if the folder holds something else.

    **Example:**

    ```python
    config = ss.paper.preset("quadratics", "tiny")
    learned = ss.learn(config, ss.paper.build(config), ss.RunFolder("runs/tiny"))
    ```
    """
    config.validate()
    experiment.validate()
    if config.training.distances and experiment.minima is None:
        raise ConfigurationError(
            "training.distances counts losses from the minima of the prior set's instances, and "
            f"the problem {config.name} has no solver for them"
        )
    config.goal.require_fit(experiment.problem)
    if config.locate.steps and not (experiment.problem.nonnegative or config.training.distances):
        raise ConfigurationError(
            "losses that may be negative are trained on by their distances from the minima of the "
            "prior set's instances: set training.distances"
        )
    baselines = _shown_baselines(config, experiment)
    baselines |= possible_opponents(config.certify, experiment)
    report = report or Silence()
    with working_precision(experiment.problem):
        # Everything that can be wrong is found here, before anything is written or computed.
        rule = experiment.rule(config.seed)
        for fitting in (rule, experiment.teacher, *baselines.values()):
            if fitting is not None:
                require_fit(fitting, experiment.problem)
        require_same_form(experiment.problem, experiment.shifts)
        split = Split.draw(experiment.problem, config.sizes, config.seed)
        check_problem(experiment.problem, split.prior.thetas, config.block or BLOCK)
    config = settled(config, experiment, folder, report)
    if folder is None:
        return _stages(config, experiment, rule, split, None, report, crew)
    with folder.claimed(config):
        _record_inputs(folder, split, experiment, rule)
        if experiment.race:
            folder.mark("race", **experiment.race)
        return _stages(config, experiment, rule, split, folder, report, crew)


def _stages(
    config: RunConfig[Any],
    experiment: Experiment,
    rule: Rule,
    split: Split,
    folder: RunFolder | None,
    report: Reporter,
    crew: Crew | None,
) -> Learned:
    task = config.task(experiment)
    seed = config.seed
    began = time.monotonic()

    def stage(name: str, kind: type[Result], compute: Callable[[Any], Result]) -> Result:
        return _kept(folder, name, kind, compute, report)

    if config.training.distances:
        assert experiment.minima is not None
        solve = experiment.minima
        solved = stage(
            "minima",
            Solved,
            lambda _: Solved(
                minima_to_train_with(
                    solve, split.prior.thetas, lambda: task.start_losses(split.prior)
                )
            ),
        )
        split = dataclasses.replace(
            split, prior=dataclasses.replace(split.prior, minima=solved.minima)
        )
    locating = config.locate
    if config.population.members > 1:
        rules = _members(config, experiment, rule)
        chosen = stage(
            "population",
            Chosen,
            lambda checkpoint: choose(
                config.population,
                config.locate,
                config.imitate,
                task,
                rules,
                experiment.teacher,
                split.prior,
                seed,
                checkpoint,
                report,
            ),
        )
        rule = _at(rule, chosen.hyper, task)
        rate = config.locate.learning_rate * chosen.rate
        locating = dataclasses.replace(config.locate, learning_rate=rate)
    elif experiment.teacher is not None:
        teacher = experiment.teacher
        imitated = stage(
            "imitate",
            Imitated,
            lambda _: imitate(config.imitate, task, rule, teacher, split.prior, seed, report),
        )
        rule = _at(rule, imitated.hyper, task)
    start = rule
    located = stage(
        "locate",
        Located,
        lambda checkpoint: locate(
            locating, task, start, split.prior, split.validation, seed, checkpoint, report
        ),
    )
    centre = _at(rule, located.hyper, task)
    prior = stage(
        "sample",
        Sampled,
        lambda checkpoint: sample(
            config.sample, task, centre, split.prior, split.validation, seed, checkpoint, report
        ),
    )
    # A folder also knows what earlier runs have spent on it.
    spent = time.monotonic() - began if folder is None else training_seconds(folder.status())
    if folder is None:
        spent += float(experiment.race.get("seconds", 0.0))
    size = split.train.size
    pilot = stage(
        "pilot",
        Pilot,
        lambda _: pilot_run(config.certify, task, experiment, rule, prior, split.prior, size),
    )
    plan = plan_run(config.certify, task, experiment, prior, pilot, size)
    if folder is not None:
        _fix_plan(folder, plan)
        charge(folder, OWN, plan.epsilon, split.train)
    found = stage(
        "certify",
        Certified,
        lambda checkpoint: certify(
            plan,
            task,
            rule,
            prior,
            experiment.chosen(plan.opponents),
            references_for(config.certify, experiment, split.train),
            split.train,
            checkpoint,
            report,
            crew,
        ),
    )
    deployed = experiment.rule_at(seed, prior.hypers[found.deployed_sample])
    probes = _probes(task.problem, split)
    familiar = _familiar(task, split, report)
    document = issue(config.name, plan, deployed, found, split)
    if folder is not None:
        folder.kept(folder.certificate_path).write(to_json(document))
        # Nothing that is certified is lost to an evaluation that fails or is interrupted.
        solver = solver_of(task, deployed, document, prior, found, probes, familiar)
        solver.save(folder.solver_path)
    evaluated, shifted, incomplete = _evaluation(
        config, experiment, task, deployed, split, folder, report
    )
    return Learned(
        *(task, deployed, document, prior, found, evaluated, spent, shifted, probes, familiar),
        incomplete,
    )


def _familiar(task: Task, split: Split, report: Reporter) -> Familiar | None:
    """What instances usually look like; a certificate is not lost to those that have no numbers."""
    try:
        with working_precision(task.problem):
            return Familiar.of(task.problem, split.prior, split.train, task.block)
    except Exception as error:
        report.say(f"monitors will not watch the instances themselves: {named(error)}")
        return None


def _evaluation(
    config: RunConfig[Any],
    experiment: Experiment,
    task: Task,
    deployed: Rule,
    split: Split,
    folder: RunFolder | None,
    report: Reporter,
) -> tuple[Evaluated | None, Shifted | None, tuple[str, ...]]:
    """How the rule does on the test set and off the family, and what went wrong there."""
    settings = config.evaluate

    def on_test_set() -> Evaluated:
        shown = _shown_baselines(config, experiment)
        if experiment.informed is not None:
            shown = shown | dict(experiment.informed(deployed))
        more = (experiment.measures, experiment.external, report)
        return evaluate(settings, task, deployed, shown, experiment.accuracies, split.test, *more)

    def off_family() -> Shifted:
        shown = {LEARNED: deployed} | experiment.chosen(tuple(experiment.baselines)[:1])
        number = settings.shifted
        return evaluate_shifted(experiment.shifts, task, shown, number, config.seed, report)

    evaluated, wrong = _attempted(folder, "evaluate", Evaluated, on_test_set, report)
    if not (experiment.shifts and settings.shifted):
        return evaluated, None, wrong
    shifted, more = _attempted(folder, "shifted", Shifted, off_family, report)
    return evaluated, shifted, wrong + more


def _attempted(
    folder: RunFolder | None,
    name: str,
    kind: type[Result],
    compute: Callable[[], Result],
    report: Reporter,
) -> tuple[Result | None, tuple[str, ...]]:
    """A stage that nothing certified rests on: its failure is a sentence and a mark."""
    try:
        return _kept(folder, name, kind, lambda _: compute(), report), ()
    except RunFolderError:
        raise
    except Exception as error:  # opponents and measures may be anybody's code
        again = "" if folder is None else f"; surestep resume {folder.path} tries it again"
        sentence = (
            f"The stage {name} failed and is incomplete ({named(error)}). Certificate and solver "
            f"do not depend on it and stand{again}."
        )
        report.say(sentence)
        if folder is not None:
            folder.mark(name, state=INCOMPLETE, reason=named(error))
        return None, (sentence,)


def _members(config: RunConfig[Any], experiment: Experiment, first: Rule) -> list[Rule]:
    """The rules of a population: that of a run without one, and others like it."""
    others = range(1, config.population.members)
    return [first, *(experiment.rule(config.seed, member) for member in others)]


def _shown_baselines(config: RunConfig[Any], experiment: Experiment) -> dict[str, Rule]:
    return experiment.chosen(config.evaluate.baselines or experiment.baselines)


def _fix_plan(folder: RunFolder, plan: Plan) -> None:
    """Write the plan down before the train set is opened; a plan that changed is refused."""
    kept = folder.kept(folder.plan_path)
    if kept.exists():
        if kept.read() != to_json(plan):
            raise RunFolderError(
                f"{folder.plan_path} holds another plan than this run would make: the plan is "
                "fixed before the train set is opened and cannot change afterwards"
            )
        return
    kept.write(to_json(plan))


def _at(rule: Rule, hyper: np.ndarray, task: Task) -> Rule:
    with working_precision(task.problem):
        return with_hyper(rule, hyper_at(rule, hyper))


def _kept(
    folder: RunFolder | None,
    name: str,
    kind: type[Result],
    compute: Callable[[Any], Result],
    report: Reporter,
) -> Result:
    """A stage's result: from the folder if it is there, computed and put there if not."""
    if folder is None:
        return compute(NoCheckpoint())
    if folder.has(name):
        report.say(f"{name}: found in {folder.path}")
        try:
            result = folder.load(name, kind)
        except RunFolderError as error:
            raise RunFolderError(
                f"{error}. Remove the file, and the same command computes it again"
            ) from error
        if folder.status().get(name, {}).get("state") != "done":
            # Interrupted between the result and the note that it is there.
            folder.save(name, result)
            folder.mark(name, state="done")
        return result
    folder.mark(name, state="running")
    began = time.monotonic()
    try:
        result = compute(folder.checkpoint(name))
    except InfeasibleError as error:
        folder.mark(name, state="infeasible", reason=str(error))
        raise
    folder.save(name, result)
    folder.mark(name, state="done", seconds=round(time.monotonic() - began, 3))
    return result


def _record_inputs(folder: RunFolder, split: Split, experiment: Experiment, rule: Rule) -> None:
    """Note fingerprints of data and experiment and what computes; refuse what has changed."""
    found = folder.status().get("inputs", {})
    inputs = split.fingerprints() | {"experiment": _fingerprint(experiment, rule, split)}
    for name, value in inputs.items():
        if found.get(name, value) != value:
            raise RunFolderError(
                f"the run in {folder.path} was begun with another {name}: its problem, rules or "
                "code have changed, or this machine or these versions compute other bits. Choose "
                "another folder, or go on where and as it was started"
            )
    folder.mark("inputs", **inputs)
    record_hashes(folder, split)
    before = folder.status().get("made_with", {}).get("environments", [])
    if provenance() not in before and not folder.has("certify"):
        folder.mark("made_with", environments=[*before, provenance()])


def _fingerprint(experiment: Experiment, rule: Rule, split: Split) -> str:
    """What the problem computes at the start and beside it, its data, every rule's numbers."""
    with working_precision(experiment.problem):
        few = _probes(experiment.problem, split)
        probe = rollouts(GradientDescent(1e-3), experiment.problem, few, 2, PROBES)
    rules = (rule, experiment.teacher, dict(experiment.baselines))
    return solver_fingerprint((rules, experiment.accuracies.values, probe, experiment.pool))


def _probes(problem: Problem, split: Split) -> Theta:
    """The prior set's first instances."""
    with working_precision(problem):
        return instance(split.prior.thetas, np.arange(min(PROBES, split.prior.size)))
