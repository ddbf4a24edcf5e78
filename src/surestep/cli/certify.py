"""`surestep certify`: a later certificate for a trained rule, or one for a classical rule."""

import dataclasses
import math
from pathlib import Path
from typing import Annotated

import tyro

from surestep.auto.configure import seconds
from surestep.base.errors import ConfigurationError, VerificationError
from surestep.cli.arguments import parse, require_seed, unset
from surestep.cli.joining import TOGETHER, alone_or_together
from surestep.cli.outcomes import FILES, certify_file, plan_ahead
from surestep.cli.reporting import reporter
from surestep.cli.stored_run import OwnFile, open_run
from surestep.cli.workers import subject_of
from surestep.paper import registry
from surestep.problem import PriorSet, SealedTrainSet, fresh_instances
from surestep.rollout.batched import BLOCK
from surestep.run.charges import MOST_CHARGED
from surestep.run.distributed import Leader
from surestep.run.fresh import certify_again, certify_rule
from surestep.run.until import certify_until
from surestep.train import Task


@dataclasses.dataclass(frozen=True, kw_only=True)
class Arguments(OwnFile):
    """Certify a trained rule again on fresh instances, a classical rule, or anyone's solver."""

    subject: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="DIR|PROBLEM|OUTCOMES")]
    """A run's folder, a problem, or a file of a solver's outcomes (.npz, .csv)."""
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
    """Instances to draw (the preset's), or that a plan for outcomes is made for."""
    until: Annotated[str | None, unset("CLAIM")] = None
    """Draw fresh instances until this is proved: 'within 1e-4 in 50 iterations: 0.999'."""
    budget: Annotated[str | None, unset("2m")] = None
    """Time after which it may be left undecided."""
    most: Annotated[int, unset("N")] = MOST_CHARGED
    """Instances after which it may be."""
    epsilon: float = 0.05
    """What it may cost."""
    seed: int = 0
    """Seed of a classical rule's data, or of the instances of --until."""
    pilot: Annotated[Path | None, unset("FILE")] = None
    """Outcomes on other instances, from which the plan for OUTCOMES is made."""
    claims: Annotated[tuple[str, ...] | None, unset("CLAIM")] = None
    """What is claimed of OUTCOMES, in place of a pilot."""
    out: Annotated[Path | None, unset("DIR")] = None
    """Folder for plan, outcomes, certificate and report; one with a plan needs no pilot."""
    solver: Annotated[str, unset("NAME")] = "the solver"
    """What the solver of OUTCOMES is called."""
    accuracies: Annotated[tuple[float, ...] | None, unset("A")] = None
    """How close to the minimum iterations are certified for."""
    signed: bool = False
    """Losses may be negative."""


def main(words: list[str]) -> int:
    """Carry out the command, alone or with other processes."""
    return alone_or_together(words, carry_out)


def carry_out(words: list[str], leader: Leader | None) -> int:
    """Certify what the words name."""
    given = parse(Arguments, words, "surestep certify", f"{Arguments.__doc__} {TOGETHER}")
    if min(given.size, given.horizon, given.seed) < 0:
        raise ConfigurationError("--size, --horizon and --seed must not be negative")
    about = (given.pilot, given.claims or (), given.solver, given.epsilon, given.accuracies or (),
             given.signed)  # fmt: skip
    if Path(given.subject).suffix in FILES:
        _require_alone(given, leader)
        certify_file(Path(given.subject), given.out, *about)
    elif given.pilot is not None or given.claims:
        _require_alone(given, leader)
        plan_ahead(Path(given.subject), given.size, *about)
    elif given.rule is not None:
        if leader is not None or given.deployed:
            raise ConfigurationError("a classical rule is certified by one process, and alone")
        certify_classical(given, given.rule)
    elif given.until is not None:
        if leader is not None or given.instances is not None or given.size:
            raise ConfigurationError(
                "--until draws its own instances, as many as it takes, in one process: leave out "
                "--instances and --size (--most N is a limit)"
            )
        certify_until_decided(given, given.until)
    elif given.instances is not None:
        certify_fresh(given, given.instances, leader)
    else:
        raise ConfigurationError(
            "say what to certify: a run's folder on --instances or --until, a problem's --rule, or "
            "a file of outcomes (.npz, .csv)"
        )
    return 0


def _require_alone(given: Arguments, leader: Leader | None) -> None:
    others = (given.rule, given.until, given.instances, given.problem or None)
    if leader is not None or given.deployed or any(one is not None for one in others):
        raise ConfigurationError(
            "outcomes are certified by one process, and without --rule, --until, --instances, "
            "--deployed and --problem: nothing is rolled out"
        )


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


def certify_until_decided(given: Arguments, claim: str) -> None:
    """Certify a trained rule on as many fresh instances as a claim takes."""
    require_seed(given.seed)
    budget = math.inf if given.budget is None else seconds(given.budget)
    run, config, experiment = open_run(Path(given.subject), given.problem)
    with run.locked():
        document, place = certify_until(
            run, config, experiment, claim, given.epsilon, budget, given.most, given.seed,
            reporter(),
        )  # fmt: skip
    print(document)
    print(f"\ncertificate: {place / 'certificate.json'}")
    verdict = document.statements[0].details["verdict"]
    if verdict == "undecided":
        raise VerificationError(
            "the claim is undecided; the same command goes on, with another --budget or --most"
        )
    if verdict == "refuted":
        raise VerificationError("the claim is refuted")


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
