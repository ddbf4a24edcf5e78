"""What statements about events say of other laws."""

import dataclasses

import numpy as np
import pytest

from support.tiny import changed
from surestep.certify.audit import FAMILIES, audit, honest, violations
from surestep.certify.certificate import SHIFT, Statement
from surestep.certify.claims import (
    Foretold,
    GoalMissed,
    InStratum,
    LossLevels,
    MissedAt,
    Sooner,
    Within,
)
from surestep.certify.claims.shift import falsely_moved, with_shift

BARE = Statement("s", 0.0, 0.0, 0.95, 0.01, "", [], [], {"own": 1})


def told(failure):
    return with_shift(BARE, failure).details[SHIFT]


def test_the_sentence_names_radii_within_which_a_probability_holds():
    found = told(0.02)
    assert found["allowed"] == 0.05
    assert found["within"]["total variation"] == pytest.approx(0.03, rel=1e-12)
    assert found["within"]["density ratio"] == pytest.approx(2.5, rel=1e-12)
    entropy = 0.05 * np.log(0.05 / 0.02) + 0.95 * np.log(0.95 / 0.98)
    assert found["within"]["relative entropy"] == pytest.approx(entropy, rel=1e-9)
    assert "95% instead of 98% still holds as long as at most 3% of them" in found["sentence"]
    assert "no kind of instance is more than 2.49 times as frequent" in found["sentence"]
    assert found["curves"]["total variation"]["failing"][2] == pytest.approx(0.03)


@pytest.mark.parametrize(
    ("failure", "allowed", "words"),
    [
        (0.025, 0.05, "95% instead of 97.5%"),
        (1 - 0.95, 0.1, "90% instead of 95%"),
        (0.026, 0.1, "90% instead of 97.4%"),
        (0.15, 0.3, "70% instead of 85%"),
        (0.25, 0.5, "50% instead of 75%"),
        (0.6, 0.8, "20% instead of 40%"),
    ],
)
def test_what_is_allowed_leaves_room_to_double_or_is_half_way_to_nothing(failure, allowed, words):
    assert told(failure)["allowed"] == pytest.approx(allowed)
    shown = [float(part.split()[-1]) for part in told(failure)["sentence"].split("%")[:2]]
    wanted = [float(part.split()[-1]) for part in words.split("%")[:2]]
    # Rounded down, by a unit of the fourth digit at most.
    assert shown == pytest.approx(wanted, abs=0.011)


def test_what_certifies_nothing_says_nothing_of_other_laws():
    assert with_shift(BARE, 1.0) == BARE


def test_every_statement_about_an_event_tells_of_other_laws_and_none_about_a_mean():
    family = changed(FAMILIES["scalar quadratics"](), betting=False)
    plan = family.plan(250, 0.05)
    statements, _, _ = honest(family, plan, family.draw(np.random.default_rng(0), 250))
    telling = {s.name for s in statements if SHIFT in s.details}
    missed = {
        c.name for c in plan.claims if isinstance(c, GoalMissed | MissedAt | Sooner | InStratum)
    }
    late = {c.name for c in plan.claims if isinstance(c, Within | Foretold | LossLevels)}
    # What is certified with a probability of 1 of failing says nothing of other laws either.
    silent = {s.name for s in statements if s.name in missed | late and not s.value < np.inf}
    silent |= {s.name for s in statements if s.name in missed and s.value == 1}
    assert telling == (missed | late) - silent and {"sooner", "easy", "iterations until"} <= telling
    for statement in statements:
        if statement.name in telling & missed:
            assert statement.details[SHIFT]["failing"] == statement.value


def test_a_curve_that_is_too_low_is_false_under_a_law_that_is_near():
    """The audit moves the law itself: nothing else of the statement is false."""
    chances, failed = np.array([0.01, 0.01, 0.98]), np.array([1.0, 1.0, 0.0])
    assert not falsely_moved(with_shift(BARE, 0.02), failed, chances)
    for name in ("total variation", "relative entropy", "density ratio"):
        honestly = with_shift(BARE, 0.02)
        curves = dict(honestly.details[SHIFT]["curves"])
        curves[name] = curves[name] | {"failing": [0.99 * f for f in curves[name]["failing"]]}
        lied = {SHIFT: honestly.details[SHIFT] | {"curves": curves}}
        assert falsely_moved(dataclasses.replace(honestly, details=lied), failed, chances)
        within = dict(honestly.details[SHIFT]["within"])
        within[name] *= 1.02
        lied = {SHIFT: honestly.details[SHIFT] | {"within": within}}
        assert falsely_moved(dataclasses.replace(honestly, details=lied), failed, chances)


def test_curves_from_the_observed_frequency_are_caught():
    """A lie in the curves alone: they start from what was seen, not from what is certified."""

    def lie(family, plan, evidence):
        statements, posterior, deployed = honest(family, plan, evidence)
        claim = next(c for c in plan.claims if isinstance(c, GoalMissed))
        seen = float(claim.values(plan, evidence)[0, deployed].mean())
        lied = [with_shift(s, seen) if s.name == claim.name else s for s in statements]
        return lied, posterior, deployed

    family = FAMILIES["Bernoulli failures"]()
    one = family.table.of(slice(0, 1))
    alone = changed(family, table=one, log_prior=np.zeros(1), betting=False)
    found = {o.statement for o in violations(audit(alone, repeats=100, certifier=lie))}
    assert "missing the goal" in found
    assert violations(audit(alone, repeats=100)) == []
