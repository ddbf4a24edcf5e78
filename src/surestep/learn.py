"""The stages in order: from a problem to a certified rule, with every result kept on the way."""

import dataclasses
import platform
import time
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from surestep.__about__ import __version__
from surestep.certificate import Certificate, certificate
from surestep.check import check_problem
from surestep.config import RunConfig
from surestep.errors import InfeasibleError, RunFolderError
from surestep.experiment import Experiment
from surestep.problem import Problem, Theta, as_instances, working_precision
from surestep.progress import Reporter, Silence
from surestep.randomness import named_key
from surestep.rollout import Reached, Rollout, reach_each, rollouts
from surestep.rule import Rule, hyper_of, require_fit, with_hyper
from surestep.split import Split
from surestep.stages.certify import Certified, certify
from surestep.stages.evaluate import Evaluated, choose_baselines, evaluate
from surestep.stages.imitate import Imitated, imitate
from surestep.stages.locate import Located, locate
from surestep.stages.sample import Sampled, sample
from surestep.store import NoCheckpoint, RunFolder
from surestep.task import Task

Result = TypeVar("Result")


@dataclasses.dataclass(frozen=True)
class Learned:
    """A learned rule, what is certified of it, and how it did on the test set."""

    task: Task
    rule: Rule
    certificate: Certificate
    prior: Sampled
    posterior: Certified
    evaluation: Evaluated

    @property
    def problem(self) -> Problem:
        """The family the rule was learned for."""
        return self.task.problem

    def solve(self, thetas: Theta, iterations: int | None = None) -> Rollout:
        """Iterate on a stacked set of instances, by default as often as the certificate says."""
        with working_precision(self.problem):
            steps = iterations or self.task.horizon
            thetas = as_instances(self.problem, thetas)
            return rollouts(self.rule, self.problem, thetas, steps, self.task.block)

    def solve_to(self, thetas: Theta, accuracy: float, limit: int = 10_000) -> Reached:
        """Iterate on a stacked set of instances until each has reached an accuracy."""
        with working_precision(self.problem):
            target = jnp.asarray(accuracy)
            thetas = as_instances(self.problem, thetas)
            return reach_each(self.rule, self.problem, thetas, target, limit, self.task.block)


def learn(
    config: RunConfig[Any],
    experiment: Experiment,
    folder: RunFolder | None = None,
    report: Reporter | None = None,
) -> Learned:
    """Run all stages; in a folder, go on from what is there already."""
    config.validate()
    choose_baselines(config.evaluate, experiment.baselines)
    report = report or Silence()
    with working_precision(experiment.problem):
        # Everything that can be wrong is found here, before anything is written or computed.
        rule = experiment.create_rule(named_key(config.seed, "rule"))
        require_fit(rule, experiment.problem)
        split = Split.draw(experiment.problem, config.sizes, config.seed)
        check_problem(experiment.problem, split.prior.thetas, config.block)
    if folder is None:
        return _stages(config, experiment, rule, split, None, report)
    with folder.locked():
        folder.claim(config)
        _record_split(folder, split)
        return _stages(config, experiment, rule, split, folder, report)


def _stages(
    config: RunConfig[Any],
    experiment: Experiment,
    rule: Rule,
    split: Split,
    folder: RunFolder | None,
    report: Reporter,
) -> Learned:
    task = Task(experiment.problem, config.goal, config.constraint, config.horizon, config.block)
    seed = config.seed

    def stage(name: str, kind: type[Result], compute: Callable[[Any], Result]) -> Result:
        return _kept(folder, name, kind, compute, report)

    if experiment.teacher is not None:
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
            config.locate, task, start, split.prior, split.validation, seed, checkpoint, report
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
    found = stage(
        "certify",
        Certified,
        lambda checkpoint: certify(
            config.certify, task, rule, prior, split.train, checkpoint, report
        ),
    )
    document = certificate(config.name, config.certify, task, split, prior, found)
    if folder is not None:
        document.save(folder.certificate_path)
    deployed = _at(rule, prior.hypers[found.mode], task)
    evaluated = stage(
        "evaluate",
        Evaluated,
        lambda _: evaluate(
            config.evaluate,
            task,
            deployed,
            experiment.baselines,
            experiment.accuracies.values,
            split.test,
            report,
        ),
    )
    return Learned(task, deployed, document, prior, found, evaluated)


def _at(rule: Rule, hyper: np.ndarray, task: Task) -> Rule:
    with working_precision(task.problem):
        return with_hyper(rule, jnp.asarray(hyper, hyper_of(rule).dtype))


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
        return folder.load(name, kind)
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


def _record_split(folder: RunFolder, split: Split) -> None:
    """Note the data's fingerprints and what computes them; refuse data that changed."""
    found = folder.status().get("data", {})
    hashes = split.fingerprints()
    for name, value in hashes.items():
        if found.get(name, value) != value:
            raise RunFolderError(
                f"the {name} set of the run in {folder.path} cannot be drawn again bit for bit "
                "on this machine or with these versions: go on where it was started"
            )
    folder.mark("data", **hashes)
    folder.mark("made_with", **provenance())


def provenance() -> dict[str, str]:
    """What computes: versions and device."""
    device = jax.devices()[0]
    return {
        "surestep": __version__,
        "jax": jax.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "device": f"{device.platform} {device.device_kind}",
        "machine": platform.machine(),
    }
