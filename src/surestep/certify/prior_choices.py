"""What the prior set says of the prior's samples: which to bet on, and which lambdas to try."""

import numpy as np
from jaxtyping import Float

from surestep.base.lazy import slow_import
from surestep.bounds.family import geometric_lambdas
from surestep.certify.settings import CertifySettings
from surestep.problem import reached
from surestep.train import Sampled, mean_square


def favourite(prior: Sampled, nonnegative: bool = True) -> int:
    """The sample to bet on: smallest losses on the prior set, on a logarithmic scale.

    Every miss weighs as much as all losses being ten times larger. Where losses may be negative,
    samples are ranked on every instance, and a miss weighs more than any rank. Betting decides how
    tight certificates are, never whether they hold.
    """
    misses = np.sum(~reached(prior.prior_losses, prior.prior_thresholds), axis=1)
    if not nonnegative:
        ranks = (
            slow_import("scipy.stats")
            .rankdata(prior.prior_losses, method="min", axis=0)
            .mean(axis=1)
        )
        return int(np.argmin(misses + (ranks - 1) / len(ranks)))
    sizes = np.mean(np.log10(np.clip(prior.prior_losses, 1e-30, 1e30)), axis=1)
    return int(np.argmin(sizes + misses))


def prior_lambdas(
    settings: CertifySettings, prior: Sampled, size: int, nonnegative: bool = True
) -> Float[np.ndarray, " lambda"]:
    """A geometric set around the lambda that would be best if the prior set were the train set.

    Where losses may be negative the posterior weighs misses, whose second moment is at most 1.
    """
    good = reached(prior.prior_losses, prior.prior_thresholds)
    squares = mean_square(prior.prior_thresholds, good)
    weights = np.exp(prior.log_prior)
    # What has no weight does not count, even where it is infinite.
    moments = np.where(weights > 0, squares / prior.probabilities**2, 0.0)
    moment = float(weights @ moments)
    moment = moment if nonnegative else 1.0
    price = np.log(settings.lambdas / settings.epsilon)
    with np.errstate(over="ignore"):
        centre = np.sqrt(2 * size * price / moment) if 0 < moment < np.inf else 1.0
    # Squares of lambdas must be numbers, too.
    centre = np.clip(centre, 1e-140, 1e140)
    return geometric_lambdas(float(centre), settings.lambda_ratio, settings.lambdas)
