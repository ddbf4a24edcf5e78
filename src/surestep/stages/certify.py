"""Certifying: the train set is opened, the posterior and the bound are computed.

The paper's construction of the posterior, on a normalised prior and a finite geometric set of
lambda. The set is placed by the prior set, before a loss on the train set exists.
"""

import dataclasses
import time

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from surestep.bounds import geometric_lambdas, sublevel_family
from surestep.errors import ConfigurationError
from surestep.goal import reached
from surestep.problem import working_precision
from surestep.progress import Reporter, Silence
from surestep.rule import Rule, with_hyper
from surestep.split import TrainSet
from surestep.stages.sample import Sampled, sublevel_risks
from surestep.store import Checkpoint, NoCheckpoint, axes
from surestep.task import Task


@dataclasses.dataclass(frozen=True)
class CertifySettings:
    """What is certified, and how surely."""

    epsilon: float = 0.05
    """The probability with which the certificate may be false."""
    lambdas: int = 200
    """How many values of lambda the bound is minimised over; it pays the logarithm."""
    lambda_ratio: float = 100.0
    """The set of lambda reaches from its centre divided by this to its centre times this."""
    iterations: int = 36
    """At about how many iterations up to the horizon the train losses are kept."""

    def validate(self) -> None:
        """Refuse sizes that cannot work."""
        if not 0 < self.epsilon < 1:
            raise ConfigurationError(
                f"certify.epsilon must lie strictly between 0 and 1, not {self.epsilon}"
            )
        if self.lambdas < 1 or self.iterations < 1 or not self.lambda_ratio > 1:
            raise ConfigurationError(
                "certify.lambdas and certify.iterations must be at least 1 and "
                "certify.lambda_ratio above 1"
            )


@dataclasses.dataclass(frozen=True)
class Certified:
    """The posterior, its mode and the bound, with the train losses they come from."""

    losses: np.ndarray = dataclasses.field(metadata=axes("sample", "instance", "iteration"))
    iterations: np.ndarray = dataclasses.field(metadata=axes("iteration"))
    thresholds: np.ndarray = dataclasses.field(metadata=axes("instance"))
    risks: np.ndarray = dataclasses.field(metadata=axes("sample"))
    second_moments: np.ndarray = dataclasses.field(metadata=axes("sample"))
    lambdas: np.ndarray = dataclasses.field(metadata=axes("lambda"))
    bounds: np.ndarray = dataclasses.field(metadata=axes("lambda"))
    log_posterior: np.ndarray = dataclasses.field(metadata=axes("sample"))
    bound: float
    """The paper's bound for a rule drawn from the posterior."""
    point_bound: float
    """The same bound for the posterior's mode, the rule that is deployed."""
    lambda_: float
    mode: int


class _Certifying(eqx.Module):
    losses: Float[Array, "sample instance iteration"]
    done: Int[Array, ""]


def certify(
    settings: CertifySettings,
    task: Task,
    rule: Rule,
    prior: Sampled,
    data: TrainSet,
    checkpoint: Checkpoint | None = None,
    report: Reporter | None = None,
) -> Certified:
    """Compute every sample's train losses, then the posterior and the paper's bound."""
    settings.validate()
    # Placed before the train set is looked at.
    lambdas = prior_lambdas(settings, prior, data.size)
    at = kept_iterations(task.horizon, settings.iterations)
    losses = _train_losses(
        task, rule, prior, data, at, checkpoint or NoCheckpoint(), report or Silence()
    )
    threshold = task.thresholds(data)
    final = losses[:, :, -1]
    good = reached(final, threshold)
    risks = sublevel_risks(final, threshold, prior.probabilities)
    moments = np.mean(np.where(good, threshold**2, 0.0), axis=1) / prior.probabilities**2
    family = sublevel_family(prior.log_prior, risks, moments, data.size)
    bound = family.minimise_on_set(lambdas, settings.epsilon)
    return Certified(
        losses=losses,
        iterations=np.array(at),
        thresholds=threshold,
        risks=risks,
        second_moments=moments,
        lambdas=lambdas,
        bounds=bound.values,
        log_posterior=bound.log_posterior,
        bound=bound.value,
        point_bound=family.point_bound(bound.mode, lambdas, settings.epsilon),
        lambda_=bound.lambda_,
        mode=bound.mode,
    )


def prior_lambdas(
    settings: CertifySettings, prior: Sampled, size: int
) -> Float[np.ndarray, " lambda"]:
    """A geometric set around the lambda that would be best if the prior set were the train set."""
    good = reached(prior.prior_losses, prior.prior_thresholds)
    squares = np.mean(np.where(good, prior.prior_thresholds**2, 0.0), axis=1)
    moment = float(np.exp(prior.log_prior) @ (squares / prior.probabilities**2))
    price = np.log(settings.lambdas / settings.epsilon)
    centre = np.sqrt(2 * size * price / moment) if moment > 0 else 1.0
    return geometric_lambdas(float(centre), settings.lambda_ratio, settings.lambdas)


def kept_iterations(horizon: int, number: int) -> tuple[int, ...]:
    """About `number` iterations from 0 to the horizon, evenly spaced, both ends among them."""
    return tuple(sorted({round(i * horizon / number) for i in range(number + 1)}))


def _train_losses(
    task: Task,
    rule: Rule,
    prior: Sampled,
    data: TrainSet,
    at: tuple[int, ...],
    checkpoint: Checkpoint,
    report: Reporter,
) -> Float[np.ndarray, "sample instance iteration"]:
    number = len(prior.hypers)
    with working_precision(task.problem):
        work = _Certifying(jnp.zeros((number, data.size, len(at))), jnp.zeros((), jnp.int32))
        work = checkpoint.load(work) or work
        losses, done = np.array(work.losses, np.float64), int(work.done)
        saved = time.monotonic()
        with report.stage("certify", number, "samples", done) as bar:
            for sample in range(done, number):
                hyper = jnp.asarray(prior.hypers[sample])
                losses[sample] = task.losses(with_hyper(rule, hyper), data, at)
                bar.advance(1, f"median loss {np.median(losses[sample, :, -1]):.3g}")
                if time.monotonic() - saved > 10:
                    checkpoint.save(
                        _Certifying(jnp.asarray(losses), jnp.asarray(sample + 1, jnp.int32))
                    )
                    saved = time.monotonic()
    return losses
