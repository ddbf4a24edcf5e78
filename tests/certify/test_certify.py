"""From the train set's evidence to statements: formulas written out, rounding, refusals."""

import functools
import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import jsonschema
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import optimize, stats

from support.tiny import (
    CONFIG,
    EXPERIMENT,
    OPPONENTS,
    PROBLEM,
    SPLIT,
    TASK,
    changed,
    located,
    planned,
    references,
    sealed,
    train_set,
)
from surestep.base.errors import ConfigurationError, ProblemError, RunFolderError
from surestep.bounds.betting import tuned_bets
from surestep.bounds.budget import Share, divide
from surestep.bounds.kl import binomial_upper, mean_upper
from surestep.certify.certificate import Certificate, percent, rounded_down, rounded_up, schema
from surestep.certify.claims import (
    Advantage,
    ClippedLoss,
    GoalMissed,
    LossLevels,
    LossWhereReached,
    Saving,
    ShareOfGoal,
    Sooner,
    UserStatistic,
    Within,
)
from surestep.certify.claims.base import BoundedClaim
from surestep.certify.evidence import Evidence, reached_in
from surestep.certify.forms import tightest
from surestep.certify.gather import certify
from surestep.certify.pilot import Pilot
from surestep.certify.plan import Plan
from surestep.certify.planning import kept_iterations, pilot_run
from surestep.certify.prior_choices import favourite, prior_lambdas
from surestep.certify.settings import CertifySettings
from surestep.certify.statements import make_certificate, rigorous_statements
from surestep.certify.targets import FIRST, Target
from surestep.paper.quadratics import Quadratics, QuadraticsSettings
from surestep.problem import instance
from surestep.rollout.batched import losses_at
from surestep.rollout.loop import rollout
from surestep.rollout.tiles import Alone, observe_all
from surestep.rules import GradientDescent, HeavyBall
from surestep.rules.base import hyper_of, solver_fingerprint, with_hyper
from surestep.run.fresh import certify_rule
from surestep.storage.records import from_plain, to_json
from surestep.train.sample import sample

RULE = located()
PRIOR = sample(changed(CONFIG.sample, samples=4), TASK, RULE, SPLIT.prior, SPLIT.validation, 0)
PLAN = planned(PRIOR)
FOUND = certify(PLAN, TASK, RULE, PRIOR, OPPONENTS, references(), SPLIT.train)
with jax.enable_x64(True):
    DEPLOYED = with_hyper(RULE, jnp.asarray(PRIOR.hypers[FOUND.deployed_sample]))
DOCUMENT = make_certificate(
    "tiny", PLAN, solver_fingerprint(DEPLOYED), FOUND, {"train": 64}, {"train": SPLIT.train.sha256}
)
N = SPLIT.train.size


def statement(name):
    return next(s for s in DOCUMENT.statements if s.name == name)


def level(name):
    """A claim's share of epsilon times the deployed sample's prior weight."""
    return PLAN.ledger.of(name) * np.exp(PLAN.log_prior[FOUND.deployed_sample])


def test_the_papers_bound_written_out():
    g = np.array([float(0.5 * np.sum(np.asarray(b) ** 2)) for b in SPLIT.train.thetas.target])
    np.testing.assert_allclose(
        FOUND.evidence.thresholds, g, rtol=1e-12
    )  # the tiny goal is the start's loss
    losses = FOUND.evidence.losses[:, :, -1]
    shifted = PRIOR.prior_risks - PRIOR.prior_risks.min()
    log_prior = -shifted - np.log(np.sum(np.exp(-shifted)))
    best = np.inf
    for lam in PLAN.lambdas:
        terms = []
        for j in range(4):
            p = PRIOR.probabilities[j]
            inside = losses[j] <= g
            risk = np.sum(losses[j][inside]) / N / p
            moment = np.sum(g[inside] ** 2) / N / p**2 / N
            terms.append(log_prior[j] - lam * risk - lam**2 / 2 * moment)
        # Far from the best lambda the exponentials underflow: take the largest one out.
        kappa = max(terms) + np.log(np.sum(np.exp(np.array(terms) - max(terms))))
        best = min(best, -(kappa - np.log(len(PLAN.lambdas) / 0.05)) / lam)
    assert best == pytest.approx(FOUND.bound, rel=1e-9)
    assert np.exp(FOUND.log_posterior).sum() == pytest.approx(1)


def test_the_deployed_rule_has_a_paper_bound_of_its_own():
    """A point mass is a posterior: its divergence is minus its log prior weight."""
    j = FOUND.deployed_sample
    price = np.log(len(PLAN.lambdas) / 0.05) - PRIOR.log_prior[j]
    at = [
        FOUND.risks[j] + price / lam + lam / 2 * FOUND.second_moments[j] / N for lam in PLAN.lambdas
    ]
    assert FOUND.point_bound == pytest.approx(min(at), rel=1e-12)
    assert FOUND.point_bound >= FOUND.bound


def test_the_goal_is_the_exact_binomial_bound_at_the_weighted_level():
    misses = int(
        np.sum(~(FOUND.evidence.losses[FOUND.deployed_sample, :, -1] <= FOUND.evidence.thresholds))
    )
    expected = stats.beta.ppf(1 - level("missing the goal"), misses + 1, N - misses)
    assert statement("missing the goal").value == pytest.approx(expected, rel=1e-9)


def bounded(values: np.ndarray, paid: float, claim: Any) -> float:
    """The bound on a mean as the claim's form defines it, written out."""
    if claim.form == "chernoff":
        return float(mean_upper(float(np.mean(values)), len(values), paid))
    assert claim.form == "betting"
    assert sum(bet.weight for bet in claim.bets) <= 1

    def short_of_rejection(m):
        capital = sum(
            bet.weight * np.prod(1 + min(bet.size, 0.999 / (1 - m)) * (m - values))
            for bet in claim.bets
        )
        return np.log(capital * paid)

    found: Any = optimize.brentq(short_of_rejection, np.mean(values), 1 - 1e-12, xtol=1e-15)
    return float(found)


def named(name: str, plan: Plan = PLAN) -> Any:
    return next(claim for claim in plan.claims if claim.name == name)


def test_means_are_bounded_in_the_plans_form_at_the_weighted_level():
    final = FOUND.evidence.losses[FOUND.deployed_sample, :, -1]
    shares = np.minimum(final / FOUND.evidence.thresholds, 1)
    expected = bounded(shares, level("share of the goal"), named("share of the goal"))
    assert statement("share of the goal").value == pytest.approx(expected, rel=1e-9)
    claim = named("loss, clipped")
    clipped = np.minimum(final, claim.largest)
    expected = bounded(clipped / claim.largest, level("loss, clipped"), claim)
    assert statement("loss, clipped").value == pytest.approx(claim.largest * expected, rel=1e-9)
    assert statement("loss, clipped").value >= np.mean(clipped)
    assert statement("loss, clipped").details["form"] == claim.form == "betting"


def test_the_settings_can_name_the_form_of_all_means():
    for form in ("chernoff", "betting", "pac-bayes-kl"):
        plan = planned(PRIOR, form=form)
        assert {claim.form for claim in plan.claims if isinstance(claim, BoundedClaim)} == {form}


def test_what_is_forecast_to_be_tightest_is_about_as_tight_as_any_form():
    """On the train set, which may differ from the prior set, so a little may be lost."""

    def values(form):
        plan = planned(PRIOR, form=form)
        stated = rigorous_statements(
            plan, FOUND.evidence, FOUND.log_posterior, FOUND.deployed_sample
        )
        return {one.name: one.value for one in stated}

    best, chernoff = values("best"), values("chernoff")
    # Small is good, and large of an advantage.
    assert best["share of the goal"] <= 1.02 * chernoff["share of the goal"]
    assert best["advantage over heavy ball"] > chernoff["advantage over heavy ball"] + 0.2


def test_values_that_are_like_coins_are_not_bet_on():
    """Relative entropy is exact enough for them; whatever varies less is bet on."""
    plan, seen = tables([1.0])
    random = np.random.default_rng(6)
    coins = (random.random(300) < 0.1).astype(float)
    laws = {"chernoff": coins, "betting": 0.5 * coins + 0.1}
    for form, values in laws.items():
        statistics = values[None, :, None]
        several = changed(seen.on(np.zeros(300, int)), statistics=statistics)
        own = UserStatistic("sublevel", "own")
        asked = changed(plan, claims=(own,), train_size=300, statistics=("own",))
        found = tightest(CertifySettings(), asked, Pilot(several, ()), 0.9)
        assert named(own.name, found).form == form


def test_losses_are_clipped_where_the_prior_set_says_that_least_is_left_unsaid():
    """A larger constant says more; one that a few large losses decide says little of the others."""
    random = np.random.default_rng(4)
    plain = np.full(300, 1.0) + 0.05 * random.standard_normal(300)
    rare = np.where(np.arange(300) % 100 == 0, 1e6, plain)
    constants = {}
    for name, losses in {"plain": plain, "rare": rare}.items():
        plan, seen = tables([1.0])
        seen = changed(
            seen.on(np.zeros(300, int)), losses=losses[None, :, None], references=np.zeros(300)
        )
        claim = ClippedLoss("sublevel", 1.0)
        plan = changed(plan, claims=(claim,), train_size=300)
        found = tightest(CertifySettings(), plan, Pilot(seen, ()), 0.9)
        constants[name] = named(claim.name, found).largest
    assert constants["plain"] >= plain.max()
    assert constants["rare"] < 10


def test_a_clipped_loss_is_counted_from_the_reference_or_from_0():
    plan, seen = tables([3.0, 7.0])
    seen = changed(seen, references=np.array([0.0, 1.0, 2.0, 4.0]))
    above, itself = (ClippedLoss("x", 5.0, counted=counted) for counted in ("above", "loss"))
    assert above.means(plan, seen)[0] * 5 == pytest.approx([(3 + 2 + 1 + 0) / 4, (15 + 3) / 4])
    assert itself.means(plan, seen)[0] * 5 == pytest.approx([3, 5])
    plan = changed(plan, above="the minimum")
    assert "above the minimum in expectation" in above.sentence(1.0, plan)
    assert "above" not in itself.sentence(1.0, plan)


def test_what_would_say_nothing_is_not_claimed_and_leaves_its_share_to_the_rest():
    single = changed(SPLIT.train, thetas=instance(SPLIT.train.thetas, np.arange(1)))
    few = planned(PRIOR, train=single)
    assert [claim.kind for claim in few.claims] == ["goal", "levels"]
    for plan in (few, PLAN):
        assert [share.name for share in plan.shares] == [claim.name for claim in plan.claims]
        assert plan.ledger.spent == pytest.approx(plan.epsilon, rel=1e-12)
    assert few.ledger.of("missing the goal") > 2 * PLAN.ledger.of("missing the goal")


def test_bets_are_tuned_for_the_share_that_a_claim_has_in_the_end():
    """Also where other claims were given up, and where the settings say what shares are."""
    for plan in (PLAN, planned(PRIOR, weights=(("ratio", 30.0),))):
        claim = named("share of the goal", plan)
        pilot = pilot_run(
            changed(CONFIG.certify, opponents=()), TASK, EXPERIMENT, RULE, PRIOR, SPLIT.prior, N
        )
        values = claim.values(plan, pilot.evidence)[0, 0]
        weight = np.exp(max(plan.log_prior))
        expected = tuned_bets(values, N, np.log(plan.ledger.of(claim.name) * weight))
        assert claim.bets == expected


def test_bets_are_part_of_the_plan_and_of_its_hash():
    text = json.loads(to_json(PLAN))
    again = from_plain(Plan, text)
    assert again.sha256 == PLAN.sha256
    claim = next(one for one in text["claims"] if one.get("form") == "betting")
    claim["bets"][0]["size"] *= 1.01
    assert from_plain(Plan, text).sha256 != PLAN.sha256
    for wrong in ([], [{"size": 1.0, "weight": 1.5}], [{"size": -1.0, "weight": 0.5}]):
        claim["bets"] = wrong
        with pytest.raises(ConfigurationError, match="bet"):
            from_plain(Plan, text)


def test_levels_hold_for_all_pairs_at_once():
    claim = next(c for c in PLAN.claims if c.kind == "levels")
    found = statement(claim.name).details
    pairs = len(claim.iterations) * len(claim.tolerances)
    for i, iteration in enumerate(claim.iterations):
        losses = FOUND.evidence.losses[
            FOUND.deployed_sample, :, list(PLAN.iterations).index(iteration)
        ]
        for j, tolerance in enumerate(claim.tolerances):
            k = int(np.sum(losses > tolerance))
            paid = level(claim.name) / 2 / pairs
            expected = stats.beta.ppf(1 - paid, k + 1, N - k) if k < N else 1
            assert found["above"][i][j] == pytest.approx(expected, rel=1e-9)


def test_quantiles_are_order_statistics_or_losses_of_the_plan():
    claim = next(c for c in PLAN.claims if c.kind == "levels")
    found = statement(claim.name)
    last = len(claim.iterations) - 1
    for share in claim.quantiles:
        for i, iteration in enumerate(claim.iterations):
            losses = np.sort(
                FOUND.evidence.losses[
                    FOUND.deployed_sample, :, list(PLAN.iterations).index(iteration)
                ]
            )
            part = 0.5 if i == last else 0.5 / last
            paid = level(claim.name) / 2 / len(claim.quantiles) * part
            # The smallest k for which k losses below the quantile are improbable enough.
            k = next((k for k in range(N + 1) if stats.binom.sf(k - 1, N, share) <= paid), N + 1)
            ranked = losses[k - 1] if k <= N else np.inf
            row = np.array(found.details["above"][i])
            read_off = np.min(np.array(claim.tolerances)[row <= 1 - share], initial=np.inf)
            expected = min(ranked, read_off)
            shown = found.details["quantiles"][f"{share:g}"][i]
            assert shown == (expected if np.isfinite(expected) else None)
    assert found.value == found.details["quantiles"]["0.8"][-1]
    assert found.posterior_value >= found.value


def test_the_sublevel_statement_uses_lower_bounds_and_the_declared_moment():
    claim = next(c for c in PLAN.claims if c.kind == "sublevel")
    assert claim.second_moment == EXPERIMENT.goal_second_moment
    half, j = PLAN.ledger.of(claim.name) / 2, FOUND.deployed_sample
    weight = np.exp(PLAN.log_prior[j])
    misses = int(np.sum(~(FOUND.evidence.losses[j, :, -1] <= FOUND.evidence.thresholds)))
    p = 1 - stats.beta.ppf(1 - half * weight, misses + 1, N - misses)
    inside = FOUND.evidence.losses[j, :, -1] <= FOUND.evidence.thresholds
    risk = np.sum(FOUND.evidence.losses[j, inside, -1]) / N / p
    price = np.log(len(PLAN.lambdas) / half) - np.log(weight)
    at = [risk + price / lam + lam / 2 * claim.second_moment / p**2 / N for lam in PLAN.lambdas]
    assert statement(claim.name).value == pytest.approx(min(at), rel=1e-8)


TARGETS = (Target("start", 0.3), Target("start", 0.6))
"""How much of the start's loss is left; the rule is soon at the second on nearly all instances."""


@functools.cache
def near():
    """A plan about targets that are reached, its evidence, and statements by name."""
    claims = (
        Within("iterations until", (0, 1), (0.5, 0.8), 1, 0.8),
        Sooner("sooner", "heavy ball", 1),
        Saving("saving", "heavy ball", 1),
    )
    shares = divide(0.05, {claim.name: claim.weight for claim in claims}).shares
    plan = changed(PLAN, targets=TARGETS, claims=claims, shares=shares)
    found = certify(plan, TASK, RULE, PRIOR, OPPONENTS, references(), SPLIT.train)
    asserted = rigorous_statements(plan, found.evidence, found.log_posterior, found.deployed_sample)
    return plan, found, {one.name: one for one in asserted}


@functools.cache
def paths(name):
    """Losses and gradients of every train instance, one rollout after another."""
    deployed = with_hyper(RULE, jnp.asarray(PRIOR.hypers[near()[1].deployed_sample]))
    solver = deployed if name == "ours" else OPPONENTS[name]
    found = []
    for i in range(N):
        theta = SPLIT.train.thetas._replace(
            diagonal=SPLIT.train.thetas.diagonal[i], target=SPLIT.train.thetas.target[i]
        )
        run = rollout(solver, PROBLEM, theta, 2 * TASK.horizon)
        found.append((np.asarray(run.losses), np.asarray(run.gradients)))
    return found


def first_there(name, share, most):
    """The gradient evaluations until so much of the start's loss is left; infinite if never."""
    hits = []
    for losses, gradients in paths(name):
        below = np.flatnonzero(losses[: most + 1] <= share * losses[0])
        hits.append(float(gradients[below[0]]) if below.size else np.inf)
    return np.array(hits)


def paid(plan, found, name):
    return plan.ledger.of(name) * np.exp(plan.log_prior[found.deployed_sample])


def test_iterations_until_a_target_are_order_statistics_of_rollouts():
    plan, found, asserted = near()
    details = asserted["iterations until"].details
    spent = paid(plan, found, "iterations until")
    for t, target in enumerate(TARGETS):
        stays, cost = [], []
        for losses, gradients in paths("ours"):
            above = np.flatnonzero(~(losses[: TASK.horizon + 1] <= target.value * losses[0]))
            since = above[-1] + 1 if above.size else 0
            stays.append(since if since <= TASK.horizon else np.inf)
            cost.append(float(gradients[since]) if since <= TASK.horizon else np.inf)
        for s, share in enumerate((0.5, 0.8)):
            # The headline has half; the other three pairs of target and share have the rest.
            weight = 0.5 if (t, s) == (1, 1) else 0.5 / 3
            for unit, part, seen in (("iterations", 0.7, stays), ("gradients", 0.3, cost)):
                level = part * weight * spent
                k = next((k for k in range(N + 1) if stats.binom.sf(k - 1, N, share) <= level), 0)
                expected = np.sort(seen)[k - 1] if k else np.inf
                shown = details[unit][f"{share:g}"][t]
                assert shown == (expected if np.isfinite(expected) else None)
    assert asserted["iterations until"].value == details["iterations"]["0.8"][1]
    assert np.isfinite(asserted["iterations until"].value)
    assert asserted["iterations until"].posterior_value >= asserted["iterations until"].value
    words = f"after {asserted['iterations until'].value:.0f} iterations of the deployed rule"
    assert words in asserted["iterations until"].sentence


def test_who_is_sooner_is_compared_on_the_same_instances():
    plan, found, asserted = near()
    ours = first_there("ours", 0.6, TASK.horizon)
    theirs = first_there("heavy ball", 0.6, 2 * TASK.horizon)
    slower = int(np.sum(~(np.isfinite(ours) & (ours <= theirs))))
    expected = stats.beta.ppf(1 - paid(plan, found, "sooner"), slower + 1, N - slower)
    assert asserted["sooner"].value == pytest.approx(expected, rel=1e-9)
    tied = int(np.sum(np.isfinite(ours) & (ours == theirs)))
    assert asserted["sooner"].details["ties_on_train_set"] == tied


def test_the_saving_is_a_lower_bound_in_doublings():
    plan, found, asserted = near()
    ours = first_there("ours", 0.6, TASK.horizon)
    theirs = np.minimum(first_there("heavy ball", 0.6, 2 * TASK.horizon), 2 * TASK.horizon)
    saved = np.where(np.isfinite(ours), np.log2(theirs / np.maximum(ours, 1)), -5.0)
    saved = np.clip(saved, -5, 5)
    upper = mean_upper(float(np.mean(0.5 - saved / 10)), N, paid(plan, found, "saving"))
    assert asserted["saving"].value == pytest.approx(float(5 * (1 - 2 * upper)), rel=1e-9)
    assert asserted["saving"].value <= saved.mean()


def test_the_advantage_is_a_lower_bound_in_powers_of_ten():
    final, theirs = (
        FOUND.evidence.losses[FOUND.deployed_sample, :, -1],
        FOUND.evidence.opponent_losses[0],
    )
    gained = np.clip(np.log10(theirs / final), -3, 3)
    name = "advantage over heavy ball"
    upper: Any = bounded(0.5 - gained / 6, level(name), named(name))
    found = statement(name).value
    assert found == pytest.approx(3 * (1 - 2 * upper), rel=1e-9)
    assert found <= gained.mean()


def test_posterior_values_come_along():
    for s in DOCUMENT.statements:
        assert np.isfinite(s.posterior_value)


def test_the_budget_adds_up_and_is_in_the_certificate():
    assert sum(share.epsilon for share in DOCUMENT.ledger) == pytest.approx(0.05, rel=1e-12)
    paid = {share.name: share.epsilon for share in DOCUMENT.ledger}
    for s in DOCUMENT.statements:
        assert s.epsilon == paid.get(s.name, 0.0)
        assert s.rigorous == (s.name in paid)


def test_the_plan_knows_nothing_of_the_train_set():
    np.testing.assert_array_equal(prior_lambdas(CONFIG.certify, PRIOR, N), PLAN.lambdas)
    assert PLAN.lambdas[0] < FOUND.lambda_ < PLAN.lambdas[-1]
    assert np.argmax(PLAN.log_prior) == favourite(PRIOR)
    assert np.exp(PLAN.log_prior).sum() == pytest.approx(1)
    assert from_plain(Plan, json.loads(to_json(PLAN))) == PLAN


@pytest.mark.parametrize(
    ("losses", "best"),
    [
        # A miss (a loss of 10 where 2 was the goal) costs a power of ten in the mean ...
        ([[1e-5, 10.0], [1.0, 1.0], [10**-1.1, 10**-1.1]], 2),
        # ... and is forgiven where the rest is better by more.
        ([[1e-7, 10.0], [1.0, 1.0], [10**-1.1, 10**-1.1]], 0),
        ([[1e-9, np.inf], [1e-2, 1e-2]], 1),
    ],
)
def test_the_favourite_ends_lowest_and_seldom_misses(losses, best):
    few = changed(PRIOR, prior_losses=np.array(losses), prior_thresholds=np.array([2.0, 2.0]))
    assert favourite(few) == best


def test_the_losses_are_those_of_the_samples_on_the_train_set():
    rule = with_hyper(RULE, jnp.asarray(PRIOR.hypers[2]))
    expected = losses_at(rule, PROBLEM, SPLIT.train.thetas, PLAN.iterations, 7)
    np.testing.assert_allclose(FOUND.evidence.losses[2], expected, rtol=1e-9)


def test_infinite_losses_count_as_the_worst():
    evidence = Evidence(
        losses=np.array([[[np.inf], [0.0], [3.0]]]),
        thresholds=np.array([2.0, 2.0, 2.0]),
        references=np.zeros(3),
        starts=np.ones(3),
        reach=np.full((1, 3, 0), np.inf),
        opponent_losses=np.array([[1.0, 1.0, np.inf]]),
        opponent_reach=np.full((1, 3, 0), np.inf),
        statistics=np.zeros((1, 3, 0)),
        traits=np.zeros((3, 0)),
    )
    plan = changed(PLAN, iterations=(10,), claims=())
    for claim, expected in [
        (GoalMissed("x"), [1, 0, 1]),
        (ShareOfGoal("x"), [1, 0, 1]),
        (ClippedLoss("x", 4.0), [1, 0, 0.75]),
        (Advantage("x", "heavy ball"), [1, 0, 0]),
    ]:
        np.testing.assert_allclose(claim.values(plan, evidence)[0, 0], expected)


def progress_made(run):
    return jnp.minimum(run.losses[-1] / run.losses[0], 1.0)


def last_loss(run):
    return jnp.minimum(run.losses[-1] / 1e9, 1.0)


def test_several_statistics_keep_their_names_whatever_these_are():
    """Columns are found by the order in which statistics are declared, not by the alphabet."""
    own = {"z: share of the first loss": progress_made, "a: last loss": last_loss}
    task = changed(TASK, statistics=own)
    plan = planned(PRIOR, task=task, opponents=(), compared=False)
    found = certify(plan, task, RULE, PRIOR, {}, references(), SPLIT.train)
    losses = found.evidence.losses
    shares = np.minimum(losses[:, :, -1] / losses[:, :, 0], 1.0)
    np.testing.assert_allclose(found.evidence.statistics[:, :, 0], shares, rtol=1e-12)
    np.testing.assert_allclose(found.evidence.statistics[:, :, 1], losses[:, :, -1] / 1e9)
    for claim, wanted in zip(plan.claims[-2:], (shares, losses[:, :, -1] / 1e9), strict=True):
        assert claim.name in own and isinstance(claim, UserStatistic)
        np.testing.assert_allclose(claim.values(plan, found.evidence)[0], wanted, rtol=1e-12)


def test_a_users_own_statistic_is_certified_like_any_other():
    task = changed(TASK, statistics={"share of the first loss": progress_made})
    plan = planned(PRIOR, task=task, opponents=(), compared=False)
    found = certify(plan, task, RULE, PRIOR, {}, references(), SPLIT.train)
    document = make_certificate("tiny", plan, "", found, {"train": N}, {})
    own = next(s for s in document.statements if s.name == "share of the first loss")
    losses = found.evidence.losses[found.deployed_sample]
    values = np.minimum(losses[:, -1] / losses[:, 0], 1)
    weighted = plan.ledger.of(own.name) * np.exp(plan.log_prior[found.deployed_sample])
    expected = bounded(values, weighted, named(own.name, plan))
    assert own.value == pytest.approx(expected, rel=1e-6)
    wild = changed(TASK, statistics={"share of the first loss": lambda run: run.losses[0]})
    with pytest.raises(ProblemError, match="must lie between 0 and 1"):
        certify(plan, wild, RULE, PRIOR, {}, references(), SPLIT.train)
    with pytest.raises(ConfigurationError, match="other statistics"):
        certify(plan, TASK, RULE, PRIOR, {}, references(), SPLIT.train)


def test_the_second_moment_of_the_goal_is_exact():
    problem = Quadratics.create(QuadraticsSettings(dimension=5), 0)
    targets = np.asarray(surestep_targets(problem, 200_000))
    start = 0.5 * np.sum(targets**2, axis=1)
    for exponent in (0.0, 0.5, 1.0):
        goal = changed(CONFIG.goal, scale=1.3, exponent=exponent)
        expected = np.mean((1.3 * start**exponent) ** 2)
        assert problem.goal_second_moment(goal) == pytest.approx(expected, rel=0.02)
    assert problem.goal_second_moment(changed(CONFIG.goal, exponent=0.75)) is None


def surestep_targets(problem, number):
    normal = np.random.default_rng(0).normal(size=(number, 5))
    return np.asarray(problem.mean) + normal @ np.asarray(problem.mixing)


def test_kept_iterations():
    assert kept_iterations(350, 35) == tuple(range(0, 351, 10))
    assert kept_iterations(10, 36) == tuple(range(11))
    assert kept_iterations(7, 1) == (0, 7)


def test_the_certificate_speaks_plainly_and_names_its_estimates(tmp_path):
    text = str(DOCUMENT)
    assert "With confidence 95% all of these hold at once" in text
    assert "reaches the goal within 10 iterations with probability at least 0.9" in text
    assert "not a guarantee" in text and "estimates in place of" in text
    assert "opened after the plan was fixed" in text
    path = tmp_path / "certificate.json"
    DOCUMENT.save(path)
    assert Certificate.load(path) == DOCUMENT


def test_a_certificate_that_is_no_certificate_is_refused(tmp_path):
    path = tmp_path / "certificate.json"
    path.write_text("{")
    with pytest.raises(RunFolderError, match="cannot be read"):
        Certificate.load(path)
    DOCUMENT.save(path)
    plain = json.loads(path.read_text())
    plain["horizon"] = "ten"
    path.write_text(json.dumps(plain))
    with pytest.raises(RunFolderError, match=r"horizon should be of type int, not 'ten'"):
        Certificate.load(path)


@pytest.mark.parametrize(
    ("epsilon", "shown"),
    [
        (0.05, "95%"),
        (0.001, "99.9%"),
        (0.005, "99.5%"),
        (1e-6, "99.9999%"),
        (1e-15, "99.99999999%"),
    ],
)
def test_confidence_is_not_rounded_to_certainty(epsilon, shown):
    assert percent(1 - epsilon) == shown


@given(st.floats(1e-12, 1e12))
def test_printed_bounds_are_rounded_to_the_safe_side(value):
    assert value * (1 - 1e-12) <= float(rounded_up(value)) <= value * (1 + 2e-3)
    assert value * (1 + 1e-12) >= float(rounded_down(value)) >= value * (1 - 2e-3)


def test_a_loss_that_goes_negative_is_refused():
    """It may start out positive: only the certified losses show it."""

    class Sinking(Quadratics):
        def loss(self, x, theta):
            return super().loss(x, theta) - 20.0

    sinking = Sinking.create(CONFIG.problem, CONFIG.family_seed)
    with pytest.raises(ProblemError, match=r"fell to -.* of the TrainSet"):
        certify(
            PLAN, changed(TASK, problem=sinking), RULE, PRIOR, OPPONENTS, references(), SPLIT.train
        )


def test_a_solvers_hash_knows_its_kind_and_every_number():
    rules = [RULE, with_hyper(RULE, 2 * hyper_of(RULE)), *EXPERIMENT.baselines.values()]
    rules += [HeavyBall(0.1, 0.2), HeavyBall(0.1, 0.3), GradientDescent(0.1)]
    assert len({solver_fingerprint(rule) for rule in rules}) == len(rules)
    assert solver_fingerprint(HeavyBall(0.1, 0.2)) == solver_fingerprint(HeavyBall(0.1, 0.2))


def test_what_is_left_is_counted_from_the_problems_start_wherever_a_rule_begins():
    evidence = Evidence(
        losses=np.array([[[2.0, 1.0], [8.0, 1.0]]]),  # a learned start has closed most of the gap
        thresholds=np.ones(2),
        references=np.zeros(2),
        starts=np.array([100.0, 1000.0]),
        reach=np.zeros((1, 2, 0)),
        opponent_losses=np.zeros((0, 2)),
        opponent_reach=np.zeros((0, 2, 0)),
        statistics=np.zeros((1, 2, 0)),
        traits=np.zeros((2, 0)),
    )
    plan = changed(PLAN, iterations=(0, 10), claims=())
    claim = LossLevels("x", iterations=(10,), tolerances=(5e-3,), quantiles=(), counted="left")
    np.testing.assert_array_equal(claim.values(plan, evidence)[0], [[1.0, 0.0]])


def test_the_first_sentence_is_about_what_is_certified():
    """Where the planned share is not, about the largest that is; all hold at once."""
    reach = np.full((1, 200, 3), np.inf)
    reach[0, :176] = 7.0
    zeros = np.zeros(200)
    evidence = Evidence(
        losses=np.ones((1, 200, 2)), thresholds=zeros, references=zeros, starts=zeros + 1,
        reach=reach, opponent_losses=np.zeros((0, 200)), opponent_reach=np.zeros((0, 200, 3)),
        statistics=np.zeros((1, 200, 0)), traits=np.zeros((200, 0)),
    )  # fmt: skip
    claim = Within("until", (0,), (0.5, 0.8, 0.95), 0, 0.95)
    plan = changed(
        PLAN, claims=(claim,), shares=(Share("until", 0.05),), train_size=200,
        iterations=(0, 10), horizon=10, log_prior=(0.0,), targets=(Target("loss", 0.1),),
    )  # fmt: skip
    [found] = rigorous_statements(plan, evidence, np.zeros(1), 0)
    assert found.value == 7
    assert found.details["headline"] == {"target": 0, "share": 0.8}
    assert "at least 80% of new instances have a loss of at most 0.1 after 7" in found.sentence


def tables(losses, **changes):
    """Evidence of samples with constant losses on four instances, and a plan for it."""
    losses = np.asarray(losses, float)[:, None, None] * np.ones((1, 4, 1))
    evidence = Evidence(
        losses=losses,
        thresholds=np.ones(4),
        references=np.zeros(4),
        starts=np.ones(4),
        reach=np.zeros((len(losses), 4, 0)),
        opponent_losses=np.zeros((0, 4)),
        opponent_reach=np.zeros((0, 4, 0)),
        statistics=np.zeros((len(losses), 4, 0)),
        traits=np.zeros((4, 0)),
    )
    claim = LossWhereReached("sublevel", 1.0)
    flat = tuple(np.full(len(losses), -np.log(len(losses))).tolist())
    plan = changed(
        PLAN, claims=(claim,), shares=(Share("sublevel", 0.05),), train_size=4, iterations=(10,),
        log_prior=flat, lambdas=(0.5, 2.0), opponents=(), statistics=(),
        **changes,
    )  # fmt: skip
    return plan, evidence


def test_the_sublevel_statement_speaks_of_the_certificates_posterior():
    """Not of the one that would make it smallest: here all weight is on the worse sample."""
    plan, evidence = tables([1e-3, 0.9])
    worse = np.array([-np.inf, 0.0])
    [found] = rigorous_statements(plan, evidence, worse, 1)
    assert found.posterior_value == pytest.approx(found.value)
    assert found.posterior_value >= 0.9


def test_a_rule_that_always_misses_still_gets_a_certificate():
    plan, evidence = tables([5.0, np.inf])
    [found] = rigorous_statements(plan, evidence, np.zeros(2), 0)
    assert np.isinf(found.value) and np.isinf(found.posterior_value)
    assert "is certified: it is reached too rarely" in found.sentence
    assert "Infinity" not in to_json(found)


def test_goals_that_are_zero_or_infinite_count_as_they_should():
    evidence = changed(
        tables([0.0])[1],
        losses=np.array([[[0.0], [1.0], [1.0], [np.inf]]]),
        thresholds=np.array([0.0, 0.0, np.inf, np.inf]),
    )
    claim = ShareOfGoal("ratio")
    np.testing.assert_array_equal(claim.values(PLAN, evidence)[0, 0], [0, 1, 1, 1])


@pytest.mark.parametrize("size", [256, 300])
def test_sets_of_a_block_and_more_are_certified_without_opponents_and_statistics(size):
    train = train_set(size, 0)
    seen = TASK.observe(RULE, train, TASK.watch((0, 10)))
    shapes = (seen.losses.shape, seen.reach.shape, seen.statistics.shape)
    assert shapes == ((size, 2), (size, 0), (size, 0))


def test_an_opponent_is_not_beaten_by_being_stopped_early():
    """Our rule spends four gradients an iteration; the opponent's hit comes after the horizon."""

    class Wasteful(GradientDescent):
        def step(self, oracle, state):
            oracle.spend(gradients=3)
            return super().step(oracle, state)

    fast, slow = Wasteful(1 / 200), GradientDescent(1 / 3000)
    experiment = changed(EXPERIMENT, baselines={"slow": slow})
    document = certify_rule(
        "wasteful",
        fast,
        TASK,
        experiment,
        SPLIT.prior,
        sealed(SPLIT.train.size, 1),
        changed(CONFIG.certify, shares=(0.5,)),
    )
    assert document.opened is not None
    train = sealed(SPLIT.train.size, 1).open(document.opened.commitment)
    horizon = 8 * TASK.horizon

    def needed(rule, most):
        watch = TASK.watch((most,), 1)
        goals = 0.5 * TASK.start_losses(train)[:, None]
        work = TASK.work(rule, train, watch, targets=goals)
        return reached_in(observe_all(work, Alone()).reach, FIRST, 0)

    mine, long = needed(fast, TASK.horizon), needed(slow, horizon)
    assert np.any((mine > 2 * TASK.horizon) & (long > 2 * TASK.horizon) & np.isfinite(long))
    lost = int(np.sum(~(np.isfinite(mine) & (mine <= long))))
    found = next(s for s in document.statements if s.name == "sooner than slow")
    assert found.value == pytest.approx(float(binomial_upper(lost, N, found.epsilon)), rel=1e-9)


def test_two_claims_of_one_name_are_refused():
    task = changed(TASK, statistics={"missing the goal": last_loss})
    with pytest.raises(ConfigurationError, match="two claims are called 'missing the goal'"):
        planned(PRIOR, task=task)


def test_a_plan_for_other_data_is_refused():
    with pytest.raises(ConfigurationError, match="made for other data"):
        certify(
            changed(PLAN, train_size=3), TASK, RULE, PRIOR, OPPONENTS, references(), SPLIT.train
        )
    with pytest.raises(ConfigurationError, match="other opponents"):
        certify(PLAN, TASK, RULE, PRIOR, {}, references(), SPLIT.train)


@pytest.mark.parametrize(
    "changes", [{"epsilon": 0.0}, {"epsilon": 1.0}, {"lambdas": 0}, {"stake": 1.0}, {"levels": 0}]
)
def test_bad_settings_are_refused(changes):
    with pytest.raises(ConfigurationError, match=r"certify\."):
        changed(CertifySettings(), **changes).validate()


def test_the_published_schema_is_the_certificates(tmp_path):
    path = Path(__file__).parents[2] / "docs" / "certificate.schema.json"
    assert path.read_text() == to_json(schema())
    published = json.loads(path.read_text())
    plain = json.loads(to_json(DOCUMENT))
    jsonschema.validate(plain, published)
    for broken in ({"horizon": "ten"}, {"more": 1}, {"statements": [{}]}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(plain | broken, published)
