"""Rollouts made again: the deployed rule's, the opponents', and those of other samples.

On the same kind of machine they have the same bits, in every row. Elsewhere some rows are compared
to what a last bit of the instances makes of them.
"""

import dataclasses
import secrets

import jax
import numpy as np
from jaxtyping import Bool, Float, Int

from surestep.certify import race_length
from surestep.problem import DataSet, reached
from surestep.rollout.observe import Observed, Watch
from surestep.rollout.rounding import EXACT, STATISTICS, explained, explained_hits
from surestep.rollout.tiles import Alone, Work, observe_all
from surestep.rules.base import Rule
from surestep.run.verify.elsewhere import kind_of_losses, perturbed, some_of
from surestep.run.verify.finished import Check, Finished, check

_FEW = 64
"""How many instances are rolled out again of what was made elsewhere, if nobody asks for more."""


@dataclasses.dataclass(frozen=True)
class _Side:
    """Somebody whose rollouts are stored: the learned rule's samples, or an opponent."""

    rule: Rule
    watch: Watch
    stored: Observed
    """By sample and instance."""
    hypers: np.ndarray | None = None
    name: str = ""


def verify_rollouts(run: Finished, number: int, seed: int | None = None) -> list[Check]:
    """Roll the deployed rule and the opponents out again, and `number` other samples.

    Elsewhere `number` is that of the instances too. Which samples and instances is not known
    beforehand, unless `seed` says so.
    """
    if run.elsewhere:
        asked, number = number, max(number, _FEW)
    elif number == 0:
        return []
    else:
        asked = number
    seed = secrets.randbits(32) if seed is None else seed
    random = np.random.default_rng(seed)
    size = run.train.size
    rows = np.arange(size)
    if run.elsewhere:
        rows = np.sort(random.choice(size, min(number, size), replace=False))
    deployed, others = run.found.deployed_sample, np.arange(len(run.prior.hypers))
    others = np.delete(others, deployed)
    others = np.sort(random.choice(others, min(asked, others.size), replace=False))
    how = f"{len(rows)} instances" + (f" (chosen by seed {seed})" if run.elsewhere else "")
    checks = [_compared(run, _ours(run), deployed, rows, f"the deployed rule on {how}")]
    theirs = _opponents(run)
    checks += [
        _compared(run, side, 0, rows, f"the opponent {side.name} on {how}") for side in theirs
    ]
    wrong = [s for s in others if _differing(run, _ours(run), int(s), rows).any()]
    if others.size:
        name = f"{others.size} other samples rolled out again on {how}"
        name += "" if run.elsewhere else f" (chosen by seed {seed})"
        first = f"{len(wrong)} differ from what is stored, first sample {wrong[0]}" if wrong else ""
        checks.append(check(name, not wrong, first))
    return checks


def _compared(
    run: Finished, side: _Side, sample: int, rows: Int[np.ndarray, " row"], who: str
) -> Check:
    wrong = rows[_differing(run, side, sample, rows)]
    reason = f"{wrong.size} differ from what is stored, first {wrong[0]}" if wrong.size else ""
    return check(f"{who}, rolled out again", not wrong.size, reason)


def _ours(run: Finished) -> _Side:
    found, plan = run.found.evidence, run.plan
    return _Side(
        run.rule(run.found.deployed_sample),
        run.task.watch(plan.iterations, len(plan.targets)),
        Observed(found.losses, found.reach, found.statistics),
        run.prior.hypers,
    )


def _opponents(run: Finished) -> list[_Side]:
    found, plan = run.found.evidence, run.plan
    length = race_length(plan.horizon, found.reach)
    race = run.task.watch((plan.horizon, length), len(plan.targets))
    rules = run.experiment.chosen(plan.opponents)
    nothing = np.zeros((1, run.train.size, 0))  # statistics are our rule's alone
    return [
        _Side(
            rules[name],
            race,
            Observed(
                found.opponent_losses[i][None, :, None], found.opponent_reach[i][None], nothing
            ),
            name=name,
        )
        for i, name in enumerate(plan.opponents)
    ]


def _differing(
    run: Finished, side: _Side, sample: int, rows: Int[np.ndarray, " row"]
) -> Bool[np.ndarray, " row"]:
    """On which instances somebody does something else than what is stored."""
    if run.elsewhere:
        return _unexplained(run, side, sample, rows)
    return _other_bits(run, side, sample)[rows]


def _other_bits(run: Finished, side: _Side, sample: int) -> Bool[np.ndarray, " instance"]:
    """Compared as they were computed: beside the others of the sample's group, which count too."""
    task = run.task
    work = task.work(side.rule, run.train, side.watch, side.hypers, side.name, targets=_levels(run))
    wrong = np.zeros(run.train.size, bool)
    wanted = sample // work.groups.length
    tiles = [tile for tile in range(work.number) if work.split(tile)[1] == wanted]
    for tile, seen in Alone().observe(work, tiles):
        place = work.place(tile)
        then = side.stored.at((place.samples, place.instances))
        wrong[place.instances] |= _rows_apart(seen, then)
    return wrong


def _rows_apart(here: Observed, then: Observed) -> Bool[np.ndarray, " instance"]:
    """Instances on which any of several samples shows other bits; fewer columns may be stored."""
    apart = np.zeros(here.losses.shape[1], bool)
    for seen, stored in zip(jax.tree.leaves(here), jax.tree.leaves(then), strict=True):
        part = np.asarray(seen)[:, :, : stored.shape[2]]
        apart |= np.any(part != stored, axis=(0, 2))
    return apart


def _unexplained(
    run: Finished, side: _Side, sample: int, rows: Int[np.ndarray, " row"]
) -> Bool[np.ndarray, " row"]:
    """Where rounding does not explain what is stored."""
    wanted, data = _levels(run)[rows], some_of(run, rows)
    rule = side.rule if side.hypers is None else run.rule(sample)
    then = side.stored.at((sample, rows))

    def roll_out(rule: Rule, data: DataSet) -> Observed:
        work = Work(
            run.experiment.problem, rule, None, data, side.watch, run.task.block, targets=wanted
        )
        return jax.tree.map(lambda table, like: table[:, : like.shape[1]], observe_all(work), then)

    here = roll_out(rule, data)
    others = [roll_out(*other) for other in perturbed(rule, data)]
    goals = run.found.evidence.thresholds[rows]

    def tables(seen: Observed) -> tuple[np.ndarray, ...]:
        # Where it ends is what is certified first of all.
        ends = reached(np.asarray(seen.losses)[:, -1], goals)[:, None].astype(float)
        return np.asarray(seen.losses), np.asarray(seen.statistics), ends

    ours = side.hypers is not None
    kinds = (kind_of_losses(run, goals), STATISTICS, EXACT if ours else None)
    beside = list(zip(*(tables(seen) for seen in others), strict=True))
    reach = [np.asarray(seen.reach) for seen in (here, then, *others)]
    good = explained_hits(reach[0], reach[1], reach[2:]).all(axis=1)
    for one, other, moved, kind in zip(tables(here), tables(then), beside, kinds, strict=True):
        if kind is not None:
            good &= explained(one, other, moved, kind).all(axis=1)
    return np.logical_not(good)


def _levels(run: Finished) -> Float[np.ndarray, "instance target"]:
    """The losses that every train instance is to reach."""
    evidence = run.found.evidence
    known = (evidence.references, evidence.starts, evidence.thresholds)
    return np.stack([target.levels(*known) for target in run.plan.targets], axis=1)
