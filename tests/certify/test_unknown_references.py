"""Instances on which nothing is known to count closeness from: nothing gets better by them."""

import dataclasses

import numpy as np
import pytest

from support.outcome import HORIZON, SAMPLES, falling, seen
from surestep.certify.claims import Basis, Within
from surestep.certify.evidence import Evidence, reach_of_paths
from surestep.certify.pilot import Pilot
from surestep.certify.planning import kept_iterations, plan_certificate
from surestep.certify.settings import CertifySettings
from surestep.certify.targets import Target
from surestep.train.references import UNKNOWN, completed, references_by, require_some
from surestep.train.sample import Sampled

TARGETS = (
    Target("loss", 1e-1),
    Target("reference", 1.5),
    Target("start", 1e-2),
    Target("goal"),
)
TRAIN = 300


def evidence(references, seed):
    """The same rollouts, their closeness counted from other references."""
    random = np.random.default_rng(seed)
    ours = np.stack([falling(random, TRAIN, 4, HORIZON) for _ in range(SAMPLES)]) + 1e-5
    theirs = falling(random, TRAIN, 1, 2 * HORIZON) + 1e-5
    thresholds = np.ones(TRAIN)
    levels = np.stack([t.levels(references, ours[0, :, 0], thresholds) for t in TARGETS], axis=1)
    return Evidence(
        losses=ours[:, :, list(kept_iterations(HORIZON, 36))],
        thresholds=thresholds,
        references=references,
        starts=ours[0, :, 0],
        reach=reach_of_paths(ours, levels),
        opponent_losses=theirs[None, :, HORIZON],
        opponent_reach=reach_of_paths(theirs, levels)[None],
        statistics=np.empty((SAMPLES, TRAIN, 0)),
        traits=np.empty((TRAIN, 0)),
    )


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("number", [1, 10, 200])
def test_no_statement_says_more_where_references_are_unknown(seed, number):
    random, kept = np.random.default_rng(seed), kept_iterations(HORIZON, 36)
    prior = Sampled.given(
        random.normal(size=(SAMPLES, 2)),
        np.full(SAMPLES, 0.97),
        np.stack([falling(random, 200, 4, HORIZON)[:, -1] for _ in range(SAMPLES)]),
        np.ones(200),
        np.full(SAMPLES, -np.log(SAMPLES)),
    )
    pilot = Pilot(seen(random, 1, 200, TARGETS, kept), ("heavy ball",))
    settings = CertifySettings(opponents=("heavy ball",))
    plan = plan_certificate(settings, prior, pilot, TARGETS, "the minimum", TRAIN, kept, 1.0)
    assert len(plan.claims) >= 7
    known = np.full(TRAIN, 1e-5)
    partly = known.copy()
    partly[random.permutation(TRAIN)[:number]] = UNKNOWN
    posterior = np.log(np.full(SAMPLES, 1 / SAMPLES))
    for claim in plan.claims:
        before, after = (
            claim.statement(Basis(plan, evidence(references, seed), posterior, 0))
            for references in (known, partly)
        )
        if isinstance(claim, Within):
            # Its sentence may be about a smaller share; every pair is what counts.
            for share, row in before.details["iterations"].items():
                later = after.details["iterations"][share]
                for one, other in zip(row, later, strict=True):
                    assert other is None or (one is not None and other >= one)
            continue
        sign = -1 if getattr(claim, "larger_is_better", False) else 1
        assert sign * after.value >= sign * before.value - 1e-12, claim.name
        assert sign * after.posterior_value >= sign * before.posterior_value - 1e-12, claim.name


def test_a_plan_is_made_where_some_references_of_the_prior_set_are_unknown():
    random, kept = np.random.default_rng(0), kept_iterations(HORIZON, 36)
    one = seen(random, 1, 200, TARGETS, kept)
    references = np.where(np.arange(200) < 5, UNKNOWN, 0.0)
    pilot = Pilot(dataclasses.replace(one, references=references), ("heavy ball",))
    prior = Sampled.given(
        np.zeros((1, 1)), np.ones(1), np.full((1, 200), 1e-4), np.ones(200), np.zeros(1)
    )
    plan = plan_certificate(CertifySettings(), prior, pilot, TARGETS, "the minimum", 300, kept, 1.0)
    assert all(np.isfinite(getattr(claim, "floor", 0.0)) for claim in plan.claims)


def test_a_solver_that_fails_on_a_few_costs_the_others_nothing():
    def by(thetas):
        if np.any(thetas < 0):
            raise ValueError("no")
        return 2.0 * thetas

    thetas = np.array([1.0, -1.0, 3.0])
    np.testing.assert_array_equal(references_by(by, thetas), [2.0, UNKNOWN, 6.0])
    found = references_by(lambda t: np.where(t < 0, np.nan, t), thetas)
    np.testing.assert_array_equal(found, [1.0, UNKNOWN, 3.0])
    np.testing.assert_array_equal(
        completed(found, lambda: np.array([5.0, 5.0, 5.0])), [1.0, 2.0, 3.0]
    )
    with pytest.raises(ValueError, match="no"):
        require_some(references_by(by, -np.abs(thetas)), by, -np.abs(thetas))
