"""Outcomes of anyone's solver: what is read, what is refused, and what is certified of them."""

import dataclasses

import numpy as np
import pytest

from support.shared import small_run
from surestep.base.errors import ConfigurationError
from surestep.certify.claims import GoalMissed, LossLevels, MissedAt, Within
from surestep.certify.evidence import reach_of_paths, reached_in
from surestep.certify.outcome_files import plain_arrays, read_outcomes
from surestep.certify.outcome_plan import (
    OutcomeSettings,
    outcome_certificate,
    plan_from_pilot,
    plan_of_claims,
    plan_of_hits,
)
from surestep.certify.outcomes import Outcomes
from surestep.certify.posterior import Certified
from surestep.certify.statements import rigorous_statements
from surestep.certify.targets import FIRST, GRADIENTS, ITERATIONS, Target

STEPS = 20


def falling(random, number, rate=4.0):
    """Losses that fall from 100 to about 10^(2 - rate), every instance at its own pace."""
    pace = rate * random.uniform(0.5, 1.5, (number, 1))
    return 10.0 ** (2 - pace * np.arange(STEPS + 1) / STEPS)


def certified(plan, arrays):
    return outcome_certificate(plan, Outcomes.of(arrays), {})


def named(claims, arrays, **settings):
    """The certificate of claims that somebody names."""
    form = Outcomes.of(arrays)
    given = OutcomeSettings(claims=tuple(claims), **settings)
    return certified(plan_of_claims(given, form.size, form.iterations), arrays)


def test_a_run_s_own_evidence_written_down_as_outcomes_gives_the_same_statements(tmp_path):
    found = small_run(tmp_path / "run").load("certify", Certified)
    sample = slice(found.deployed_sample, found.deployed_sample + 1)
    evidence = found.evidence.of(sample).against([])
    arrays = {
        "losses": evidence.losses[0],
        "iterations": found.iterations,
        "thresholds": evidence.thresholds,
    }
    outcomes = Outcomes.of(arrays)
    plan = plan_from_pilot(OutcomeSettings(), outcomes, "", outcomes.size)
    document = certified(plan, arrays)
    kept = [c for c in plan.terms.claims if not isinstance(c, Within)]
    assert {type(claim) for claim in kept} >= {GoalMissed, LossLevels}
    theirs = rigorous_statements(
        dataclasses.replace(plan.terms, claims=tuple(kept)), evidence, np.zeros(1), 0
    )
    ours = {statement.name: statement for statement in document.statements}
    for statement in theirs:
        assert ours[statement.name].value == statement.value
        assert ours[statement.name].details == statement.details
        assert "the solver" in ours[statement.name].sentence


def test_targets_are_reached_after_the_recorded_iterations():
    losses = np.array([[9.0, 3.0, 1.0, 2.0], [9.0, 9.0, 9.0, 9.0], [0.5, 0.5, 0.5, 0.5]])
    outcomes = Outcomes.of({"losses": losses, "iterations": [0, 10, 25, 60]})
    reach = outcomes.evidence((Target("loss", 2.0), Target("loss", 1.0)), ()).reach[0]
    assert reached_in(reach, ITERATIONS, 0).tolist() == [25, np.inf, 0]
    assert reached_in(reach, ITERATIONS, 1).tolist() == [np.inf, np.inf, 0]
    assert reached_in(reach, FIRST, 1).tolist() == [25, np.inf, 0]
    assert np.isinf(reached_in(reach, GRADIENTS, 0)).all()  # nobody has counted them
    every = Outcomes.of({"losses": losses})
    levels = np.full((3, 1), 2.0)
    entries = [ITERATIONS, FIRST]
    assert np.array_equal(
        every.evidence((Target("loss", 2.0),), ()).reach[0][:, entries],
        reach_of_paths(losses, levels)[:, entries],
    )


def test_an_opponent_that_has_not_arrived_is_counted_as_if_it_had_at_the_end():
    ours, theirs = np.full((5000, 3), 5.0), np.full((5000, 3), 5.0)
    ours[:, 1:], theirs[:2500, 2] = 0.0, 0.0
    arrays = {"gaps": ours, "opponent_slow": theirs}
    pilot = Outcomes.of(arrays)
    plan = plan_from_pilot(OutcomeSettings(accuracies=(1.0,)), pilot, "", 5000)
    evidence = pilot.evidence(plan.terms.targets, ("slow",))
    assert np.all(reached_in(evidence.opponent_reach[0], FIRST, 0) == 2)
    statements = {s.name: s for s in certified(plan, arrays).statements}
    assert 0 < statements["saving over slow"].value < 1  # twice as many at most
    assert "iterations" in statements["sooner than slow"].sentence
    assert "gradient" not in str(certified(plan, arrays))


def test_of_every_group_one_instance_is_drawn_without_looking_at_outcomes():
    random = np.random.default_rng(0)
    one = falling(random, 30)
    copies = np.repeat(one, 10, axis=0)
    groups = np.repeat([f"patient {i}" for i in range(30)], 10)
    outcomes = Outcomes.of({"losses": copies, "groups": groups})
    assert outcomes.size == 30
    assert {row.tobytes() for row in outcomes.losses} == {row.tobytes() for row in one}
    assert "belong to 30 groups" in outcomes.found[0]
    noisy = copies * random.uniform(0.5, 2.0, (300, 1))
    kept = Outcomes.of({"losses": noisy, "groups": groups}).losses
    rows = [int(np.flatnonzero((noisy == row).all(axis=1))[0]) for row in kept]
    again = Outcomes.of({"losses": np.roll(noisy, 1, axis=1), "groups": groups}).losses
    assert np.array_equal(again, np.roll(noisy, 1, axis=1)[rows])
    assert len(set(np.array(rows) % 10)) > 3  # not always the first


def test_copies_that_no_group_explains_are_told():
    losses = falling(np.random.default_rng(1), 40)
    losses[7] = losses[30]
    outcomes = Outcomes.of({"losses": losses})
    assert any("1 instances have the very losses of another" in text for text in outcomes.found)
    assert any("very losses" in text for text in named(["loss 1"], {"losses": losses}).assumptions)


def test_gaps_are_losses_above_minima():
    losses = falling(np.random.default_rng(2), 400)
    minima = np.random.default_rng(3).normal(size=400)
    claims = ["within 0.1 in 20 iterations: 0.5", "within 1e-2 of the gap"]
    gaps = named(claims, {"gaps": losses})
    shifted = named(claims, {"losses": losses + minima[:, None], "minima": minima}, signed=True)
    assert [s.value for s in gaps.statements] == [s.value for s in shifted.statements]
    assert "within 0.1 of the minimum after 20 iterations" in gaps.statements[0].sentence


def test_starts_are_losses_after_no_iteration():
    losses = falling(np.random.default_rng(4), 200)
    whole = Outcomes.of({"losses": losses})
    parts = {"losses": losses[:, 1:], "starts": losses[:, 0], "iterations": range(1, STEPS + 1)}
    assert np.array_equal(Outcomes.of(parts).losses, whole.losses)
    assert Outcomes.of(parts).iterations == whole.iterations


def test_named_claims_are_what_is_certified():
    losses = falling(np.random.default_rng(5), 500)
    document = named(["loss 0.5 in 20 iterations: 0.8", "loss 1: 0.9"], {"losses": losses})
    first, second = document.statements
    missed = int((losses[:, 20] > 0.5).sum())
    assert first.value > missed / 500
    assert first.details["asked"] == 0.8
    assert "(80% was asked for, and is" in first.sentence
    assert second.name == "loss 1: 0.9"
    settled = second.value
    assert np.mean(losses[:, int(settled)] <= 1) >= 0.9
    assert sum(share.epsilon for share in document.ledger) == pytest.approx(0.05)


def test_claims_hold_as_often_as_they_say():
    """2000 sets of outcomes of a law that is known: a loss below 0.3 has the probability 0.3."""
    random = np.random.default_rng(6)
    settings = OutcomeSettings(claims=("loss 0.3 in 1 iteration: 0.5",), epsilon=0.1)
    plan = plan_of_claims(settings, 60)
    hits = plan_of_hits(OutcomeSettings(epsilon=0.1), 60)
    false = np.zeros(2)
    for _ in range(2000):
        losses = random.random((60, 1))
        one = certified(plan, {"losses": losses, "iterations": [1]}).statements[0]
        other = certified(hits, {"hits": losses[:, 0] <= 0.3}).statements[0]
        assert one.value == other.value
        false += [one.value < 0.7, other.value < 0.7]
    assert np.all(false / 2000 <= 0.1)
    assert np.all(false > 50)  # the bound is exact, so it is false about as often as it may


def test_hits_are_all_that_is_needed():
    hits = np.ones(1000, bool)
    hits[:3] = False
    document = certified(plan_of_hits(OutcomeSettings(solver="OSQP"), 1000), {"hits": hits})
    [statement] = document.statements
    assert "the outcome of OSQP is a hit with probability at least 99." in statement.sentence
    assert str(document).startswith("Certificate for OSQP on outcomes, from 1000 instances.")


def test_hits_over_the_iterations_say_after_how_many():
    times = np.random.default_rng(11).geometric(0.3, 800)
    hits = times[:, None] <= np.arange(1, 31)
    arrays = {"hits": hits, "iterations": range(1, 31)}
    plan = plan_from_pilot(OutcomeSettings(), Outcomes.of(arrays), "", 800)
    statements = {s.name: s for s in certified(plan, arrays).statements}
    assert set(statements) == {"iterations until", "missing the goal"}
    until = statements["iterations until"]
    assert until.value >= np.quantile(times, 0.95)
    assert "95% of new instances are at the goal after" in until.sentence
    at = named_hits(["goal in 5 iterations: 0.7"], arrays).statements[0]
    assert at.value > np.mean(times > 5)
    with pytest.raises(ConfigurationError, match="of hits only 'goal'"):
        named_hits(["loss 1 in 5 iterations"], arrays)


def named_hits(claims, arrays):
    form = Outcomes.of(arrays)
    settings = OutcomeSettings(claims=tuple(claims))
    return certified(plan_of_claims(settings, form.size, form.iterations, form.hits), arrays)


def test_losses_of_any_sign_need_a_word_for_it():
    losses = falling(np.random.default_rng(7), 300) - 50
    with pytest.raises(ConfigurationError, match="losses are negative"):
        named(["loss 0 in 20 iterations"], {"losses": losses})
    document = named(["loss 0 in 20 iterations"], {"losses": losses}, signed=True)
    assert document.statements[0].value < 0.05
    pilot = Outcomes.of({"losses": losses, "thresholds": -40.0})
    plan = plan_from_pilot(OutcomeSettings(signed=True), pilot, "", 300)
    kinds = {claim.kind for claim in plan.terms.claims}
    assert kinds == {"within", "goal", "levels"}


def test_without_a_start_nothing_is_said_of_it():
    losses = falling(np.random.default_rng(8), 300)[:, [5, 10, 20]]
    pilot = Outcomes.of({"losses": losses, "iterations": [5, 10, 20]})
    plan = plan_from_pilot(OutcomeSettings(), pilot, "", 300)
    assert all(target.kind == "loss" for target in plan.terms.targets)
    text = str(certified(plan, {"losses": losses, "iterations": [5, 10, 20]}))
    assert "start" not in text
    assert "after the recorded iterations alone" in text


GOOD = np.abs(falling(np.random.default_rng(9), 6))
HOLE = np.where(np.arange(6)[:, None] == 3, np.nan, GOOD)


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({}, "one array of losses"),
        ({"losses": GOOD, "hits": np.ones(6)}, "not losses and hits"),
        ({"loses": GOOD}, "no array of outcomes called 'loses'.*losses"),
        ({"losses": GOOD[0]}, "a row for each instance"),
        ({"losses": GOOD[:0]}, "a row for each instance"),
        ({"losses": HOLE}, r"not a number \(NaN\) at \(3, 0\).*infinite"),
        ({"losses": -np.inf * GOOD}, "-inf somewhere"),
        ({"losses": GOOD.astype("<U8")}, "not numbers"),
        ({"losses": GOOD, "iterations": [1, 2, 3]}, "iterations name 3 of them"),
        ({"losses": GOOD[:, :3], "iterations": [0, 2, 2]}, "each larger than the one before"),
        ({"losses": GOOD[:, :3], "iterations": [3, 2, 1]}, "each larger than the one before"),
        ({"losses": GOOD[:, :2], "iterations": [0.5, 1]}, "whole numbers"),
        ({"losses": GOOD[:, :2], "iterations": [-1, 1]}, "whole numbers"),
        ({"losses": GOOD[:, :1]}, "of a single column need iterations"),
        ({"losses": GOOD[:, :1], "iterations": [0]}, "say nothing of a solver"),
        ({"losses": GOOD, "minima": np.zeros(5)}, "a number for each of the 6 instances"),
        ({"losses": GOOD, "minima": np.full(6, np.inf)}, "must be finite"),
        ({"losses": GOOD, "minima": np.full(6, 50.0)}, "below its minimum 50"),
        ({"losses": GOOD, "minima": 0.0, "opponent_x": GOOD - 1}, "opponent_x fall to"),
        ({"gaps": GOOD - 1}, "gaps are losses above the minimum"),
        ({"gaps": GOOD, "minima": np.zeros(6)}, "of gaps the minima are 0"),
        ({"losses": GOOD, "starts": GOOD[:, 0]}, "are the same"),
        ({"losses": GOOD, "thresholds": np.zeros(7)}, "thresholds have a number for each"),
        ({"losses": GOOD, "groups": np.zeros(7)}, "a group for each of the 6"),
        ({"losses": GOOD, "groups": GOOD}, "a group for each instance"),
        ({"losses": GOOD, "opponent_x": GOOD[:, :3]}, "for the same instances and iterations"),
        ({"losses": GOOD, "opponent_": GOOD}, "an opponent needs a name"),
        ({"hits": [0, 1, 2]}, "1 .a success. or 0"),
        ({"hits": [0, np.nan]}, "not a number"),
        ({"hits": GOOD}, "one for each instance"),
        ({"hits": [0, 1], "iterations": [5]}, "recorded once"),
        ({"hits": [0, 1], "minima": [0, 0]}, "of hits nothing else is known"),
    ],
)  # fmt: skip
def test_arrays_that_are_no_outcomes_are_refused_in_words(arrays, words):
    with pytest.raises(ConfigurationError, match=words):
        Outcomes.of(arrays)


LONG = "instance,iteration,loss\na,0,4\na,5,1\nb,0,3\nb,5,2\n"


def read(tmp_path, text, name="outcomes.csv"):
    path = tmp_path / name
    path.write_text(text)
    return plain_arrays(path)


def test_a_table_of_losses_is_the_arrays_that_it_says(tmp_path):
    text = (
        "instance,iteration,loss,opponent_x,minimum,group\n"
        "a,5,1,2,0.5,u\nb,0,3,3,0,u\na,0,4,4,0.5,u\nb,5,inf,1,0,u\n"
    )
    found = read(tmp_path, text)
    assert found["losses"].tolist() == [[4, 1], [3, np.inf]]
    assert found["opponent_x"].tolist() == [[4, 2], [3, 1]]
    assert found["iterations"].tolist() == [0, 5]
    assert found["minima"].tolist() == [0.5, 0]
    assert Outcomes.of(found).size == 1


def test_a_table_of_hits_over_the_iterations_is_too(tmp_path):
    found = read(tmp_path, "instance,iteration,hit\na,1,0\na,5,1\nb,1,0\nb,5,0\n")
    assert found["hits"].tolist() == [[0, 1], [0, 0]]
    assert Outcomes.of(found).iterations == (1, 5)


def test_a_table_of_hits_is_too(tmp_path):
    found = read(tmp_path, "instance,hit,group\na,1,x\nb,0,y\nc,1,y\n")
    assert found["hits"].tolist() == [1, 0, 1]
    assert found["groups"].tolist() == [0, 1, 1]


def test_a_file_of_arrays_is_read_as_it_is(tmp_path):
    np.savez(tmp_path / "outcomes.npz", losses=GOOD, groups=np.arange(6) // 2)
    assert np.array_equal(read_outcomes(tmp_path / "outcomes.npz")["losses"], GOOD)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "has the columns none"),
        ("a,b\n1,2\n", "a .csv of outcomes has the columns instance, iteration and loss"),
        ("instance,iteration,loss\n", "has no rows"),
        ("instance,iteration,loss,hit\na,0,1,1\n", "a .csv of outcomes"),
        ("instance,iteration,loss,loss\na,0,1,1\n", "a .csv of outcomes"),
        ("instance,iteration,loss,minimums\na,0,1,1\n", "no column called 'minimums'.*minimum"),
        ("instance,hit,iteration,minimum\na,1,1,0\n", "no column called 'minimum'"),
        ("instance,iteration\na,1\n", "a .csv of outcomes"),
        ("instance,iteration,loss\na,0\n", "line 2: has 2 cells, not 3"),
        (LONG.replace("a,5,1", "a,5,one"), "line 3: loss 'one' is not a number"),
        (LONG.replace("a,5,1", "a,0,1"), "instance 'a' after iteration 0 twice"),
        (LONG.replace("a,5,1\n", ""), "no row of instance 'a' after iteration 5.*inf"),
        ("instance,hit\na,1\na,0\n", r"instance 'a' twice \(line 3\)"),
        (
            "instance,iteration,loss,minimum\na,0,4,0\na,5,1,1\n",
            "line 3: instance 'a' has another minimum before",
        ),
    ],
)
def test_a_table_that_is_none_is_refused_with_its_line(tmp_path, text, words):
    with pytest.raises(ConfigurationError, match=words):
        read(tmp_path, text)


@pytest.mark.parametrize("name", ["outcomes.txt", "none.npz", "none.csv"])
def test_a_file_of_another_kind_is_refused(tmp_path, name):
    (tmp_path / "outcomes.txt").write_text(LONG)
    with pytest.raises(ConfigurationError, match=r"\.npz and \.csv|is not there"):
        read_outcomes(tmp_path / name)


def test_pickles_are_never_opened(tmp_path):
    np.savez(tmp_path / "x.npz", losses=np.array([print], object))
    with pytest.raises(ConfigurationError, match="not numbers"):
        read_outcomes(tmp_path / "x.npz")


@pytest.mark.parametrize(
    ("settings", "size", "arrays", "words"),
    [
        ({"claims": ("loss 1 in 7 iterations",)}, 6, {"gaps": GOOD}, None),
        ({"claims": ("loss 1 in 7 iterations",)}, 5, {"losses": GOOD}, "outcomes have 6"),
        ({"claims": ("loss 1 in 7 iterations",)}, 6, {"hits": np.ones(6)}, "for losses"),
        ({"claims": ("loss 1 in 30 iterations",)}, 6, {"losses": GOOD}, "after 30 iterations"),
        ({"claims": ("within 1 in 7 iterations",)}, 6, {"losses": GOOD}, "needs minima"),
        ({"claims": ("goal in 7 iterations",)}, 6, {"losses": GOOD}, "needs thresholds"),
    ],
)
def test_outcomes_that_are_not_what_the_plan_is_for_are_refused(settings, size, arrays, words):
    plan = plan_of_claims(OutcomeSettings(**settings), size)
    if words is None:
        assert certified(plan, arrays).statements
        return
    with pytest.raises(ConfigurationError, match=words):
        certified(plan, arrays)


@pytest.mark.parametrize(
    ("claims", "words"),
    [
        (("within 1", "within 2 in 3 iterations"), "after which iterations outcomes are recorded"),
        (("within 1 in 3 iterations", "loss 2 in 3 iterations"), "from minima .* or from 0"),
        (("goal in 3 iterations", "goal in 3 iterations"), "claimed twice"),
    ],
)
def test_claims_that_do_not_go_together_are_refused(claims, words):
    with pytest.raises(ConfigurationError, match=words):
        plan_of_claims(OutcomeSettings(claims=claims), 10)


def test_too_few_instances_are_told():
    pilot = Outcomes.of({"losses": falling(np.random.default_rng(10), 50)[:, [5, 20]],
                         "iterations": [5, 20]})  # fmt: skip
    with pytest.raises(ConfigurationError, match="it takes more"):
        plan_from_pilot(OutcomeSettings(signed=True), pilot, "", 1)


def test_a_claim_is_about_the_iteration_that_it_names():
    losses = np.array([[3.0, 2.0, 9.0]] * 100)
    claims = ("loss 2 in 1 iteration", "loss 2 in 2 iterations")
    plan = plan_of_claims(OutcomeSettings(claims=claims), 100)
    assert all(isinstance(claim, MissedAt) for claim in plan.terms.claims)
    first, second = certified(plan, {"losses": losses}).statements
    assert first.value < 0.05
    assert second.value == 1
