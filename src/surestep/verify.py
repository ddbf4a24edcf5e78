"""Verification: compute a certificate again from what a run stored, and say what stands."""

import dataclasses
import secrets
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from surestep.certificate import Certificate, Statement
from surestep.claims import Plan
from surestep.config import RunConfig
from surestep.experiment import Experiment
from surestep.files import read_json
from surestep.planning import choose_opponents, plan_run
from surestep.problem import working_precision
from surestep.randomness import named_key
from surestep.records import from_plain, to_json
from surestep.rule import Rule, with_hyper
from surestep.split import Split
from surestep.stages.certify import Certified, paper_posterior, race_length
from surestep.stages.sample import Sampled
from surestep.statements import issue
from surestep.store import RunFolder


@dataclasses.dataclass(frozen=True)
class Check:
    """One thing that was verified."""

    name: str
    stands: bool
    reason: str = ""

    def __str__(self) -> str:
        mark = "stands" if self.stands else "FAILS "
        return f"{mark}  {self.name}" + (f": {self.reason}" if self.reason else "")


@dataclasses.dataclass(frozen=True)
class Finished:
    """All that a certificate, a run's own or one on fresh instances, consists of."""

    config: RunConfig[Any]
    experiment: Experiment
    split: Split
    plan: Plan
    prior: Sampled
    found: Certified
    issued: Certificate
    spent: float = 0.0
    """What earlier certificates on the same instances have cost."""

    def rule(self, sample: int) -> Rule:
        """One of the prior's rules."""
        with working_precision(self.experiment.problem):
            rule = self.experiment.create_rule(named_key(self.config.seed, "rule"))
            return with_hyper(rule, jnp.asarray(self.prior.hypers[sample]))


def verify(
    folder: RunFolder,
    config: RunConfig[Any],
    experiment: Experiment,
    rerun: int = 0,
    seed: int | None = None,
) -> list[Check]:
    """Recompute every number of a run's certificate; roll `rerun` random instances out again.

    - The plan is the one that configuration, prior and validation sets give; its budget adds up.
    - Evidence, posterior, solver and data are those that the certificate was issued for.
    - Every statement follows from plan and evidence, to the last digit.
    - Losses that are rolled out again, the deployed rule's and the opponents', agree with the
      stored ones. Which instances is not known beforehand, unless `seed` says so.
    """
    run = Finished(
        config,
        experiment,
        Split.draw(experiment.problem, config.sizes, config.seed),
        read_plan(folder.plan_path),
        folder.load("sample", Sampled),
        folder.load("certify", Certified),
        Certificate.load(folder.certificate_path),
    )
    return checks_of(run, rerun, seed)


def checks_of(run: Finished, rerun: int = 0, seed: int | None = None) -> list[Check]:
    """The same for a certificate that was read already."""
    plan = _planned_again(run)
    shapes = _shapes(run, plan)
    checks = [_same_plan(run, plan), shapes]
    if not shapes.stands:
        # Nothing can be computed from evidence that does not belong to the plan.
        return checks
    again = paper_posterior(plan, run.prior, run.found.evidence)
    rebuilt = issue(run.config.name, plan, run.rule(again.mode), again, run.split)
    checks += [
        _same_posterior(run.found, again),
        *_facts(run.issued, rebuilt),
        *_statements(run.issued, rebuilt),
        _thresholds(run),
    ]
    if rerun > 0:
        checks.append(_rerun(run, plan, again.mode, rerun, seed))
    return checks


def read_plan(path: Path) -> Plan:
    """A plan as it lies there, not its copy: verification is about the file that people see."""
    return from_plain(Plan, read_json(path), "plan")


def _planned_again(run: Finished) -> Plan:
    config, experiment, split = run.config, run.experiment, run.split
    task = config.task(experiment)
    return plan_run(
        config.certify, task, experiment, run.prior, split.prior, split.train.size, run.spent
    )


def _same_plan(run: Finished, plan: Plan) -> Check:
    """The stored plan is the one that could be made before the train set was opened."""
    same = to_json(run.plan) == to_json(plan) and run.found.plan_sha256 == plan.sha256
    reason = "is not the one that the configuration and the prior set give"
    return Check("the plan, and its budget", same, "" if same else reason)


def _shapes(run: Finished, plan: Plan) -> Check:
    """The evidence has the form that the plan asks for."""
    samples, size = len(run.prior.hypers), plan.train_size
    hits, opponents = plan.hits, len(plan.opponents)
    evidence = run.found.evidence
    wanted = {
        "losses": (samples, size, len(plan.iterations)),
        "thresholds": (size,),
        "hits": (samples, size, hits),
        "opponent_losses": (opponents, size),
        "opponent_hits": (opponents, size, hits),
        "statistics": (samples, size, len(plan.statistics)),
    }
    wrong = [name for name, shape in wanted.items() if getattr(evidence, name).shape != shape]
    reason = f"{', '.join(wrong)} do not have the plan's shape" if wrong else ""
    return Check("the evidence belongs to the plan", not wrong, reason)


def _same_posterior(found: Certified, again: Certified) -> Check:
    wrong = [
        field.name
        for field in dataclasses.fields(Certified)
        if not np.array_equal(getattr(found, field.name), getattr(again, field.name))
    ]
    reason = f"{', '.join(wrong)} do not follow from the evidence" if wrong else ""
    return Check("posterior, deployed rule and the paper's bound", not wrong, reason)


_FACTS = {
    "schema": "the schema's version",
    "problem": "the problem's name",
    "horizon": "the horizon",
    "epsilon": "epsilon",
    "ledger": "the ledger",
    "deployed_sample": "which sample is deployed",
    "solver_sha256": "the deployed rule's weights",
    "plan_sha256": "the plan's hash",
    "evidence_sha256": "the evidence (train losses)",
    "data_sha256": "the data sets",
    "sizes": "the sizes of the data sets",
}


def _facts(issued: Certificate, rebuilt: Certificate) -> list[Check]:
    same = {name: getattr(issued, name) == getattr(rebuilt, name) for name in _FACTS}
    reason = "not what the certificate was issued for"
    return [
        Check(words, same[name], "" if same[name] else reason) for name, words in _FACTS.items()
    ]


def _statements(issued: Certificate, rebuilt: Certificate) -> list[Check]:
    expected = {statement.name: statement for statement in rebuilt.statements}
    checks = [
        _same_statement(statement, expected.pop(statement.name, None))
        for statement in issued.statements
    ]
    missing = [Check(f"statement: {name}", False, "is missing") for name in expected]
    return checks + missing


def _same_statement(issued: Statement, rebuilt: Statement | None) -> Check:
    name = f"statement: {issued.name}"
    if rebuilt is None:
        return Check(name, False, "is not in the plan, or there twice")
    for field in dataclasses.fields(Statement):
        found, wanted = getattr(issued, field.name), getattr(rebuilt, field.name)
        # As text, because lists and tuples are the same there.
        if to_json({"": found}) != to_json({"": wanted}):
            shown = f"{found!r}, recomputed {wanted!r}" if field.name != "details" else "other"
            return Check(name, False, f"{field.name} is {shown}")
    return Check(name, True)


def _thresholds(run: Finished) -> Check:
    again = run.config.task(run.experiment).thresholds(run.split.train)
    good = np.allclose(again, run.found.thresholds, rtol=1e-9, atol=0)
    return Check("the goal on every train instance", bool(good), "" if good else "differs")


def _rerun(run: Finished, plan: Plan, deployed: int, number: int, seed: int | None) -> Check:
    """Roll the train set out again and compare random instances of it."""
    seed = secrets.randbits(32) if seed is None else seed
    train, found = run.split.train, run.found
    chosen = np.random.default_rng(seed).choice(train.size, min(number, train.size), replace=False)
    task = run.config.task(run.experiment)
    # The whole set, because the same batch rounds in the same way.
    losses, hits, statistics = task.observe(
        run.rule(deployed), train, plan.iterations, plan.hit_tolerances, plan.hits_goal
    )
    rounding = {"float64": 1e-6, "float32": 1e-3}[run.experiment.problem.precision]

    def _close(found: np.ndarray, stored: np.ndarray) -> np.ndarray:
        if plan.bounded:
            return _close_sizes(found, stored)
        return _close_anywhere(found, stored, rounding)

    bad = ~_close(losses, found.losses[deployed]).all(axis=1)
    bad |= (hits != found.hits[deployed]).any(axis=1)
    bad |= ~np.isclose(statistics, found.statistics[deployed], rtol=1e-3, atol=1e-6).all(axis=1)
    race = (plan.horizon, race_length(plan.horizon, found.hits))
    opponents = choose_opponents(run.config.certify, run.experiment)
    for i, name in enumerate(plan.opponents):
        seen, hits, _ = task.observe(
            opponents[name], train, race, plan.hit_tolerances, plan.hits_goal
        )
        bad |= ~_close(seen[:, :1], found.opponent_losses[i][:, None])[:, 0]
        bad |= (hits != found.opponent_hits[i]).any(axis=1)
    name = f"{len(chosen)} instances rolled out again (chosen by seed {seed})"
    wrong = np.sort(chosen[bad[chosen]])
    if not wrong.size:
        return Check(name, True)
    return Check(name, False, f"{wrong.size} differ from what is stored, first {wrong[0]}")


def _close_anywhere(found: np.ndarray, stored: np.ndarray, rounding: float) -> np.ndarray:
    """Losses that may be negative: equal beside the largest of the instance's, to rounding."""
    both = np.isinf(found) & np.isinf(stored)
    scale = np.max(np.abs(np.where(np.isfinite(stored), stored, 0.0)), axis=1, keepdims=True)
    with np.errstate(invalid="ignore"):
        return both | (np.abs(found - stored) <= rounding * scale)


def _close_sizes(found: np.ndarray, stored: np.ndarray) -> np.ndarray:
    """Equal in digits; tiny losses, which rounding on another machine moves, in order of size."""
    both = np.isinf(found) & np.isinf(stored)
    digits = np.isclose(found, stored, rtol=1e-3, atol=0)
    scale = np.maximum(stored[:, :1], 1e-300)
    tiny = np.maximum(found, stored) < 1e-9 * scale
    with np.errstate(divide="ignore", invalid="ignore"):
        apart = np.abs(np.log10(np.maximum(found, 1e-30) / np.maximum(stored, 1e-30)))
    return both | digits | (tiny & (apart < 2))
