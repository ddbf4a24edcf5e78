"""The plan of a run as they usually are, for whoever asks before there is one.

Rules that come close to known minima on all instances, and an opponent that comes less close: so
all claims are made that a run makes where nothing goes wrong, by the code that plans runs.
"""

import numpy as np
from jaxtyping import Float

from surestep.certify.evidence import Evidence, reach_of_paths
from surestep.certify.pilot import Pilot
from surestep.certify.plan import Plan
from surestep.certify.planning import kept_iterations, plan_certificate
from surestep.certify.settings import CertifySettings
from surestep.certify.targets import targets_of
from surestep.train import Accuracies, Sampled

_HORIZON, _INSTANCES, _OPPONENT = 20, 250, "an opponent"


def usual_plan(settings: CertifySettings, samples: int) -> Plan:
    """What is planned for so many samples of a prior, and how epsilon is divided."""
    kept = kept_iterations(_HORIZON, settings.iterations)
    targets = targets_of(Accuracies((1e-2, 1e-4, 1e-6)), settings.shares, settings.closeness)
    ours, theirs = _falling(0.6, _HORIZON), _falling(0.3, 2 * _HORIZON)
    thresholds, references = np.full(_INSTANCES, 1e-2), np.zeros(_INSTANCES)
    levels = np.stack([t.levels(references, ours[:, 0], thresholds) for t in targets], axis=1)
    opponents = settings.opponents or (_OPPONENT,) * settings.compared
    evidence = Evidence(
        losses=ours[None, :, list(kept)],
        thresholds=thresholds,
        references=references,
        starts=ours[:, 0],
        reach=reach_of_paths(ours, levels)[None],
        opponent_losses=np.tile(theirs[:, _HORIZON], (len(opponents), 1)),
        opponent_reach=np.stack([reach_of_paths(theirs, levels)] * len(opponents))
        if opponents
        else np.empty((0, _INSTANCES, 3 * len(targets))),
        statistics=np.empty((1, _INSTANCES, 0)),
    )
    prior = Sampled.given(
        np.arange(float(samples))[:, None],
        np.ones(samples),
        np.tile(ours[:, -1], (samples, 1)),
        thresholds,
        np.full(samples, -np.log(samples)),
    )
    above = "the minimum" if settings.closeness else ""
    pilot = Pilot(evidence, opponents)
    return plan_certificate(settings, prior, pilot, targets, above, 1000, kept, None)


def _falling(decades: float, steps: int) -> Float[np.ndarray, "instance iteration"]:
    """Losses that fall by so many powers of ten in every step, more on some instances."""
    pace = np.linspace(0.9, 1.1, _INSTANCES)[:, None]
    return 10.0 ** -(decades * pace * np.arange(steps + 1))
