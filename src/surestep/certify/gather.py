"""Certifying: the train set is opened, and the evidence for the plan's claims is gathered.

The plan is fixed before this stage begins. It gathers every sample's train losses and what the
opponents do on the same instances, then computes the paper's posterior and bound on a normalised
prior and a finite, geometric set of lambda.
"""

import dataclasses
import time
from collections.abc import Mapping

import jax
import numpy as np
from jaxtyping import Float

from surestep.base.errors import ConfigurationError, HostError
from surestep.base.progress import Reporter, Silence
from surestep.bounds import sublevel_family
from surestep.certify.claims import Evidence, Plan
from surestep.problem.datasets import TrainSet
from surestep.problem.goal import reached
from surestep.rollout.tiles import Alone, Crew, Seen, Work, observe_all, room
from surestep.rules.base import Rule
from surestep.storage.checkpoint import Checkpoint, NoCheckpoint
from surestep.storage.run_folder import axes
from surestep.train.sample import Sampled, mean_square, weighed_risks
from surestep.train.task import Task


@dataclasses.dataclass(frozen=True)
class Certified:
    """The train set's evidence, and the paper's posterior and bound computed from it."""

    losses: np.ndarray = dataclasses.field(metadata=axes("sample", "instance", "iteration"))
    iterations: np.ndarray = dataclasses.field(metadata=axes("iteration"))
    thresholds: np.ndarray = dataclasses.field(metadata=axes("instance"))
    hits: np.ndarray = dataclasses.field(metadata=axes("sample", "instance", "tolerance"))
    opponent_losses: np.ndarray = dataclasses.field(metadata=axes("opponent", "instance"))
    opponent_hits: np.ndarray = dataclasses.field(
        metadata=axes("opponent", "instance", "tolerance")
    )
    statistics: np.ndarray = dataclasses.field(metadata=axes("sample", "instance", "statistic"))
    risks: np.ndarray = dataclasses.field(metadata=axes("sample"))
    second_moments: np.ndarray = dataclasses.field(metadata=axes("sample"))
    bounds: np.ndarray = dataclasses.field(metadata=axes("lambda"))
    log_posterior: np.ndarray = dataclasses.field(metadata=axes("sample"))
    """The paper's Gibbs posterior, on the paper's prior."""
    log_gibbs: np.ndarray = dataclasses.field(metadata=axes("sample"))
    """The Gibbs posterior on the prior that the certificates bet with."""
    bound: float
    """The paper's bound for a rule drawn from its posterior."""
    point_bound: float
    """The same bound for the rule that is deployed."""
    lambda_: float
    mode: int
    """The rule that is deployed: the mode of the Gibbs posterior on the certificates' prior."""
    plan_sha256: str

    @property
    def evidence(self) -> Evidence:
        """What the claims are judged by."""
        names = [field.name for field in dataclasses.fields(Evidence)]
        return Evidence(**{name: getattr(self, name) for name in names})


@dataclasses.dataclass(frozen=True)
class _Seen:
    """What has been observed so far; a pytree, so that it can be left at a checkpoint."""

    losses: np.ndarray
    hits: np.ndarray
    statistics: np.ndarray
    finished: np.ndarray
    """Which tiles of the work are in it."""

    @classmethod
    def nothing(cls, work: Work) -> "_Seen":
        """Room for all that is going to be observed."""
        return cls(*room(work), finished=np.zeros(work.number, bool))

    def put(self, work: Work, tile: int, found: Seen) -> None:
        """Add what was observed on a tile."""
        place = work.place(tile)
        self.losses[place] = found.losses
        self.hits[place] = found.hits
        self.statistics[place] = found.statistics
        self.finished[tile] = True


jax.tree_util.register_dataclass(_Seen)


def certify(
    plan: Plan,
    task: Task,
    rule: Rule,
    prior: Sampled,
    opponents: Mapping[str, Rule],
    data: TrainSet,
    checkpoint: Checkpoint | None = None,
    report: Reporter | None = None,
    crew: Crew | None = None,
) -> Certified:
    """Gather the evidence a plan asks for, then find the posterior and the paper's bound.

    The crew rolls out; by default it is this process with all its devices.
    """
    checkpoint, report, crew = checkpoint or NoCheckpoint(), report or Silence(), crew or Alone()
    named = (set(opponents), tuple(task.statistics))
    if data.size != plan.train_size or named != (set(plan.opponents), plan.statistics):
        raise ConfigurationError(
            "the plan was made for other data, other opponents or other statistics"
        )
    work = task.work(
        rule, data, plan.iterations, plan.hit_tolerances, prior.hypers, to_goal=plan.hits_goal
    )
    seen = _gather(work, checkpoint, report, crew)
    race = (plan.horizon, race_length(plan.horizon, seen.hits))
    theirs = [
        observe_all(
            task.work(
                opponents[name], data, race, plan.hit_tolerances, name=name, to_goal=plan.hits_goal
            ),
            crew,
        )
        for name in plan.opponents
    ]
    number = len(theirs)
    evidence = Evidence(
        losses=seen.losses,
        thresholds=task.thresholds(data),
        hits=seen.hits,
        opponent_losses=np.array([o[0][:, 0] for o in theirs]).reshape(number, data.size),
        opponent_hits=np.array([o[1] for o in theirs]).reshape(number, data.size, plan.hits),
        statistics=seen.statistics,
    )
    return paper_posterior(plan, prior, evidence)


def race_length(horizon: int, hits: Float[np.ndarray, "..."]) -> int:
    """For how many iterations an opponent is followed: a whole number of horizons, at least two.

    Each is at least one gradient, so an opponent has spent as many gradients as our rules by then:
    else it could lose a race by being stopped early.
    """
    spent = hits[np.isfinite(hits)]
    longest = float(spent.max()) if spent.size else 0.0
    return horizon * max(2, int(np.ceil(longest / horizon)))


def paper_posterior(plan: Plan, prior: Sampled, evidence: Evidence) -> Certified:
    """The paper's posterior and bound, with its estimates plugged in, from the evidence.

    Where losses may be negative the same posterior weighs misses of the goal instead of losses.
    The bound is then one for their probability, and no statement is made of it.
    """
    final, threshold = evidence.losses[:, :, -1], evidence.thresholds
    good = reached(final, threshold)
    risks = weighed_risks(final, threshold, prior.probabilities, plan.bounded)
    moments = mean_square(threshold, good) / prior.probabilities**2
    moments = moments if plan.bounded else np.ones(len(risks))
    lambdas = np.array(plan.lambdas)
    family = sublevel_family(prior.log_prior, risks, moments, plan.train_size)
    bound = family.minimise_on_set(lambdas, plan.epsilon)
    betting = dataclasses.replace(family, log_prior=np.array(plan.log_prior))
    log_gibbs = betting.log_posterior(bound.lambda_)
    mode = int(np.argmax(log_gibbs))
    return Certified(
        **vars(evidence),
        iterations=np.array(plan.iterations),
        risks=risks,
        second_moments=moments,
        bounds=bound.values,
        log_posterior=bound.log_posterior,
        log_gibbs=log_gibbs,
        bound=bound.value,
        point_bound=family.point_bound(mode, lambdas, plan.epsilon),
        lambda_=bound.lambda_,
        mode=mode,
        plan_sha256=plan.sha256,
    )


def _gather(work: Work, checkpoint: Checkpoint, report: Reporter, crew: Crew) -> _Seen:
    empty = _Seen.nothing(work)
    seen = checkpoint.load(empty) or empty
    left = np.flatnonzero(~seen.finished).tolist()
    total, done = (
        sum(work.place(tile).shape[0] for tile in tiles)
        for tiles in (range(work.number), np.flatnonzero(seen.finished).tolist())
    )
    unit = "samples" if work.cuts.number == 1 else "samples of runs of instances"
    saving = _Saving(checkpoint)
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
    return seen


class _Saving:
    """Leaves states at a checkpoint, so rarely that it costs little, however large they are."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.checkpoint = checkpoint
        self.wait, self.saved = 10.0, time.monotonic()

    def now_and_then(self, state: _Seen) -> None:
        began = time.monotonic()
        if began - self.saved > self.wait:
            self.checkpoint.save(state)
            self.saved = time.monotonic()
            self.wait = max(10.0, 20 * (self.saved - began))
