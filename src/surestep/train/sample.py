"""Sampling: the prior, as weighted samples around the located hyper.

The paper's construction of the prior: constrained Langevin dynamics on the training loss gives
the samples; each weighs `exp(-risk)`, its empirical sublevel risk on the prior set, normalised.
"""

import dataclasses
from typing import Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from surestep.base.errors import ConfigurationError, InfeasibleError
from surestep.base.progress import Bar, Reporter, Silence
from surestep.bounds import normalised
from surestep.problem import (
    PriorSet,
    Problem,
    ValidationSet,
    fingerprint,
    reached,
    working_precision,
)
from surestep.rules.base import Rule, hyper_of, with_hyper
from surestep.storage.checkpoint import Checkpoint, NoCheckpoint, Saving
from surestep.storage.run_folder import axes
from surestep.train.checked import CheckedTraining, counts_of
from surestep.train.constraint import SuccessEstimate
from surestep.train.langevin import StepSizes, constrained_chain, langevin_move
from surestep.train.pieces import differentiate_piece, draw_restarts, go_on, random_start
from surestep.train.task import Task
from surestep.train.trajectory import Material, Trajectory


@dataclasses.dataclass(frozen=True)
class SampleSettings:
    """How the prior's samples are drawn."""

    samples: int = 100
    """Samples to keep."""
    burn_in: int = 0
    """Moves to make before the first sample is kept."""
    thinning: int = 1
    """Accepted moves from one kept sample to the next."""
    step_sizes: StepSizes = StepSizes()
    """Langevin step sizes."""
    length: int = 1
    """Iterations in each piece of a trajectory that is differentiated."""
    gradients: bool = True
    """Whether moves follow the training loss downhill; if not, they are noise alone."""
    keep_start: bool = True
    """Whether the located rule itself is the first sample, if it meets the constraint."""
    most_proposals: int = 20
    """Give up after this many proposals for each move that is needed."""

    def validate(self) -> None:
        """Refuse sizes that cannot work."""
        for name in ("samples", "thinning", "length", "most_proposals"):
            if getattr(self, name) < 1:
                raise ConfigurationError(f"sample.{name} must be at least 1")
        if self.burn_in < 0:
            raise ConfigurationError("sample.burn_in must not be negative")
        self.step_sizes.validate()

    def moves(self, kept_at_start: int) -> int:
        """Accepted moves that all samples take together."""
        return self.burn_in + (self.samples - kept_at_start) * self.thinning


@dataclasses.dataclass(frozen=True)
class Sampled:
    """The prior: samples, what is known of their success, and their weights."""

    hypers: np.ndarray = dataclasses.field(metadata=axes("sample", "weight"))
    successes: np.ndarray = dataclasses.field(metadata=axes("sample"))
    trials: np.ndarray = dataclasses.field(metadata=axes("sample"))
    probabilities: np.ndarray = dataclasses.field(metadata=axes("sample"))
    prior_losses: np.ndarray = dataclasses.field(metadata=axes("sample", "instance"))
    prior_thresholds: np.ndarray = dataclasses.field(metadata=axes("instance"))
    prior_risks: np.ndarray = dataclasses.field(metadata=axes("sample"))
    log_prior: np.ndarray = dataclasses.field(metadata=axes("sample"))
    proposals: int
    """Proposals the chain made."""
    accepted: int
    """Proposals known to be inside the constraint: the chain's moves."""
    outside: int
    """Proposals that violate the constraint."""
    undecided: int
    """Proposals the validation set was too small to decide on."""

    @property
    def sha256(self) -> str:
        """A hash of every bit of the samples and of what is known of them."""
        return fingerprint(vars(self))

    @classmethod
    def given(
        cls,
        hypers: np.ndarray,
        probabilities: np.ndarray,
        losses: np.ndarray,
        thresholds: np.ndarray,
        log_prior: np.ndarray,
    ) -> Self:
        """A prior whose samples were not drawn by a chain, but given."""
        none = np.zeros(len(hypers), np.int64)
        return cls(
            hypers=hypers,
            successes=none,
            trials=none,
            probabilities=probabilities,
            prior_losses=losses,
            prior_thresholds=thresholds,
            prior_risks=np.zeros(len(hypers)),
            log_prior=log_prior,
            proposals=0,
            accepted=0,
            outside=0,
            undecided=0,
        )

    def only(self, sample: int) -> Self:
        """A prior that is certain of one of the samples."""
        one = slice(sample, sample + 1)
        fields = ("hypers", "successes", "trials", "probabilities", "prior_losses", "prior_risks")
        kept = {name: getattr(self, name)[one] for name in fields}
        return dataclasses.replace(self, **kept, log_prior=np.zeros(1))


class _Walker(eqx.Module):
    """A position of the chain: a hyper, and the trajectory its gradients come from."""

    hyper: Float[Array, " d"]
    trajectory: Trajectory | None
    """None where there are no gradients."""


class _Sampling(eqx.Module):
    """All that sampling needs to go on."""

    walker: _Walker
    hypers: Float[Array, "sample d"]
    counts: Int[Array, "sample 2"]
    losses: Float[Array, "sample instance"]
    proposals: Int[Array, ""]
    accepted: Int[Array, ""]
    undecided: Int[Array, ""]
    kept: Int[Array, ""]
    kept_at_start: Int[Array, ""]
    weighed: Int[Array, ""]
    feasible: Bool[Array, ""]


def sample(
    settings: SampleSettings,
    task: Task,
    rule: Rule,
    prior_set: PriorSet,
    validation_set: ValidationSet,
    seed: int,
    checkpoint: Checkpoint | None = None,
    report: Reporter | None = None,
) -> Sampled:
    """Draw the prior's samples from a rule on, and weigh them.

    If the rule does not meet the constraint, every move is accepted until one does, and only
    from there on can moves become samples.
    """
    settings.validate()
    checkpoint, report = checkpoint or NoCheckpoint(), report or Silence()
    training = CheckedTraining("sample", task, rule, prior_set, validation_set, seed)
    with working_precision(task.problem):
        sampling = _begin(training, settings)
        sampling = checkpoint.load(sampling) or sampling
        done, needed = int(sampling.accepted), settings.moves(int(sampling.kept_at_start))
        with report.stage("sample", needed, "moves", done) as bar:
            sampling = _walk(sampling, training, settings, Saving(checkpoint), bar)
        done = int(sampling.weighed)
        with report.stage("weigh", settings.samples, "samples", done) as bar:
            sampling = _weigh(sampling, training, settings, Saving(checkpoint), bar)
    return _prior(sampling, training)


def _begin(training: CheckedTraining, settings: SampleSettings) -> _Sampling:
    rule, prior_set = training.rule, training.prior_set
    hyper = hyper_of(rule)
    zero = jnp.zeros((), jnp.int32)
    first = None
    if settings.gradients:
        first = _started(rule, training.task.problem, prior_set.thetas, training.key("first"))
    estimate = training.success(hyper, "start")
    sampling = _Sampling(
        walker=_Walker(hyper, first),
        hypers=jnp.zeros((settings.samples, hyper.size), hyper.dtype),
        counts=jnp.zeros((settings.samples, 2), jnp.int32),
        losses=jnp.zeros((settings.samples, prior_set.size)),
        proposals=zero,
        accepted=zero,
        undecided=zero,
        kept=zero,
        kept_at_start=zero + int(estimate.inside and settings.keep_start),
        weighed=zero,
        feasible=jnp.asarray(estimate.inside),
    )
    return _keep(sampling, hyper, estimate) if int(sampling.kept_at_start) else sampling


def _keep(sampling: _Sampling, hyper: Array, estimate: SuccessEstimate) -> _Sampling:
    """Make a hyper the next sample."""
    number = int(sampling.kept)
    return dataclasses.replace(
        sampling,
        hypers=sampling.hypers.at[number].set(hyper),
        counts=sampling.counts.at[number].set(counts_of(estimate)),
        kept=sampling.kept + 1,
    )


_started = eqx.filter_jit(random_start)


def _walk(
    sampling: _Sampling,
    training: CheckedTraining,
    settings: SampleSettings,
    saving: Saving,
    bar: Bar,
) -> _Sampling:
    def propose(number: int, walker: _Walker) -> _Walker:
        size = jnp.asarray(settings.step_sizes.at(number))
        return _propose(
            walker, training.rule, training.task.problem, training.material,
            training.key(number), size, settings, training.task.horizon,
        )  # fmt: skip

    def estimate(number: int, walker: _Walker) -> SuccessEstimate:
        return training.success(walker.hyper, number)

    if int(sampling.kept) == settings.samples:
        return sampling
    at_start = int(sampling.kept_at_start)
    needed = settings.moves(at_start)
    limit = settings.most_proposals * needed
    chain = constrained_chain(
        propose,
        estimate,
        sampling.walker,
        feasible=bool(sampling.feasible),
        number=int(sampling.proposals),
    )
    for move in chain:
        # Moves on the way into the constraint are no samples of the constrained distribution.
        counted = int(move.accepted and move.estimate.inside)
        sampling = dataclasses.replace(
            sampling,
            walker=move.position,
            proposals=sampling.proposals + 1,
            accepted=sampling.accepted + counted,
            undecided=sampling.undecided + int(move.estimate.verdict == "undecided"),
            feasible=jnp.asarray(move.feasible),
        )
        accepted, kept = int(sampling.accepted), int(sampling.kept) - at_start
        if counted and accepted == settings.burn_in + (kept + 1) * settings.thinning:
            sampling = _keep(sampling, move.position.hyper, move.estimate)
        proposals = int(sampling.proposals)
        bar.advance(
            counted,
            f"accepted {accepted}/{proposals}, success {move.estimate.probability:.3f}",
        )
        if int(sampling.kept) == settings.samples:
            saving.now(sampling)
            return sampling
        if proposals >= limit:
            raise InfeasibleError(
                f"only {accepted} of {proposals} Langevin proposals met the success constraint, "
                f"and {needed} moves are needed: take smaller steps "
                "(sample.step-sizes.initial) or allow more proposals (sample.most-proposals)"
            )
        saving.now_and_then(sampling)
    raise AssertionError("the chain never ends by itself")


@eqx.filter_jit
def _propose(
    walker: _Walker,
    rule: Rule,
    problem: Problem,
    material: Material,
    key: Array,
    step_size: Array,
    settings: SampleSettings,
    horizon: int,
) -> _Walker:
    key_noise, *keys = jax.random.split(key, 3)
    if walker.trajectory is None:
        still = jnp.zeros_like(walker.hyper)
        return _Walker(langevin_move(key_noise, walker.hyper, still, step_size), None)
    piece = differentiate_piece(
        rule, problem, material, walker.hyper, walker.trajectory, settings.length
    )
    usable_gradient = jnp.where(piece.usable, piece.gradient, 0.0)
    hyper = langevin_move(key_noise, walker.hyper, usable_gradient, step_size)
    draw = draw_restarts(keys, material.thetas, settings.length, horizon)
    return _Walker(hyper, go_on(rule, problem, material, hyper, piece, draw))


def _weigh(
    sampling: _Sampling,
    training: CheckedTraining,
    settings: SampleSettings,
    saving: Saving,
    bar: Bar,
) -> _Sampling:
    for number in range(int(sampling.weighed), settings.samples):
        rule = with_hyper(training.rule, sampling.hypers[number])
        losses = training.task.losses(rule, training.prior_set)[:, 0]
        sampling = dataclasses.replace(
            sampling,
            losses=sampling.losses.at[number].set(losses),
            weighed=sampling.weighed + 1,
        )
        saving.now_and_then(sampling)
        bar.advance(1, f"median loss {np.median(losses):.3g}")
    return sampling


def _prior(sampling: _Sampling, training: CheckedTraining) -> Sampled:
    counts = np.asarray(sampling.counts, np.int64)
    probabilities = np.array([estimate.probability for estimate in training.estimates(counts)])
    losses = np.asarray(sampling.losses, np.float64)
    threshold = training.task.thresholds(training.prior_set)
    nonnegative = training.task.problem.nonnegative
    risks = weighed_risks(losses, threshold, probabilities, nonnegative)
    return Sampled(
        hypers=np.asarray(sampling.hypers),
        successes=counts[:, 0],
        trials=counts[:, 1],
        probabilities=probabilities,
        prior_losses=losses,
        prior_thresholds=threshold,
        prior_risks=risks,
        log_prior=normalised(-risks),
        proposals=int(sampling.proposals),
        accepted=int(sampling.accepted),
        outside=int(sampling.proposals - sampling.accepted - sampling.undecided),
        undecided=int(sampling.undecided),
    )


def weighed_risks(
    losses: Float[np.ndarray, "sample instance"],
    threshold: Float[np.ndarray, " instance"],
    probabilities: Float[np.ndarray, " sample"],
    nonnegative: bool,
) -> Float[np.ndarray, " sample"]:
    """What samples are weighed by: sublevel risks, or, where losses may be negative, misses."""
    if nonnegative:
        return sublevel_risks(losses, threshold, probabilities)
    return np.mean(~reached(losses, threshold), axis=1)


def sublevel_risks(
    losses: Float[np.ndarray, "sample instance"],
    threshold: Float[np.ndarray, " instance"],
    probabilities: Float[np.ndarray, " sample"],
) -> Float[np.ndarray, " sample"]:
    """Empirical sublevel risks: mean loss over instances that reach the goal, over p."""
    good = reached(losses, threshold)
    # Sums beyond the largest number are infinite, and so is the bound that rests on them.
    with np.errstate(over="ignore"):
        return np.mean(np.where(good, losses, 0.0), axis=1) / probabilities


def mean_square(
    threshold: Float[np.ndarray, " instance"], good: Bool[np.ndarray, "sample instance"]
) -> Float[np.ndarray, " sample"]:
    """The mean square of the goal where it is reached; infinite beyond the largest number."""
    with np.errstate(over="ignore"):
        return np.mean(np.where(good, threshold**2, 0.0), axis=1)
