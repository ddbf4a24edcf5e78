"""Verification: compute a certificate again from what a run stored, and say what stands."""

import dataclasses
import secrets
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Int

from surestep.base.machine import provenance
from surestep.certify import (
    Certificate,
    Certified,
    Plan,
    Statement,
    find_posterior,
    issue,
    pilot_run,
    plan_run,
    race_length,
    references_for,
    traits_on,
)
from surestep.problem import (
    DataSet,
    Split,
    StockedProblem,
    StreamedTrainSet,
    TrainSet,
    reached,
    working_precision,
)
from surestep.rollout.observe import REACHED, Observed, Watch
from surestep.rollout.rounding import (
    EXACT,
    PERTURBATIONS,
    STATISTICS,
    Kind,
    Perturbed,
    agree,
    explained,
    explained_hits,
    losses_kind,
    perturbed_rule,
)
from surestep.rollout.tiles import observe_all
from surestep.rules.base import AnyRule, Rule
from surestep.run.config import RunConfig
from surestep.storage.files import read_json
from surestep.storage.records import from_plain, to_json, to_plain
from surestep.storage.run_folder import RunFolder
from surestep.train import Experiment, Sampled

_FEW = 64
"""How many instances are rolled out again of what was made elsewhere, if nobody asks for more."""
_PRECISION = {"float64": 1e-6, "float32": 1e-3}


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
    elsewhere: bool = False
    """Whether it was computed by other versions or on another kind of machine than this."""

    @property
    def rounding(self) -> float:
        """How much numbers may differ that are computed from the instances again."""
        if not self.elsewhere:
            return 1e-9
        return {"float64": 1e-9, "float32": 1e-4}[self.experiment.problem.precision]

    def rule(self, sample: int) -> Rule:
        """One of the prior's rules."""
        return self.experiment.rule_at(self.config.seed, self.prior.hypers[sample])


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

    Other versions and other kinds of machines round otherwise. What was made elsewhere is compared
    to rounding, and losses to what a last bit of the instances makes of them here; some are always
    rolled out, because the hashes of instances that are drawn again say nothing there.
    """
    run = Finished(
        config,
        experiment,
        Split.draw(experiment.problem, config.sizes, config.seed),
        read_plan(folder.plan_path),
        folder.load("sample", Sampled),
        folder.load("certify", Certified),
        Certificate.load(folder.certificate_path),
        elsewhere=made_elsewhere(folder),
    )
    return checks_of(run, rerun, seed)


def made_elsewhere(folder: RunFolder) -> bool:
    """Whether nothing in a folder was computed by these versions on such a machine."""
    return provenance() not in folder.status().get("made_with", {}).get("environments", [])


def checks_of(run: Finished, rerun: int = 0, seed: int | None = None) -> list[Check]:
    """The same for a certificate that was read already."""
    plan = _planned_again(run)
    if run.elsewhere and _agrees(run.plan, plan, run.rounding):
        # To rounding this is the plan; what follows from it is compared to the last digits.
        plan = run.plan
    shapes = _shapes(run, plan)
    checks = [_same_plan(run, plan), shapes]
    if not shapes.stands:
        # Nothing can be computed from evidence that does not belong to the plan.
        return checks
    again = find_posterior(plan, run.prior, run.found.evidence)
    rebuilt = issue(run.config.name, plan, run.rule(again.deployed_sample), again, run.split)
    checks += [
        _same_posterior(run.found, again, run.elsewhere),
        *_facts(run, rebuilt),
        *_statements(run.issued, rebuilt, run.elsewhere),
        _thresholds(run),
        _references(run),
        _traits(run, plan),
    ]
    if run.elsewhere:
        # Hashes of instances that are drawn again say nothing: what rules do on them does.
        rerun = max(rerun, _FEW)
    if rerun > 0:
        checks.append(_rerun(run, plan, again.deployed_sample, rerun, seed))
    return checks


def read_plan(path: Path) -> Plan:
    """A plan as it lies there, not its copy: verification is about the file that people see."""
    return from_plain(Plan, read_json(path), "plan")


def _planned_again(run: Finished) -> Plan:
    config, experiment, split = run.config, run.experiment, run.split
    task = config.task(experiment)
    size, rule = split.train.size, experiment.rule(config.seed)
    pilot = pilot_run(config.certify, task, experiment, rule, run.prior, split.prior, size)
    return plan_run(config.certify, task, experiment, run.prior, pilot, size, run.spent)


def _agrees(stored: Plan, again: Plan, rounding: float) -> bool:
    """Only the numbers of claims come from instances; all else follows from what is stored."""
    bare = [to_plain(dataclasses.replace(plan, claims=(), traits=())) for plan in (stored, again)]
    claims = [to_plain((plan.claims, plan.traits)) for plan in (stored, again)]
    return agree(bare[0], bare[1], 1e-12) and agree(claims[0], claims[1], rounding)


def _same_plan(run: Finished, plan: Plan) -> Check:
    """The stored plan is the one that could be made before the train set was opened."""
    same = to_json(run.plan) == to_json(plan) and run.found.plan_sha256 == plan.sha256
    reason = "is not the one that the configuration and the prior set give"
    return Check("the plan, and its budget", same, "" if same else reason)


def _shapes(run: Finished, plan: Plan) -> Check:
    """The evidence has the form that the plan asks for."""
    samples, size = len(run.prior.hypers), plan.train_size
    entries, opponents = REACHED * len(plan.targets), len(plan.opponents)
    evidence = run.found.evidence
    wanted = {
        "losses": (samples, size, len(plan.iterations)),
        "thresholds": (size,),
        "references": (size,),
        "starts": (size,),
        "reach": (samples, size, entries),
        "opponent_losses": (opponents, size),
        "opponent_reach": (opponents, size, entries),
        "statistics": (samples, size, len(plan.statistics)),
        "traits": (size, len(plan.traits)),
    }
    wrong = [name for name, shape in wanted.items() if getattr(evidence, name).shape != shape]
    if not wrong:
        # A loss that is no number would be above no tolerance.
        undefined = [name for name in wanted if np.isnan(getattr(evidence, name)).any()]
        reason = f"{', '.join(undefined)} hold what is no number" if undefined else ""
        return Check("the evidence belongs to the plan", not undefined, reason)
    reason = f"{', '.join(wrong)} do not have the plan's shape"
    return Check("the evidence belongs to the plan", False, reason)


def _same_posterior(found: Certified, again: Certified, elsewhere: bool) -> Check:
    def same(name: str) -> bool:
        one, other = getattr(found, name), getattr(again, name)
        if not elsewhere or np.asarray(one).dtype.kind != "f" or np.shape(one) != np.shape(other):
            return np.array_equal(one, other)
        # Logarithms of weights near 1 are what is left of a difference.
        least = 1e-9 if "log_" in name else 0.0
        return np.allclose(one, other, 1e-9, least, equal_nan=True)

    names = [field.name for field in dataclasses.fields(Certified)]
    wrong = [name for name in names if name != "evidence" and not same(name)]
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


def _facts(run: Finished, rebuilt: Certificate) -> list[Check]:
    same = {name: getattr(run.issued, name) == getattr(rebuilt, name) for name in _FACTS}
    if run.elsewhere:
        same["data_sha256"] |= _same_data(run, rebuilt)
    reason = "not what the certificate was issued for"
    return [
        Check(words, same[name], "" if same[name] else reason) for name, words in _FACTS.items()
    ]


def _same_data(run: Finished, rebuilt: Certificate) -> bool:
    """Drawn again, instances have other last bits: what is known of them says if they are the same.

    The goal on every train instance is compared elsewhere; those of the prior set are here, by
    their goals and by where the deployed rule ends on them.
    """
    issued, again = run.issued.data_sha256, rebuilt.data_sha256
    kept = run.split.train.seed is None or isinstance(run.experiment.problem, StockedProblem)
    if issued.keys() != again.keys() or (kept and issued["train"] != again["train"]):
        return False
    task, prior = run.config.task(run.experiment), run.split.prior
    here, known = task.thresholds(prior), run.prior.prior_thresholds
    if here.shape != known.shape or not np.allclose(here, known, run.rounding, 0):
        return False

    def ends(rule: Rule, data: DataSet) -> np.ndarray:
        return task.observe(rule, data, task.watch((task.horizon,))).losses

    rule = run.rule(run.found.deployed_sample)
    perturbed = [ends(*other) for other in _perturbed(rule, prior)]
    stored = run.prior.prior_losses[run.found.deployed_sample][:, None]
    return bool(explained(ends(rule, prior), stored, perturbed, _losses(run, known)).all())


def _perturbed(rule: AnyRule, data: DataSet) -> list[tuple[AnyRule, TrainSet]]:
    """A rule and instances as other machines may see them."""
    return [
        (perturbed_rule(rule, turn), StreamedTrainSet(Perturbed(data, turn)))
        for turn in range(PERTURBATIONS)
    ]


def _losses(run: Finished, goals: Float[np.ndarray, " instance"]) -> Kind:
    return losses_kind(run.plan.bounded, _PRECISION[run.experiment.problem.precision], goals)


def _statements(issued: Certificate, rebuilt: Certificate, elsewhere: bool) -> list[Check]:
    expected = {statement.name: statement for statement in rebuilt.statements}
    checks = [
        _same_statement(statement, expected.pop(statement.name, None), elsewhere)
        for statement in issued.statements
    ]
    missing = [Check(f"statement: {name}", False, "is missing") for name in expected]
    return checks + missing


def _same_statement(issued: Statement, rebuilt: Statement | None, elsewhere: bool) -> Check:
    name = f"statement: {issued.name}"
    if rebuilt is None:
        return Check(name, False, "is not in the plan, or there twice")
    for field in dataclasses.fields(Statement):
        found, wanted = getattr(issued, field.name), getattr(rebuilt, field.name)
        # As text, because lists and tuples are the same there.
        near = elsewhere and agree(to_plain(found), to_plain(wanted), 1e-9)
        if not near and to_json({"": found}) != to_json({"": wanted}):
            shown = f"{found!r}, recomputed {wanted!r}" if field.name != "details" else "other"
            return Check(name, False, f"{field.name} is {shown}")
    return Check(name, True)


def _thresholds(run: Finished) -> Check:
    task, train, evidence = run.config.task(run.experiment), run.split.train, run.found.evidence
    good = np.allclose(task.thresholds(train), evidence.thresholds, rtol=run.rounding, atol=0)
    good &= np.allclose(task.start_losses(train), evidence.starts, rtol=run.rounding, atol=0)
    name = "the goal and the start's loss on every train instance"
    return Check(name, bool(good), "" if good else "differs")


def _references(run: Finished) -> Check:
    """What closeness is counted from, on every train instance."""
    again = references_for(run.config.certify, run.experiment, run.split.train)
    stored = run.found.evidence.references
    good = np.array_equal(again, stored)
    if run.elsewhere:
        good = np.allclose(again, stored, rtol=_PRECISION[run.experiment.problem.precision])
    return Check("the minimum of every train instance", bool(good), "" if good else "differs")


def _traits(run: Finished, plan: Plan) -> Check:
    """What is known of every train instance before it is solved."""
    problem, train, evidence = run.experiment.problem, run.split.train, run.found.evidence
    again = traits_on(plan.traits, problem, train, evidence.starts, evidence.thresholds)
    good = np.allclose(again, evidence.traits, run.rounding, 0)
    return Check("the kind of every train instance", bool(good), "" if good else "differs")


def _rerun(run: Finished, plan: Plan, deployed: int, number: int, seed: int | None) -> Check:
    """Roll random instances of the train set out again and compare.

    Where the same bits are expected all are rolled out: the same batch rounds in the same way.
    """
    seed = secrets.randbits(32) if seed is None else seed
    train, found = run.split.train, run.found.evidence
    number = min(number, train.size)
    chosen = np.sort(np.random.default_rng(seed).choice(train.size, number, replace=False))
    rows = chosen if run.elsewhere else np.arange(train.size)
    stored = Observed(found.losses[deployed], found.reach[deployed], found.statistics[deployed])
    task = run.config.task(run.experiment)
    watch = task.watch(plan.iterations, len(plan.targets))
    bad = _differing(run, run.rule(deployed), watch, stored, rows, deployed)
    length = race_length(plan.horizon, found.reach)
    race = task.watch((plan.horizon, length), len(plan.targets))
    opponents = run.experiment.chosen(plan.opponents)
    for i, name in enumerate(plan.opponents):
        nothing = np.zeros((train.size, 0))  # statistics are our rule's alone
        theirs = Observed(found.opponent_losses[i][:, None], found.opponent_reach[i], nothing)
        bad |= _differing(run, opponents[name], race, theirs, rows)
    name = f"{len(chosen)} instances rolled out again (chosen by seed {seed})"
    wrong = np.intersect1d(rows[bad], chosen)
    if not wrong.size:
        return Check(name, True)
    return Check(name, False, f"{wrong.size} differ from what is stored, first {wrong[0]}")


def _differing(
    run: Finished,
    rule: Rule,
    watch: Watch,
    stored: Observed,
    rows: Int[np.ndarray, " row"],
    sample: int | None = None,
) -> Bool[np.ndarray, " row"]:
    """On which instances a rule, or a sample, does something else than what is stored of it."""
    task = run.config.task(run.experiment)
    # All samples of the group round as they did; elsewhere nothing does.
    hypers = None if sample is None or run.elsewhere else run.prior.hypers
    wanted = _levels(run)[rows]

    def roll_out(rule: Rule, data: DataSet) -> Observed:
        work = task.work(rule, data, watch, hypers, targets=wanted)
        seen = observe_all(work, sample=0 if hypers is None else sample or 0)
        return jax.tree.map(lambda table, like: table[:, : like.shape[1]], seen, stored)

    data = _some(run, rows) if run.elsewhere else run.split.train
    here = roll_out(rule, data)
    then = stored.at(rows)
    perturbed = [roll_out(*other) for other in _perturbed(rule, data)] if run.elsewhere else []
    goals = run.found.evidence.thresholds[rows]

    def tables(seen: Observed) -> tuple[np.ndarray, ...]:
        # Where it ends is what is certified first of all.
        ends = reached(np.asarray(seen.losses)[:, -1], goals)[:, None].astype(float)
        return np.asarray(seen.losses), np.asarray(seen.statistics), ends

    kinds = (_losses(run, goals), STATISTICS, EXACT if sample is not None else None)
    others = list(zip(*(tables(seen) for seen in perturbed), strict=True)) or [()] * len(kinds)
    reach = [np.asarray(seen.reach) for seen in (here, then, *perturbed)]
    good = explained_hits(reach[0], reach[1], reach[2:]).all(axis=1)
    for one, other, beside, kind in zip(tables(here), tables(then), others, kinds, strict=True):
        if kind is not None:
            good &= explained(one, other, beside, kind).all(axis=1)
    return np.logical_not(good)


def _levels(run: Finished) -> Float[np.ndarray, "instance target"]:
    """The losses that every train instance is to reach."""
    evidence = run.found.evidence
    known = (evidence.references, evidence.starts, evidence.thresholds)
    return np.stack([target.levels(*known) for target in run.plan.targets], axis=1)


def _some(run: Finished, rows: Int[np.ndarray, " row"]) -> TrainSet:
    """Some instances of the train set."""
    with working_precision(run.experiment.problem):
        parts = [run.split.train.part(int(row), int(row) + 1) for row in rows]
        return TrainSet(jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *parts))
