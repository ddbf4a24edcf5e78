"""`surestep certify`: a later certificate for a trained rule, or one for a classical rule."""

import dataclasses
from pathlib import Path
from typing import Annotated

import tyro

from surestep.base.errors import ConfigurationError
from surestep.cli.arguments import parse, unset
from surestep.cli.joining import TOGETHER, alone_or_together
from surestep.cli.reporting import reporter
from surestep.cli.stored_run import OwnFile, open_run
from surestep.cli.workers import subject_of
from surestep.paper import registry
from surestep.problem import PriorSet, SealedTrainSet, fresh_instances
from surestep.rollout.batched import BLOCK
from surestep.run.distributed import Leader
from surestep.run.fresh import certify_again, certify_rule
from surestep.train import Task


@dataclasses.dataclass(frozen=True, kw_only=True)
class Arguments(OwnFile):
    """Certify a trained rule again on fresh instances, or one of a problem's classical rules."""

    subject: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="DIR|PROBLEM")]
    """A run's folder, or a problem."""
    instances: Annotated[str | None, unset("SEED|FILE.npz|DIR")] = None
    """A seed to draw fresh instances, or a file of them."""
    deployed: bool = False
    """The deployed rule alone."""
    rule: Annotated[str | None, unset("NAME")] = None
    """The classical rule of a problem to certify."""
    preset: str = "quick"
    """Whose goal and sizes to use."""
    horizon: Annotated[int, unset("N")] = 0
    """Iterations (the preset's)."""
    size: Annotated[int, unset("N")] = 0
    """Instances to draw (the preset's)."""
    epsilon: float = 0.05
    """What it may cost."""
    seed: int = 0
    """Seed of a classical rule's data."""


def main(words: list[str]) -> int:
    """Carry out the command, alone or with other processes."""
    return alone_or_together(words, carry_out)


def carry_out(words: list[str], leader: Leader | None) -> int:
    """Certify what the words name."""
    given = parse(Arguments, words, "surestep certify", f"{Arguments.__doc__} {TOGETHER}")
    if min(given.size, given.horizon, given.seed) < 0:
        raise ConfigurationError("--size, --horizon and --seed must not be negative")
    if given.rule is not None:
        if leader is not None or given.deployed:
            raise ConfigurationError("a classical rule is certified by one process, and alone")
        certify_classical(given, given.rule)
    elif given.instances is not None:
        certify_fresh(given, given.instances, leader)
    else:
        raise ConfigurationError(
            "say what to certify: a run's folder on --instances, or a problem's --rule"
        )
    return 0


def certify_fresh(given: Arguments, instances: str, leader: Leader | None) -> None:
    """Certify a trained rule on fresh instances, drawn by a seed or read from a file."""
    report = reporter()
    run, config, experiment = open_run(Path(given.subject), given.problem)
    size = given.size or config.sizes.train
    if leader is not None:
        leader.introduce(subject_of(config, instances, size, given.problem, run))
    wanted = fresh_instances(experiment.problem, instances, size)
    with run.locked():
        document, place = certify_again(
            run, config, experiment, wanted, given.epsilon, report, given.deployed, leader
        )
    print(document)
    print(f"\ncertificate: {place / 'certificate.json'}")


def certify_classical(given: Arguments, rule: str) -> None:
    """Certify one of a problem's classical rules."""
    config = registry.preset(given.subject, given.preset)
    experiment = registry.build(config)
    solver = experiment.chosen((rule,))[rule]
    horizon = given.horizon or config.horizon
    task = Task(experiment.problem, config.goal, config.constraint, horizon, BLOCK)
    document = certify_rule(
        f"{given.subject} ({rule})",
        solver,
        task,
        experiment,
        PriorSet.draw(experiment.problem, config.sizes.prior, given.seed),
        SealedTrainSet(experiment.problem, given.size or config.sizes.train, given.seed),
        dataclasses.replace(config.certify, epsilon=given.epsilon, compared=False),
    )
    print(str(document).replace("rule learned on", "rule on"))
