"""Certifying: the train set is opened, and the evidence for the plan's claims is gathered.

The plan is fixed before this stage begins. It gathers every sample's train losses and what the
opponents do on the same instances; the posterior follows from that.
"""

from collections.abc import Mapping

import equinox as eqx
import numpy as np
from jaxtyping import Bool, Float

from surestep.base.errors import ConfigurationError, HostError
from surestep.base.progress import Reporter, Silence
from surestep.certify.evidence import Evidence
from surestep.certify.plan import Plan
from surestep.certify.posterior import Certified, find_posterior
from surestep.certify.targets import FIRST, Target
from surestep.problem import DataSet, TrainSet
from surestep.rollout.observe import REACHED, Observed
from surestep.rollout.tiles import Alone, Crew, Work, observe_all
from surestep.rules.base import Rule
from surestep.storage.checkpoint import Checkpoint, NoCheckpoint, Saving
from surestep.train import Sampled, Task


class _Gathered(eqx.Module):
    """What has been observed so far, to be left at a checkpoint."""

    observed: Observed
    finished: Bool[np.ndarray, " tile"]
    """Which tiles of the work are in it."""

    @classmethod
    def nothing(cls, work: Work) -> "_Gathered":
        """Room for all that is going to be observed."""
        room = Observed.room((work.samples, work.data.size), work.watch)
        return cls(room, np.zeros(work.number, bool))

    def put(self, work: Work, tile: int, found: Observed) -> None:
        """Add what was observed on a tile."""
        self.observed.put(work.place(tile), found)
        self.finished[tile] = True


def certify(
    plan: Plan,
    task: Task,
    rule: Rule,
    prior: Sampled,
    opponents: Mapping[str, Rule],
    references: Float[np.ndarray, " instance"],
    data: TrainSet,
    checkpoint: Checkpoint | None = None,
    report: Reporter | None = None,
    crew: Crew | None = None,
) -> Certified:
    """Gather the evidence a plan asks for, then find the posterior and the paper's bound.

    `references` are the losses that closeness on the train set is counted from. The crew rolls
    out; by default it is this process with all its devices.
    """
    named = (set(opponents), tuple(task.statistics))
    if data.size != plan.train_size or named != (set(plan.opponents), plan.statistics):
        raise ConfigurationError(
            "the plan was made for other data, other opponents or other statistics"
        )
    ordered = {name: opponents[name] for name in plan.opponents}
    evidence = observed_on(
        task,
        rule,
        prior.hypers,
        ordered,
        plan.targets,
        plan.iterations,
        data,
        references,
        checkpoint,
        report,
        crew,
    )
    return find_posterior(plan, prior, evidence)


def observed_on(
    task: Task,
    rule: Rule,
    hypers: Float[np.ndarray, "sample d"],
    opponents: Mapping[str, Rule],
    targets: tuple[Target, ...],
    kept: tuple[int, ...],
    data: DataSet,
    references: Float[np.ndarray, " instance"],
    checkpoint: Checkpoint | None = None,
    report: Reporter | None = None,
    crew: Crew | None = None,
    length: int = 0,
) -> Evidence:
    """What samples and opponents do on a data set."""
    checkpoint, report, crew = checkpoint or NoCheckpoint(), report or Silence(), crew or Alone()
    thresholds = task.thresholds(data)
    starts = task.start_losses(data)
    wanted = np.stack([t.levels(references, starts, thresholds) for t in targets], axis=1)
    watch = task.watch(kept, len(targets))
    work = task.work(rule, data, watch, hypers, targets=wanted, length=length)
    ours = _gather(work, checkpoint, report, crew)
    horizon = kept[-1]
    race = task.watch((horizon, race_length(horizon, ours.reach)), len(targets))
    theirs = [
        observe_all(task.work(one, data, race, name=name, targets=wanted, length=length), crew)
        for name, one in opponents.items()
    ]
    shape = (len(theirs), data.size)
    return Evidence(
        losses=ours.losses,
        thresholds=thresholds,
        references=references,
        starts=starts,
        reach=ours.reach,
        opponent_losses=np.array([o.losses[:, 0] for o in theirs]).reshape(shape),
        opponent_reach=np.array([o.reach for o in theirs]).reshape(*shape, watch.widths[1]),
        statistics=ours.statistics,
    )


def race_length(horizon: int, reach: Float[np.ndarray, "*rest entry"]) -> int:
    """For how many iterations an opponent is followed: a whole number of horizons, at least two.

    Each is at least one gradient, so an opponent has spent as many gradients as our rules by then:
    else it could lose a race by being stopped early.
    """
    gradients = reach[..., FIRST * (reach.shape[-1] // REACHED) :]
    spent = gradients[np.isfinite(gradients)]
    longest = float(spent.max()) if spent.size else 0.0
    return horizon * max(2, int(np.ceil(longest / horizon)))


def _gather(work: Work, checkpoint: Checkpoint, report: Reporter, crew: Crew) -> Observed:
    empty = _Gathered.nothing(work)
    seen = checkpoint.load(empty) or empty
    left = np.flatnonzero(~seen.finished).tolist()
    total, done = (
        sum(work.place(tile).shape[0] for tile in tiles)
        for tiles in (range(work.number), np.flatnonzero(seen.finished).tolist())
    )
    unit = "samples" if work.cuts.number == 1 else "samples of runs of instances"
    saving = Saving(checkpoint)
    with report.stage("certify", total, unit, done) as bar:
        try:
            for tile, found in crew.observe(work, left):
                seen.put(work, tile, found)
                bar.advance(
                    len(found.losses), f"median loss {np.median(found.losses[..., -1]):.3g}"
                )
                saving.now_and_then(seen)
        except HostError:
            # What the other hosts have computed is not lost with them.
            checkpoint.save(seen)
            raise
    if left:
        checkpoint.save(seen)  # the opponents' rollouts are still to come
    return seen.observed
