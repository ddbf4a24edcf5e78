"""Statements by kind of instance and about predictions: formulas, coverage, lies that are found."""

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import surestep as ss
from support.session import repeats
from support.tiny import changed
from support.types import unchecked
from surestep.base.errors import ConfigurationError, ProblemError
from surestep.bounds.budget import Share
from surestep.certify.audit import AuditFamily, Outcome, audit, scalar_quadratics, violations
from surestep.certify.claims import Asserted, Basis, Foretold, InStratum, Truth
from surestep.certify.claims.shift import SHIFT
from surestep.certify.evidence import Evidence, reached_in
from surestep.certify.foresight import foresee
from surestep.certify.pilot import Pilot
from surestep.certify.settings import CertifySettings
from surestep.certify.targets import ITERATIONS
from surestep.certify.traits import Difficulty, Label, labels_of, part_features, traits_on
from surestep.problem.datasets import PriorSet

SETTINGS = CertifySettings()
FAMILY = changed(scalar_quadratics(), betting=False)
PLAN = FAMILY.plan(200, 0.2)
EVIDENCE = FAMILY.draw(np.random.default_rng(3), 200)
BASIS = Basis(PLAN, EVIDENCE, np.array(PLAN.log_prior), 0)
WEIGHTS = np.exp(np.array(PLAN.log_prior))


def claim_called(name) -> Any:
    return next(c for c in PLAN.claims if c.name == name)


def test_a_kind_has_the_exact_bound_for_its_own_instances_alone():
    for name, low, high in (("easy", -np.inf, FAMILY.edge), ("hard", FAMILY.edge, np.inf)):
        claim = claim_called(name)
        found = claim.statement(BASIS)
        inside = (EVIDENCE.traits[:, 0] > low) & (EVIDENCE.traits[:, 0] <= high)
        n = int(inside.sum())
        assert 60 < n < 140 and found.details["train_instances"] == n
        missed = int(np.sum(EVIDENCE.final[0, inside] > EVIDENCE.thresholds[inside]))
        level = PLAN.ledger.of(name) * WEIGHTS[0] / 2
        expected = stats.beta.ppf(1 - level, missed + 1, n - missed)
        assert found.value == pytest.approx(expected, rel=1e-9)
        there = np.sort(reached_in(EVIDENCE.reach[0], ITERATIONS, claim.target)[inside])
        for share in claim.shares:
            spent = level / len(claim.shares)
            k = next((k for k in range(n + 1) if stats.binom.sf(k - 1, n, share) <= spent), 0)
            needed = there[k - 1] if k else np.inf
            shown = found.details["iterations"][f"{share:g}"]
            assert shown == (needed if np.isfinite(needed) else None)
        assert f"({n} of 200 train instances)" in found.sentence
        assert found.details[SHIFT]["failing"] == found.value


def test_kinds_are_told_apart_by_the_trait_and_are_disjoint():
    easy, hard = claim_called("easy"), claim_called("hard")
    assert np.all(easy.inside(EVIDENCE) ^ hard.inside(EVIDENCE))
    odd, rare = claim_called("odd"), claim_called("rare")
    np.testing.assert_array_equal(odd.inside(EVIDENCE), EVIDENCE.traits[:, 1] == 1)
    np.testing.assert_array_equal(rare.inside(EVIDENCE), EVIDENCE.traits[:, 1] == 2)


def test_of_a_kind_that_the_train_set_does_not_have_nothing_is_said():
    none = changed(EVIDENCE, traits=np.zeros((200, 2)))
    claim = claim_called("rare")
    found = claim.statement(changed(BASIS, evidence=none))
    assert found.value == found.posterior_value == 1
    assert found.details["iterations"] == {"0.5": None, "0.8": None, "0.9": None}
    assert "no number of iterations is certified" in found.sentence
    assert not claim.says_something(found)


def test_factors_are_order_statistics_of_outcomes_over_predictions():
    claim = claim_called("outcome over prediction")
    found = claim.statement(BASIS)
    needed = reached_in(EVIDENCE.reach[0], ITERATIONS, len(PLAN.targets) - 1)
    ratios = np.sort(needed / EVIDENCE.traits[:, 0])
    for share in claim.shares:
        part = 0.5 if share == claim.share else 0.25
        level = part * PLAN.ledger.of(claim.name) * WEIGHTS[0]
        k = next(k for k in range(201) if stats.binom.sf(k - 1, 200, share) <= level)
        expected = ratios[k - 1]
        shown = found.details["factors"][f"{share:g}"]
        assert shown == (expected if np.isfinite(expected) else None)
    assert found.value == (found.details["factors"]["0.9"] or np.inf)
    assert "of none by itself" in found.sentence or np.isinf(found.value)


def test_losses_below_the_floor_count_as_the_floor():
    loss = Difficulty("loss", 0, 0.05, (), (), 0.0, 0.0, 0.0)
    plan = changed(PLAN, traits=(loss, *PLAN.traits[1:]))
    found = claim_called("outcome over prediction").ratios(plan, EVIDENCE)
    above = np.maximum(EVIDENCE.final - EVIDENCE.references, 0.05)
    np.testing.assert_allclose(found, above / EVIDENCE.traits[:, 0])
    sentence = (
        claim_called("outcome over prediction").statement(changed(BASIS, terms=plan)).sentence
    )
    assert "losses below 0.05 count as that" in sentence


class Alone(AuditFamily):
    """One sample, and claims about kinds and predictions alone, with much epsilon for each."""

    def plan(self, size, epsilon):
        plan = AuditFamily.plan(self, size, epsilon)
        claims = tuple(c for c in plan.claims if isinstance(c, InStratum | Foretold))
        shares = tuple(Share(c.name, epsilon / len(claims)) for c in claims)
        return changed(plan, claims=claims, shares=shares, log_prior=(0.0,))


def alone(family):
    table = changed(family.table.of(slice(0, 1)), statistics=family.table.statistics[:1])
    fields = {f.name: getattr(family, f.name) for f in dataclasses.fields(family)}
    return Alone(**fields | {"table": table, "log_prior": np.zeros(1), "betting": False})


def test_statements_of_kinds_are_false_as_rarely_as_they_say():
    """With all of epsilon on them, so that some are false: kinds with 1 and with 30 of 60."""
    outcomes = audit(alone(scalar_quadratics()), repeats=repeats(2000, quick=300), epsilon=0.5)
    assert violations(outcomes) == []
    assert sum(o.false for o in outcomes) > 0


def frequency(certify, number):
    """How often a way to certify is false: it returns claim, statement and what is true."""
    random = np.random.default_rng(0)
    false = 0
    for _ in range(number):
        claim, statement, truth = certify(random)
        asserted = Asserted(statement, np.ones(1), 0)
        false += claim.judge(asserted, claim.exact(truth), truth)[0]
    return Outcome("family", "statement", false, number, 0.1, 0.0)


def bare(claim, size, traits=()):
    plan = FAMILY.plan(size, 0.2)
    return changed(
        plan,
        claims=(claim,),
        shares=(Share(claim.name, 0.1),),
        log_prior=(0.0,),
        traits=traits or plan.traits,
    )


def noisy(random, size, tell=0.0):
    """Instances of which a tenth misses the goal; the trait knows nothing, or a little, of it."""
    missed = random.random(size) < 0.1
    trait = random.random(size) + tell * missed
    losses = np.where(missed, 2.0, 0.0)[None, :, None] * np.ones((1, 1, 3))
    return Evidence(
        losses=losses,
        thresholds=np.ones(size),
        references=np.zeros(size),
        starts=np.ones(size),
        reach=np.where(missed, np.inf, 5.0)[None, :, None] * np.ones((1, 1, 6)),
        opponent_losses=np.zeros((0, size)),
        opponent_reach=np.zeros((0, size, 6)),
        statistics=np.zeros((1, size, 0)),
        traits=np.stack([trait, np.zeros(size)], axis=1),
    )


LAW = noisy(np.random.default_rng(9), 2000)


@pytest.mark.parametrize("lie", [False, True])
def test_a_kind_that_was_chosen_on_the_train_set_is_caught(lie):
    """The longest run of train instances without a miss makes the kind."""

    def certify(random):
        seen = LAW.on(random.choice(2000, 100))
        low, high = 0.3, 0.6
        if lie:
            missed = np.sort(seen.traits[seen.final[0] > 1, 0])
            edges = np.concatenate([[0.0], missed, [1.0]])
            widest = int(np.argmax(np.diff(edges)))
            low, high = edges[widest], np.nextafter(edges[widest + 1], 0.0)
        claim = InStratum("kind", 0, low, high, "chosen", 1, (0.5,))
        plan = bare(claim, 100)
        truth = Truth(plan, LAW, np.full(2000, 1 / 2000))
        return claim, claim.statement(Basis(plan, seen, np.zeros(1), 0)), truth

    found = violations([frequency(certify, 100)])
    assert bool(found) == lie


@pytest.mark.parametrize("lie", [False, True])
def test_a_predictor_that_was_fitted_on_the_train_set_is_caught(lie):
    """It knows the outcomes of the train instances by heart."""
    random = np.random.default_rng(4)
    features = random.normal(size=(4000, 40))
    needed = np.exp2(4 + random.normal(size=4000))
    law = changed(
        noisy(random, 4000),
        reach=needed[None, :, None] * np.ones((1, 1, 6)),
        traits=np.zeros((4000, 1)),
    )

    def fitted(rows):
        weights = np.linalg.lstsq(features[rows], np.log2(needed[rows]) - 4, rcond=None)[0]
        return Difficulty("iterations", 1, 0.0, (0.0,) * 40, tuple(weights), 4.0, 0.0, 9.0)

    def certify(random):
        rows = random.choice(4000, 60)
        trait = fitted(rows if lie else random.choice(4000, 60))
        table = changed(law, traits=trait.predict(features)[:, None])
        claim = Foretold("outcome over prediction", 0, (0.9,), 0.9)
        plan = bare(claim, 60, (trait,))
        truth = Truth(plan, table, np.full(4000, 1 / 4000))
        return claim, claim.statement(Basis(plan, table.on(rows), np.zeros(1), 0)), truth

    found = violations([frequency(certify, 100)])
    assert bool(found) == lie


def pilot(size, tell, seed=0):
    """A pilot of which one feature tells how many iterations are needed, more or less exactly."""
    random = np.random.default_rng(seed)
    features = random.normal(size=(size, 6))
    logs = 4 + features[:, 2] + random.normal(size=size) / max(tell, 1e-3)
    needed = np.exp2(logs) if tell else np.exp2(4 + random.normal(size=size))
    evidence = changed(
        noisy(random, size), traits=np.zeros((size, 0)), losses=np.zeros((1, size, 3))
    )
    reach = np.ceil(needed)[None, :, None] * np.ones((1, 1, 6))
    return Pilot(changed(evidence, reach=reach), (), features), needed


BARE = changed(PLAN, traits=(), claims=(), shares=(), train_size=250, horizon=1000)


def test_what_tells_how_hard_instances_are_is_found_and_divides_them():
    some, _ = pilot(200, tell=3.0)
    found = foresee(SETTINGS, BARE, some, 1, 0.9)
    [trait] = found.traits
    assert isinstance(trait, Difficulty) and trait.outcome == "iterations"
    # The logarithm's noise has a third of the deviation.
    assert np.argmax(np.abs(trait.weights)) == 2 and trait.weights[2] == pytest.approx(1, abs=0.1)
    fresh, truth = pilot(1000, tell=3.0, seed=1)
    error = np.log2(trait.predict(fresh.features)) - np.log2(truth)
    assert np.std(error) == pytest.approx(1 / 3, rel=0.15)
    kinds = [c for c in found.claims if isinstance(c, InStratum)]
    assert [c.name for c in kinds] == [f"instances: {n}" for n in ("easy", "middling", "hard")]
    inside = np.array([c.inside(found.pilot.evidence) for c in kinds])
    assert np.all(inside.sum(axis=0) == 1) and np.all(inside.mean(axis=1) > 0.3)
    assert kinds[0].words == f"predicted to need at most {kinds[0].most:g} iterations"
    assert [c.share for c in found.claims if isinstance(c, Foretold)] == [0.9]


def test_predictions_of_the_pilot_come_from_its_other_instances():
    """Features that tell nothing, many of them: fitted, they would seem to tell much."""
    some, _ = pilot(200, tell=0.0)
    noise = np.random.default_rng(5).normal(size=(200, 40))
    found = foresee(SETTINGS, BARE, changed(some, features=noise), 1, 0.9)
    assert found.traits == () and found.claims == ()
    assert found.pilot.evidence.traits.shape == (200, 0)


def test_where_iterations_do_not_vary_losses_are_predicted():
    some, needed = pilot(200, tell=3.0)
    losses = np.repeat(needed[None, :, None], 3, axis=2)
    evidence = changed(some.evidence, reach=np.full((1, 200, 6), 7.0), losses=losses)
    found = foresee(SETTINGS, BARE, changed(some, evidence=evidence), 1, 0.9)
    assert [t.outcome for t in found.traits if isinstance(t, Difficulty)] == ["loss"]
    assert "predicted to end with a loss above the reference of at most" in str(found.claims[1])


def test_kinds_of_which_too_little_would_be_said_are_merged():
    some, _ = pilot(200, tell=3.0)
    for size, number in ((250, 3), (50, 2), (20, 0)):
        found = foresee(SETTINGS, changed(BARE, train_size=size), some, 1, 0.9)
        assert sum(isinstance(c, InStratum) for c in found.claims) == number
    off = changed(SETTINGS, strata=1)
    assert [c.kind for c in foresee(off, BARE, some, 1, 0.9).claims] == ["foretold"]
    silent = changed(SETTINGS, predictions=False)
    assert foresee(silent, BARE, some, 1, 0.9).claims == ()


def test_a_problems_own_kinds_are_taken_as_they_are():
    some, _ = pilot(200, tell=0.0)
    labels = np.arange(200) % 2
    found = foresee(SETTINGS, BARE, changed(some, labels=labels, names=("a", "b", "c")), 1, 0.9)
    assert found.traits == (Label(("a", "b", "c")),)
    # There is none of the third kind in the prior set.
    assert [c.name for c in found.claims] == ["instances: a", "instances: b"]
    second: Any = found.claims[1]
    np.testing.assert_array_equal(second.inside(found.pilot.evidence), labels == 1)


def far(theta):
    return (jnp.sum(theta**2) > 3.0).astype(int)


def own(strata):
    return ss.make_problem(
        lambda x, theta: jnp.sum((x - theta) ** 2),
        jnp.zeros(3),
        thetas=np.random.default_rng(0).normal(size=(60, 3)),
        strata=strata,
    )


def test_labels_are_the_users_function_of_each_theta():
    problem = own(ss.Strata(("near", "far"), far))
    data = PriorSet.draw(problem, 18, 0)
    expected = np.sum(np.asarray(data.thetas) ** 2, axis=1) > 3.0
    np.testing.assert_array_equal(labels_of(problem, data), expected)
    table = traits_on((Label(("near", "far")),), problem, data, np.ones(18), np.ones(18))
    np.testing.assert_array_equal(table[:, 0], expected)
    assert own(None).strata is None


@pytest.mark.parametrize(
    ("names", "of"),
    [
        (("near", "far"), lambda theta: 2),
        (("near", "far"), lambda theta: -1),
        (("near", "far"), lambda theta: theta[0]),
        (("near", "far"), lambda theta: jnp.zeros(2, int)),
    ],
)
def test_kinds_that_are_none_are_refused(names, of):
    problem = own(ss.Strata(names, of))
    with pytest.raises(ProblemError, match="a single whole number from 0 to 1"):
        labels_of(problem, PriorSet.draw(problem, 6, 0))


def test_a_problem_with_kinds_is_solved_like_any_other():
    """Programs are kept by all that a problem holds."""
    problem = own(ss.Strata(["near", "far"], far))  # pyright: ignore[reportArgumentType]
    solver = ss.Solver(problem, ss.rules.GradientDescent(0.5), 1, ss.Goal(0.1, 1.0))
    solution = solver.solve(np.ones((4, 3)))
    np.testing.assert_allclose(solution.loss, 0.0, atol=1e-12)


@unchecked()
def test_divisions_that_cannot_be_are_refused():
    for names in ((), ("one",), ("a", "a"), tuple(map(str, range(13)))):
        with pytest.raises(ProblemError, match="from 2 to 12 different names"):
            ss.Strata(names, far)
    with pytest.raises(ProblemError, match="is a function of theta"):
        ss.Strata(("a", "b"), 3)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ProblemError, match=r"must be surestep\.Strata"):
        own(far)


def test_features_are_numbers_of_an_instance_whatever_lies_beside_it():
    random = np.random.default_rng(0)
    thetas = {"a": random.normal(size=(5, 20, 3)), "n": np.arange(5), "few": np.ones((5, 2))}
    found = part_features(thetas)
    # Sizes of a, the numbers and sizes of few, and n.
    assert found.shape == (5, 4 + 2 + 4 + 1) and np.all(np.isfinite(found))
    some = part_features({name: leaf[2:4] for name, leaf in thetas.items()})
    np.testing.assert_array_equal(found[2:4], some)
    odd = part_features({"a": np.array([[np.inf, np.nan], [0.0, 0.0]])})
    assert np.all(np.isfinite(odd))


def test_instances_of_another_form_are_not_predicted():
    trait = Difficulty("iterations", 0, 0.0, (0.0,), (1.0,), 0.0, 0.0, 1.0)
    with pytest.raises(ConfigurationError, match="from 1 features, not 2"):
        trait.predict(np.zeros((3, 2)))


def test_last_bits_of_the_instances_leave_no_trace_in_the_plan():
    """They are others on another machine, where the plan is made again."""
    some, _ = pilot(200, tell=3.0)
    random = np.random.default_rng(8)
    near = some.features * (1 + 1e-15 * random.normal(size=some.features.shape))
    [one], [other] = (foresee(SETTINGS, BARE, p, 1, 0.9).traits for p in (
        some, changed(some, features=near)
    ))  # fmt: skip
    assert isinstance(one, Difficulty) and isinstance(other, Difficulty)
    np.testing.assert_allclose(one.weights, other.weights, rtol=1e-12)
    np.testing.assert_allclose(one.centre, other.centre, rtol=1e-12)
    assert (one.bias, one.low, one.high) == (other.bias, other.low, other.high)
