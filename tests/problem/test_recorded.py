"""Recorded instances: what belongs together counts once, and what drifts gets no certificate."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy import stats

from support.tiny import opened
from surestep.auto.doctor import examine
from surestep.base.errors import ConfigurationError, ProblemError
from surestep.problem import Problem, SealedSplit, SplitSizes, StockedProblem
from surestep.problem.instance_files import read_instances
from surestep.problem.recorded import (
    DRIFT,
    drift,
    equal_rows,
    joined_groups,
    look_at,
    named_groups,
)
from surestep.run.charges import require_fresh

RANDOM = np.random.default_rng(0)
ROWS = RANDOM.normal(size=(60, 3))


def recorded(thetas, **more) -> StockedProblem:
    problem = Problem.of(lambda x, t: jnp.sum((x - t) ** 2), np.zeros(3), thetas=thetas, **more)
    assert isinstance(problem, StockedProblem)
    return problem


def partition(labels):
    """Which instances are together, whatever the numbers of their groups."""
    return {tuple(np.flatnonzero(labels == label)) for label in set(labels.tolist())}


def test_different_instances_are_numbered_one_by_one():
    np.testing.assert_array_equal(equal_rows(ROWS), np.arange(60))
    assert recorded(ROWS).drawable == 60


def test_what_is_equal_but_for_rounding_is_together():
    doubled = np.concatenate([ROWS, ROWS * (1 + 1e-15), np.sin(np.arcsin(ROWS % 1)) + ROWS // 1])
    assert partition(equal_rows(doubled)) == {(i, 60 + i, 120 + i) for i in range(60)}


def test_whole_numbers_are_together_if_they_are_the_same():
    numbers = np.array([10**15, 10**15 + 1, 10**15])
    assert partition(equal_rows({"a": numbers})) == {(0, 2), (1,)}
    mixed = {"a": np.array([1, 1, 2]), "b": np.array([0.5, 0.5, 0.5])}
    assert partition(equal_rows(mixed)) == {(0, 1), (2,)}


@settings(deadline=None)
@given(
    hnp.arrays(
        np.int64, st.tuples(st.integers(1, 30), st.integers(1, 3)), elements=st.integers(0, 3)
    )
)
def test_groups_are_those_of_comparing_everybody(numbers):
    seen = [tuple(row) for row in numbers.tolist()]
    expected = {tuple(i for i, row in enumerate(seen) if row == one) for one in seen}
    assert partition(equal_rows(numbers)) == expected
    assert partition(equal_rows(numbers * 0.1)) == expected


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=20))
def test_two_partitions_are_joined(pairs):
    one, other = (np.array(labels) for labels in zip(*pairs, strict=True))
    joined = joined_groups(one, other)
    # Together are those that a chain of common labels connects.
    together = np.equal.outer(one, one) | np.equal.outer(other, other)
    for k, i, j in itertools.product(range(one.size), repeat=3):
        together[i, j] |= together[i, k] and together[k, j]
    np.testing.assert_array_equal(np.equal.outer(joined, joined), together)


def test_a_group_is_in_one_set_and_counts_once():
    """Six hundred rows of which sixty differ are sixty draws."""
    copies = np.tile(ROWS, (10, 1))[RANDOM.permutation(600)]
    problem = recorded(copies)
    roles = ("PriorSet", "ValidationSet", "TrainSet", "TestSet")
    assert [problem.available(role) for role in roles] == [18, 12, 21, 9]
    split = opened(problem, SplitSizes(18, 12, 21, 9), 0)
    every = [split.prior, split.validation, split.train, split.test]
    rows = np.concatenate([np.asarray(one.thetas) for one in every])
    assert np.unique(rows, axis=0).shape == (60, 3)
    with pytest.raises(ConfigurationError, match="600 instances in 60 groups, of which 21 are for"):
        opened(problem, SplitSizes(18, 12, 22, 9), 0)
    assert "600 recorded instances in 60 groups that are equal" in problem.about_data


def test_which_instance_of_a_group_is_taken_is_drawn():
    thetas = RANDOM.normal(size=(300, 3))
    days = np.repeat(np.arange(60), 5)
    problem = recorded(thetas, groups=days)
    assert problem.drawable == 60 and "equal or named together" in problem.about_data
    place = {tuple(row): i for i, row in enumerate(thetas.tolist())}
    taken = np.zeros(300, int)
    for seed in range(200):
        part = problem.part("TrainSet", 21, *jax.random.split(jax.random.key(seed)))
        found = [place[tuple(row)] for row in np.asarray(part).tolist()]
        assert len({days[i] for i in found}) == 21
        taken[found] += 1
    # 200 * 21 / 300 = 14 times each in the mean: chance alone explains how far they are from it.
    assert np.sum((taken - 14) ** 2 / 14) < 390


def test_copies_make_no_statement_false_more_often():
    """Ten copies of each instance: the exact binomial bound on how many of them are bad."""
    chance, bad, false = np.random.default_rng(5), 0.1, {"groups": 0, "rows": 0}
    for repeat in range(300):
        fails = chance.random(60) < bad
        rows = np.column_stack([np.arange(60) + fails / 2, np.arange(60), np.arange(60)])
        problem = recorded(np.tile(rows, (10, 1)), ordered=False)
        taken = problem.part("TrainSet", 21, *jax.random.split(jax.random.key(repeat)))
        drawn = {"groups": np.asarray(taken)[:, 0] % 1 > 0}
        # What was done before: any rows of those that are for training.
        drawn["rows"] = np.repeat(fails, 10)[chance.permutation(600)[:210]]
        for how, seen in drawn.items():
            bound = stats.beta.ppf(0.95, seen.sum() + 1, seen.size - seen.sum())
            false[how] += bool(bound < bad)
    assert stats.binomtest(false["groups"], 300, 0.05, "greater").pvalue > 1e-3
    assert stats.binomtest(false["rows"], 300, 0.05, "greater").pvalue < 1e-3


def test_words_name_groups_too():
    problem = recorded(np.arange(6.0).reshape(2, 3), groups=["monday", "monday"])
    assert problem.drawable == 1


@pytest.mark.parametrize("groups", [[1, 2], np.zeros((60, 2), int), np.zeros(60)])
def test_groups_that_are_none_are_refused(groups):
    with pytest.raises(ProblemError, match="groups must"):
        recorded(ROWS, groups=groups)


def test_groups_of_a_family_that_draws_are_refused():
    with pytest.raises(ProblemError, match="groups are those of recorded instances"):
        Problem.of(
            lambda x, t: jnp.sum((x - t) ** 2), np.zeros(3), sample=lambda key: 0, groups=[1]
        )


def test_too_few_groups_are_refused_in_words():
    with pytest.raises(ProblemError, match="590 instances in 59 groups, of which each counts once"):
        examine(recorded(np.tile(ROWS[:59], (10, 1)), ordered=False))


def test_shuffled_instances_are_said_to_drift_as_rarely_as_the_test_says():
    chance = np.random.default_rng(1)
    found = [drift(chance.normal(size=(40, 2)), np.arange(40)) for _ in range(100)]
    # Of 100, 5 below 0.05 in the mean, with a standard deviation of 2.2.
    assert sum(p <= 0.05 for p in found) <= 5 + 4 * 2.2
    assert sum(p <= 0.5 for p in found) >= 50 - 4 * 5


@pytest.mark.parametrize(
    ("kind", "width"),
    # The length of an instance is looked at where it has many numbers.
    [*itertools.product(["trend", "jump"], [1, 3, 40]), ("wider", 40)],
)
def test_what_drifts_is_found(kind, width):
    chance = np.random.default_rng(2)
    rows, time = chance.normal(size=(300, width)), np.linspace(-1, 1, 300)[:, None]
    moved = {"trend": rows + time, "jump": rows + (time > 0), "wider": rows * (1 + 4 * (time > 0))}
    assert drift(moved[kind], np.arange(300)) <= DRIFT


def test_rows_of_a_group_are_no_evidence_of_drift():
    """A day's rows are alike, and stand together."""
    chance = np.random.default_rng(3)
    days = np.repeat(np.arange(50), 20)
    rows = chance.normal(size=(50, 2))[days] + 0.1 * chance.normal(size=(1000, 2))
    assert drift(rows, days) > 0.01


def test_values_that_repeat_are_no_drift():
    """Frequent ones are seen first, in any order."""
    chance = np.random.default_rng(6)
    for _ in range(8):
        rows = chance.geometric(0.02, size=(1000, 1))
        assert not look_at(rows, None, True)[1].drifts


@pytest.mark.parametrize("scale", [1e-170, 1.0, 1e160])
def test_drift_is_seen_at_any_scale(scale):
    moved = np.random.default_rng(2).normal(size=(300, 2)) + np.linspace(-1, 1, 300)[:, None]
    groups, found = look_at(scale * moved, None, True)
    assert groups.max() == 299 and found.drifts and "they drift (p = " in str(found)


def test_one_large_number_hides_no_differences():
    rows = np.random.default_rng(7).normal(size=(200, 2))
    rows[0, 0] = 1e13
    np.testing.assert_array_equal(equal_rows(rows), np.arange(200))
    beside = np.column_stack([1e7 + np.arange(200.0), rows[:, 1]]).astype(np.float32)
    np.testing.assert_array_equal(equal_rows(beside), np.arange(200))
    near = 2**60 + np.arange(3)
    np.testing.assert_array_equal(equal_rows(near), np.arange(3))


def test_masks_and_other_whole_numbers_are_compared_exactly():
    chance = np.random.default_rng(8)
    masks = chance.random((400, 30)) < 0.5
    assert equal_rows({"a": masks}).max() == 399
    assert partition(equal_rows({"a": np.concatenate([masks, masks])})) == {
        (i, 400 + i) for i in range(400)
    }
    hot = np.eye(2000, dtype=np.int64)
    np.testing.assert_array_equal(equal_rows(hot), np.arange(2000))


def test_what_never_changes_does_not_drift():
    assert drift(np.ones((50, 2)), np.arange(50)) == 1.0
    assert drift({"a": np.zeros((5, 0))}, np.arange(5)) == 1.0


def test_many_instances_are_looked_at_in_blocks():
    rows = np.random.default_rng(4).normal(size=(20_001, 2))
    assert drift(rows, np.arange(20_001)) > DRIFT
    assert drift(rows + np.linspace(0, 0.5, 20_001)[:, None], np.arange(20_001)) <= DRIFT


def test_instances_that_drift_get_no_certificate():
    moved = RANDOM.normal(size=(200, 3)) + np.linspace(0, 3, 200)[:, None]
    with pytest.raises(ProblemError, match="the recorded instances drift"):
        examine(recorded(moved))
    sorted_only = recorded(moved, ordered=False)
    examine(sorted_only)
    assert "said to mean nothing, so it was not tested" in sorted_only.about_data


def test_what_was_found_is_said():
    groups, found = look_at(ROWS, None, True)
    assert groups.size == 60 and str(found).startswith("60 recorded instances, of which no two are")
    assert "they show no drift (p = " in str(found)
    assert named_groups(["b", "a", "b"], 3).tolist() == [1, 0, 1]


def test_a_file_with_copies_is_no_set_of_draws(tmp_path):
    problem = recorded(ROWS)
    sealed = SealedSplit.draw(problem, SplitSizes(18, 12, 21, 9), seed=0)
    used = {"prior": sealed.prior, "validation": sealed.validation}
    others = RANDOM.normal(size=(50, 3))

    def read(rows, name):
        save = np.save if name.endswith(".npy") else lambda path, a: np.savez(path, theta=a)
        save(tmp_path / name, rows)
        return read_instances(problem, tmp_path / name)

    for name in ("new.npz", "new.npy"):
        with pytest.raises(ConfigurationError, match="only 50 of the 55 instances are different"):
            require_fresh(used, read(np.concatenate([others, others[:5]]), name))
        require_fresh(used, read(others, name))
    nearly = np.concatenate([others, others[:5] * (1 + 4e-16)])
    with pytest.raises(ConfigurationError, match="5 of the 55 instances are equal to others but"):
        require_fresh(used, read(nearly, "new.npz"))
    known = np.concatenate([others, np.asarray(sealed.prior.thetas)[:3] * (1 + 4e-16)])
    with pytest.raises(ConfigurationError, match="3 of the 53 instances are, but for"):
        require_fresh(used, read(known, "new.npz"))
