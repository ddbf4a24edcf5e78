"""What the commands around certificates do, once their arguments are known."""

import dataclasses
import sys
from pathlib import Path

import numpy as np

from surestep.base.errors import ConfigurationError, VerificationError, unknown
from surestep.base.progress import Reporter
from surestep.bounds.sizes import best_failure, needed_size
from surestep.certify.audit import FAMILIES, Outcome, audit, violations
from surestep.certify.certificate import Certificate
from surestep.cli.workers import subject_of
from surestep.paper import registry
from surestep.paper.figures import FIGURES
from surestep.paper.figures.experiments import experiments
from surestep.problem.datasets import PriorSet, TrainSet
from surestep.report import write_report
from surestep.report.draw import save_figure
from surestep.report.figures import Figure, Line, Mark, Panel
from surestep.rollout.batched import BLOCK
from surestep.run.distributed import Leader
from surestep.run.fresh import certify_again, certify_rule, fresh_instances
from surestep.run.stored import read_learned, require_finished
from surestep.run.verify.fresh import verify_fresh
from surestep.run.verify.run import made_elsewhere, verify
from surestep.solver.monitor import Monitor
from surestep.storage.files import exclusive
from surestep.storage.run_folder import RunFolder
from surestep.train.task import Task


def verify_run(folder: Path, rerun: int, own_file: str = "") -> None:
    """Recompute a run's certificates and say which statements stand."""
    run = RunFolder(folder)
    config = registry.read_config(run)
    experiment = registry.build(config, own_file)
    if made_elsewhere(run):
        print(
            "made by other versions or on another kind of machine: what is computed from the "
            "instances again is compared to rounding"
        )
    checks = verify(run, config, experiment, rerun) + verify_fresh(run, config, experiment, rerun)
    for check in checks:
        print(check)
    failed = [check for check in checks if not check.stands]
    if failed:
        raise VerificationError(f"{len(failed)} of {len(checks)} checks fail in {folder}")
    print(f"all {len(checks)} checks stand")


def report_again(folder: Path, own_file: str = "") -> None:
    """Write the page and the figures of a run that has ended, from what it has stored."""
    run = RunFolder(folder)
    config = registry.read_config(run)
    require_finished(run)
    experiment = registry.build(config, own_file)
    with run.locked():
        learned = read_learned(config, experiment, run)
        pictures = registry.draw(config, experiment, learned, run.figures)
        paths = write_report(learned, run, pictures)
    for name, path in paths.items():
        print(f"{name + ':':<13}{path}")


def certify_fresh(
    folder: Path,
    instances: str,
    size: int,
    epsilon: float,
    report: Reporter,
    own_file: str = "",
    deployed: bool = False,
    leader: Leader | None = None,
) -> None:
    """Certify a trained rule on fresh instances, drawn by a seed or read from a file."""
    run = RunFolder(folder)
    config = registry.read_config(run)
    experiment = registry.build(config, own_file)
    size = size or config.sizes.train
    if leader is not None:
        leader.introduce(subject_of(config, instances, size, own_file))
    train = fresh_instances(experiment.problem, instances, size)
    with run.locked():
        document, place = certify_again(
            run, config, experiment, train, epsilon, report, deployed, leader
        )
    print(document)
    print(f"\ncertificate: {place / 'certificate.json'}")


def certify_baseline(
    problem: str, preset: str, rule: str, horizon: int, size: int, epsilon: float, seed: int
) -> Certificate:
    """Certify one of a problem's classical rules."""
    config = registry.preset(problem, preset)
    experiment = registry.build(config)
    solver = experiment.chosen((rule,))[rule]
    task = Task(
        experiment.problem, config.goal, config.constraint, horizon or config.horizon, BLOCK
    )
    document = certify_rule(
        f"{problem} ({rule})",
        solver,
        task,
        {},
        PriorSet.draw(experiment.problem, config.sizes.prior, seed),
        TrainSet.draw(experiment.problem, size or config.sizes.train, seed),
        dataclasses.replace(config.certify, epsilon=epsilon),
        experiment.goal_second_moment,
    )
    print(str(document).replace("rule learned on", "rule on"))
    return document


def plan_sizes(
    failure: float,
    confidence: float,
    samples: int,
    stake: float,
    observed: float,
    share: float,
    curve: Path | None,
) -> None:
    """How many train instances a failure probability needs, and what sizes can certify."""
    if not 0 < confidence < 1:
        raise ConfigurationError(f"confidence must lie strictly between 0 and 1, not {confidence}")
    if samples < 1:
        raise ConfigurationError(f"at least one sample is needed, not {samples}")
    if not 0 < share <= 1:
        raise ConfigurationError(f"a share of epsilon must lie in (0, 1], not {share}")
    epsilon = share * (1 - confidence)
    print(
        f"With {share:.3g} of epsilon for the statement about the goal, as in a run (--share 1 if "
        "it is the only one):"
    )
    weights = {
        f"the sample that {stake:.0%} of the prior bets on": stake + (1 - stake) / samples,
        f"one of {samples} equal samples": 1 / samples,
    }
    for words, weight in weights.items():
        size = needed_size(failure, epsilon, weight, observed)
        print(
            f"{size} train instances certify a failure probability of {failure:g} with confidence "
            f"{confidence:g} for {words}, if it fails on "
            + (f"{observed:.2%} of them." if observed else "none of them.")
        )
    sizes = [50, 100, 250, 500, 1000, 2500, 10_000]
    print("\nWhat so many instances can certify at best:")
    print(f"{'instances':>12}" + "".join(f"{f'weight {w:.3g}':>16}" for w in weights.values()))
    for size in sizes:
        cells = "".join(
            f"{best_failure(size, epsilon, w, observed):>16.4g}" for w in weights.values()
        )
        print(f"{size:>12}{cells}")
    if curve:
        _draw_curve(failure, epsilon, weights, observed, curve)


def _draw_curve(
    failure: float, epsilon: float, weights: dict[str, float], observed: float, folder: Path
) -> None:
    sizes = np.unique(np.geomspace(10, 20_000, 120).astype(int))
    needed = {words: needed_size(failure, epsilon, w, observed) for words, w in weights.items()}
    panel = Panel(
        title="What a train set can certify",
        x_label="train instances",
        y_label="failure probability",
        x_scale="log",
        y_scale="log",
        lines=[
            Line(words, words, sizes.astype(float).tolist(),
                 [best_failure(int(n), epsilon, w, observed) for n in sizes])
            for words, w in weights.items()
        ],
        marks=[
            Mark(f"{needed[words]} instances", words, float(needed[words])) for words in weights
        ],
    )  # fmt: skip
    figure = Figure("plan", f"Certificates with confidence {1 - epsilon:g}", list(weights), [panel])
    for path in save_figure(figure, folder):
        print(path)


def run_audit(repeats: int, size: int, epsilon: float, seed: int) -> None:
    """Audit the real path from evidence to statements on families whose truth is known."""
    outcomes: list[Outcome] = []
    head = f"{'family':<20}{'statement':<26}{'false':>12}{'epsilon':>10}{'95% interval':>18}"
    print(f"{head}{'bound - truth':>16}")
    for make in FAMILIES.values():
        for outcome in audit(make(), repeats, size, epsilon, seed):
            outcomes.append(outcome)
            low, high = outcome.interval
            print(
                f"{outcome.family:<20}{outcome.statement:<26}"
                f"{f'{outcome.false}/{outcome.repeats}':>12}{outcome.epsilon:>10.4f}"
                f"{f'{low:.4f} - {high:.4f}':>18}{outcome.looseness:>16.4g}"
            )
    found = violations(outcomes)
    if found:
        names = ", ".join(f"{o.statement} ({o.family})" for o in found)
        raise VerificationError(f"false more often than their epsilon: {names}")
    print("no statement is false more often than its epsilon")


def draw_figure(name: str, seed: int, runs: list[Path], out: Path, report: Reporter) -> None:
    """Make one of the paper's small figures."""
    if name == "experiments":
        figure = experiments(runs)
    elif name in FIGURES:
        figure = FIGURES[name](seed, report)
    else:
        raise ConfigurationError(unknown("figure", name, (*FIGURES, "experiments")))
    for path in save_figure(figure, out):
        print(path)


def write_run_table(folder: Path, out: Path) -> None:
    """Write a run's evaluation as a table."""
    from surestep.report import tables  # noqa: PLC0415 (pandas: for this command alone)

    tables.require_format(out)
    run = RunFolder(folder)
    config = registry.read_config(run)
    rows = tables.table_of_run(run, config.name, f"{config.preset}, seed {config.seed}")
    tables.write_table(rows, out)
    print(f"{len(rows)} rows: {out}")


def watch(state: Path, failure: float | None, delta: float) -> None:
    """Feed a monitor with outcomes from standard input, one a line."""
    if failure is None and not state.exists():
        raise ConfigurationError(f"{state} is new: say which failure probability is certified")
    # Two that feed one state would each forget what the other has seen.
    with exclusive(state.with_name(f".{state.name}.lock"), state):
        _feed(state, failure, delta)


def _feed(state: Path, failure: float | None, delta: float) -> None:
    if state.exists():
        monitor = Monitor.load(state)
        if failure not in (None, monitor.failure):
            raise ConfigurationError(
                f"{state} watches a failure probability of {monitor.failure:g}, not {failure:g}"
            )
    else:
        assert failure is not None
        monitor = Monitor(failure, delta)
    try:
        outcomes = [float(line) for line in sys.stdin.read().split()]
    except ValueError as error:
        raise ConfigurationError(f"outcomes are numbers from 0 to 1: {error}") from error
    monitor = monitor.fed(outcomes)
    monitor.save(state)
    print(monitor)
    if monitor.alarm:
        raise VerificationError("the certificate is no longer credible")
