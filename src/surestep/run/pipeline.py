"""The stages in order: from a problem to a certified rule, with every result kept on the way."""

import contextlib
import dataclasses
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from surestep.base.errors import ConfigurationError, RunFolderError
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
from surestep.evaluate.off_family import require_same_form
from surestep.problem import Commitment, SealedSplit, check_problem, working_precision
from surestep.rollout.batched import BLOCK
from surestep.rollout.tiles import Crew
from surestep.rules.base import Rule, require_fit, with_hyper
from surestep.run.afterwards import familiar_with, looked_at, shown_baselines
from surestep.run.batch_size import settled
from surestep.run.begun import Begun, probes_of, record_inputs, record_opened
from surestep.run.charges import OWN, charge
from surestep.run.config import RunConfig
from surestep.run.delivered import solver_of
from surestep.run.learned import Learned
from surestep.run.word import require_closed
from surestep.storage.records import to_json
from surestep.storage.run_folder import RunFolder, axes
from surestep.train import Chosen, Experiment, Imitated, Located, Sampled, Task, choose, hyper_at
from surestep.train.imitate import imitate
from surestep.train.locate import locate
from surestep.train.references import minima_to_train_with
from surestep.train.sample import sample


@dataclasses.dataclass(frozen=True)
class Solved:
    """The least losses of the prior set's instances, found once by a trusted solver."""

    minima: np.ndarray = dataclasses.field(metadata=axes("instance"))


@dataclasses.dataclass(frozen=True)
class Planned:
    """What is known before the train set is opened."""

    rule: Rule
    """The rule that hypers are put into."""
    prior: Sampled
    plan: Plan
    sealed: SealedSplit
    seconds: float
    """What learning took."""


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
    with _begun(config, experiment, folder, report, crew) as run:
        return _certify_and_evaluate(run, _plan(run))


def plan_only(
    config: RunConfig[Any],
    experiment: Experiment,
    folder: RunFolder,
    report: Reporter | None = None,
) -> Commitment:
    """The stages up to the plan, and what a verifier is told before giving a word.

    Nobody has seen the train set then. `learn` goes on from there.
    """
    require_closed(folder)
    with _begun(config, experiment, folder, report, None) as run:
        planned = _plan(run)
        return run.config.commitment(planned.plan.sha256)


@contextlib.contextmanager
def _begun(
    config: RunConfig[Any],
    experiment: Experiment,
    folder: RunFolder | None,
    report: Reporter | None,
    crew: Crew | None,
) -> Iterator[Begun]:
    """Validate, draw what is learned from, and claim the folder."""
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
    baselines = shown_baselines(config, experiment)
    baselines |= possible_opponents(config.certify, experiment)
    report = report or Silence()
    with working_precision(experiment.problem):
        # Everything that can be wrong is found here, before anything is written or computed.
        rule = experiment.rule(config.seed)
        for fitting in (rule, experiment.teacher, *baselines.values()):
            if fitting is not None:
                require_fit(fitting, experiment.problem)
        require_same_form(experiment.problem, experiment.shifts)
        sealed = SealedSplit.draw(experiment.problem, config.sizes, config.seed)
        check_problem(experiment.problem, sealed.prior.thetas, config.block or BLOCK)
    config = settled(config, experiment, folder, report)
    run = Begun(config, experiment, rule, sealed, folder, report, crew)
    if folder is None:
        yield run
        return
    with folder.claimed(config):
        record_inputs(folder, sealed, experiment, rule)
        if experiment.race:
            folder.mark("race", **experiment.race)
        yield run


def _plan(run: Begun) -> Planned:
    """Learn from the prior and validation sets, and fix what is going to be certified."""
    config, task, seed = run.config, run.task, run.config.seed
    sealed, rule = _with_minima(run), run.rule
    locating = config.locate
    if config.population.members > 1:
        rule, rate = _best_member(run, sealed)
        locating = dataclasses.replace(locating, learning_rate=locating.learning_rate * rate)
    elif run.experiment.teacher is not None:
        teacher = run.experiment.teacher
        imitated = run.stage(
            "imitate",
            Imitated,
            lambda _: imitate(
                config.imitate, task, run.rule, teacher, sealed.prior, seed, run.report
            ),
        )
        rule = _at(rule, imitated.hyper, task)
    start = rule
    located = run.stage(
        "locate",
        Located,
        lambda checkpoint: locate(
            locating, task, start, sealed.prior, sealed.validation, seed, checkpoint, run.report
        ),
    )
    centre = _at(rule, located.hyper, task)
    prior = run.stage(
        "sample",
        Sampled,
        lambda checkpoint: sample(
            config.sample, task, centre, sealed.prior, sealed.validation, seed, checkpoint,
            run.report,
        ),
    )  # fmt: skip
    spent = _spent(run)
    size, experiment = config.sizes.train, run.experiment
    pilot = run.stage(
        "pilot",
        Pilot,
        lambda _: pilot_run(config.certify, task, experiment, rule, prior, sealed.prior, size),
    )
    plan = plan_run(config.certify, task, experiment, prior, pilot, size)
    if run.folder is not None:
        _fix_plan(run.folder, plan)
    return Planned(rule, prior, plan, sealed, spent)


def _certify_and_evaluate(run: Begun, planned: Planned) -> Learned:
    """Open the train set, certify, and show how the outcome does on the test set."""
    config, experiment, task, folder = run.config, run.experiment, run.task, run.folder
    plan, prior = planned.plan, planned.prior
    split = planned.sealed.open(config.commitment(plan.sha256))
    if folder is not None:
        charge(folder, OWN, plan.epsilon, split.train)
        record_opened(folder, split)
    found = run.stage(
        "certify",
        Certified,
        lambda checkpoint: certify(
            plan,
            task,
            planned.rule,
            prior,
            experiment.chosen(plan.opponents),
            references_for(config.certify, experiment, split.train),
            split.train,
            checkpoint,
            run.report,
            run.crew,
        ),
    )
    deployed = experiment.rule_at(config.seed, prior.hypers[found.deployed_sample])
    probes = probes_of(task.problem, split)
    familiar = familiar_with(task, planned.sealed.prior, split.train, run.report)
    document = issue(config.name, plan, deployed, found, prior, planned.sealed, split.train)
    if folder is not None:
        folder.kept(folder.certificate_path).write(to_json(document))
        # Nothing that is certified is lost to an evaluation that fails or is interrupted.
        solver = solver_of(task, deployed, document, prior, found, probes, familiar)
        solver.save(folder.solver_path)
    evaluated, shifted, incomplete = looked_at(run, deployed, split.test)
    return Learned(
        *(task, deployed, document, prior, found, evaluated, planned.seconds, shifted, probes),
        familiar,
        incomplete,
    )


def _with_minima(run: Begun) -> SealedSplit:
    """The sets, the prior set with the minima that training counts losses from, if it does."""
    if not run.config.training.distances:
        return run.sealed
    solve, prior, task = run.experiment.minima, run.sealed.prior, run.task
    assert solve is not None
    solved = run.stage(
        "minima",
        Solved,
        lambda _: Solved(
            minima_to_train_with(solve, prior.thetas, lambda: task.start_losses(prior))
        ),
    )
    return dataclasses.replace(run.sealed, prior=dataclasses.replace(prior, minima=solved.minima))


def _best_member(run: Begun, sealed: SealedSplit) -> tuple[Rule, float]:
    """The best rule of a population, and what its learning rate is multiplied with."""
    config, task = run.config, run.task
    rules = _members(config, run.experiment, run.rule)
    chosen = run.stage(
        "population",
        Chosen,
        lambda checkpoint: choose(
            config.population,
            config.locate,
            config.imitate,
            task,
            rules,
            run.experiment.teacher,
            sealed.prior,
            config.seed,
            checkpoint,
            run.report,
        ),
    )
    return _at(run.rule, chosen.hyper, task), chosen.rate


def _spent(run: Begun) -> float:
    """The seconds of learning; a folder also knows what earlier processes have spent on it."""
    if run.folder is not None:
        return training_seconds(run.folder.status())
    return time.monotonic() - run.began + float(run.experiment.race.get("seconds", 0.0))


def _members(config: RunConfig[Any], experiment: Experiment, first: Rule) -> list[Rule]:
    """The rules of a population: that of a run without one, and others like it."""
    others = range(1, config.population.members)
    return [first, *(experiment.rule(config.seed, member) for member in others)]


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
