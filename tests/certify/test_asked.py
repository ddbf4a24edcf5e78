"""Claims as people write them."""

import pytest

from surestep.base.errors import ConfigurationError
from surestep.certify.asked import Asked
from surestep.certify.targets import Target


@pytest.mark.parametrize(
    ("text", "target", "from_zero", "iterations", "share"),
    [
        ("within 1e-4 in 50 iterations: 0.999", Target("loss", 1e-4), False, 50, 0.999),
        ("within 1e-4 of the minimum: .9", Target("loss", 1e-4), False, None, 0.9),
        ("Within 1 % of the minimum in 1 iteration", Target("reference", 0.01), False, 1, None),
        ("within 0.001 of the gap : 99.9 %", Target("start", 1e-3), False, None, 0.999),
        ("loss -3.5 in 7 iterations: 95%", Target("loss", -3.5), True, 7, 0.95),
        ("goal", Target("goal"), False, None, None),
        ("  the   goal in 12 iterations: 0.5", Target("goal"), False, 12, 0.5),
    ],
)
def test_a_claim_is_understood_and_said_in_the_same_words(
    text, target, from_zero, iterations, share
):
    asked = Asked.read(text)
    assert asked == Asked(target, from_zero, iterations, share)
    assert Asked.read(asked.words) == asked


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "a claim reads WHAT"),
        ("within", "a claim reads WHAT"),
        ("near 1e-4: 0.9", "a claim reads WHAT"),
        ("within 1e-4 after 50 iterations: 0.9", "a claim reads WHAT"),
        ("within 1e-4 in 2.5 iterations: 0.9", "a claim reads WHAT"),
        ("within -1e-4: 0.9", "must be a positive number"),
        ("within 0 of the gap", "must be a positive number"),
        ("goal in 0 iterations: 0.9", "at least one iteration"),
        ("goal: 1", "strictly between 0 and 1"),
        ("goal: 99.9", "strictly between 0 and 1"),
        ("goal: 0", "strictly between 0 and 1"),
    ],
)
def test_a_claim_that_is_not_understood_is_refused_in_words(text, words):
    with pytest.raises(ConfigurationError, match=words):
        Asked.read(text)
