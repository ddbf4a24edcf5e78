"""Problems, their instances, their data sets, and the checks before work starts."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from support.catalogue import Bowl
from support.tiny import changed
from surestep.base.errors import ConfigurationError, ProblemError
from surestep.base.keys import named_key
from surestep.paper.quadratics import Quadratics, QuadraticsSettings, random_basis
from surestep.problem.base import Problem, concatenated, instance
from surestep.problem.commitment import require_word
from surestep.problem.contract import check_problem
from surestep.problem.datasets import (
    Commitment,
    PriorSet,
    SealedSplit,
    SplitSizes,
    TestSet,
    TrainSet,
    ValidationSet,
)
from surestep.problem.draw import draw, working_precision
from surestep.problem.goal import Goal
from surestep.problem.instances import Instances
from surestep.rollout.loop import rollout
from surestep.rules import ConjugateGradients, HeavyBall

QUADRATICS = Quadratics.create(QuadraticsSettings(), 0)


def test_quadratics_have_the_papers_spectrum():
    thetas = draw(QUADRATICS, 400, named_key(0, "data"))
    eigenvalues = np.asarray(thetas.diagonal) ** 2
    assert eigenvalues.shape == (400, 200)
    low, high = eigenvalues[:, 0], eigenvalues[:, -1]
    assert 1e-3 <= low.min() < 1.1e-3 and 4.9e-3 < low.max() <= 5e-3
    assert 1e2 <= high.min() < 1.1e2 and 4.9e2 < high.max() <= 5e2
    gaps = np.diff(np.asarray(thetas.diagonal, np.float64), axis=1)
    np.testing.assert_allclose(gaps, gaps[:, :1].repeat(199, axis=1), rtol=1e-9)
    # Uniform, so the means are in the middle: four standard errors.
    assert low.mean() == pytest.approx(3e-3, abs=4 * 4e-3 / np.sqrt(12 * 400))


def test_quadratics_have_the_papers_right_hand_side():
    thetas = draw(QUADRATICS, 20_000, named_key(0, "data"))
    target = np.asarray(thetas.target)
    C, mean = np.asarray(QUADRATICS.mixing), np.asarray(QUADRATICS.mean)
    assert np.abs(C).max() <= 5 and np.abs(mean).max() <= 5
    covariance = C.T @ C
    found = np.cov(target.T)
    error = np.linalg.norm(found - covariance) / np.linalg.norm(covariance)
    assert error < 0.1
    deviation = (target.mean(0) - mean) / np.sqrt(np.diag(covariance) / 20_000)
    assert np.abs(deviation).max() < 5


def test_the_family_is_drawn_once_and_by_its_own_seed():
    again, other = (
        Quadratics.create(QuadraticsSettings(), 0),
        Quadratics.create(QuadraticsSettings(), 1),
    )
    np.testing.assert_array_equal(again.mixing, QUADRATICS.mixing)
    assert np.any(np.asarray(other.mixing) != np.asarray(QUADRATICS.mixing))


def test_the_loss_is_that_of_the_paper():
    theta = QUADRATICS.sample(named_key(0, "one"))
    x = np.linspace(-1, 1, 200)
    A, b = np.diag(np.asarray(theta.diagonal)), np.asarray(theta.target)
    assert QUADRATICS.loss(x, theta) == pytest.approx(0.5 * np.linalg.norm(A @ x - b) ** 2)
    assert np.all(np.asarray(QUADRATICS.start(theta)) == 0)


ROTATED = Quadratics.create(QuadraticsSettings(rotated=True), 0)


def test_a_rotated_family_has_the_same_instances_and_spectra_in_another_basis():
    plain, turned = (draw(p, 3, named_key(0, "data")) for p in (QUADRATICS, ROTATED))
    np.testing.assert_array_equal(plain.diagonal, turned.diagonal)
    np.testing.assert_array_equal(plain.target, turned.target)
    Q = np.asarray(ROTATED.basis)
    np.testing.assert_allclose(Q @ Q.T, np.eye(200), atol=1e-12)
    theta = QUADRATICS.sample(named_key(0, "one"))
    hessian = np.asarray(jax.hessian(ROTATED.loss)(jnp.zeros(200), theta))
    eigenvalues = np.asarray(theta.diagonal) ** 2
    np.testing.assert_allclose(np.linalg.eigvalsh(hessian), eigenvalues, rtol=1e-6, atol=1e-10)
    # No coordinate is an eigenvector: the diagonal alone is far from the Hessian.
    assert np.linalg.norm(np.diag(hessian)) < 0.8 * np.linalg.norm(hessian)
    x = np.linspace(-1, 1, 200)
    assert ROTATED.loss(Q.T @ x, theta) == pytest.approx(float(QUADRATICS.loss(x, theta)))


def test_the_basis_belongs_to_the_family_and_is_there_only_if_asked_for():
    assert QUADRATICS.basis is None
    again = Quadratics.create(QuadraticsSettings(rotated=True), 0)
    other = Quadratics.create(QuadraticsSettings(rotated=True), 1)
    np.testing.assert_array_equal(again.basis, ROTATED.basis)
    assert np.abs(np.asarray(other.basis) - np.asarray(ROTATED.basis)).max() > 0.1
    goal = Goal(scale=1.0, exponent=0.5)
    assert ROTATED.goal_second_moment(goal) == QUADRATICS.goal_second_moment(goal)


@pytest.mark.parametrize("rule", [HeavyBall.for_constants(500.0, 1e-3), ConjugateGradients()])
def test_rules_that_know_no_coordinates_do_not_see_the_rotation(rule):
    theta = QUADRATICS.sample(named_key(0, "one"))
    plain, turned = (rollout(rule, p, theta, 50).losses for p in (QUADRATICS, ROTATED))
    np.testing.assert_allclose(turned, plain, rtol=1e-6)


def test_random_bases_are_uniform():
    """First moments vanish and squares are one over the dimension, also on the diagonal."""
    with jax.enable_x64(True):
        bases = np.array([random_basis(3, seed) for seed in range(400)])
    assert np.abs(bases.mean(axis=0)).max() < 5 / np.sqrt(3 * 400)
    assert np.abs((bases**2).mean(axis=0) - 1 / 3).max() < 5 * 0.3 / np.sqrt(400)


@pytest.mark.parametrize(
    "settings",
    [
        QuadraticsSettings(dimension=0),
        QuadraticsSettings(convexity=(0.0, 1.0)),
        QuadraticsSettings(convexity=(5.0, 1.0)),
        QuadraticsSettings(smoothness=(1e-4, 5.0)),
    ],
)
def test_impossible_families_are_refused(settings):
    with pytest.raises(ConfigurationError, match=r"problem\."):
        Quadratics.create(settings, 0)


PLANNED = Commitment("the configuration's hash", "the plan's hash")


@pytest.mark.parametrize(
    "other",
    [
        changed(PLANNED, configuration="another"),
        changed(PLANNED, plan="another"),
        changed(PLANNED, word="said afterwards"),
    ],
)
def test_whatever_is_changed_draws_another_train_set_and_no_other_prior_set(other):
    sealed = SealedSplit.draw(QUADRATICS, SplitSizes(5, 6, 7, 8), 0)
    one, two = (sealed.open(found) for found in (PLANNED, other))
    assert not set(one.train.hashes) & set(two.train.hashes)
    assert one.prior.hashes == two.prior.hashes and one.test.hashes == two.test.hashes
    assert PLANNED.told == changed(PLANNED, word="said afterwards").told
    assert one.train.hashes == sealed.open(PLANNED).train.hashes


def test_a_longer_train_set_begins_with_a_shorter_one():
    longer, shorter = (TrainSet.draw(QUADRATICS, size, 0, PLANNED) for size in (70, 7))
    assert longer.hashes[:7] == shorter.hashes


@pytest.mark.parametrize("word", ["two\nlines", " spaces ", "x" * 101, "\x1b[31m"])
def test_a_word_that_cannot_be_printed_in_a_line_is_refused(word):
    with pytest.raises(ConfigurationError, match="printable characters in one line"):
        require_word(word)
    require_word("as it should be")


def test_four_sets_of_four_types_share_no_instance():
    split = SealedSplit.draw(QUADRATICS, SplitSizes(5, 6, 7, 8), 0).open(PLANNED)
    kinds = [type(s) for s in (split.prior, split.validation, split.train, split.test)]
    assert kinds == [PriorSet, ValidationSet, TrainSet, TestSet]
    assert [split.prior.size, split.validation.size, split.train.size, split.test.size] == [
        5,
        6,
        7,
        8,
    ]
    firsts = [
        np.asarray(s.thetas.target)
        for s in (split.prior, split.validation, split.train, split.test)
    ]
    everything = np.concatenate(firsts)
    assert len(np.unique(everything[:, 0])) == 26
    assert len(set(split.fingerprints().values())) == 4


def test_a_larger_set_begins_with_the_smaller_one():
    small, large = PriorSet.draw(QUADRATICS, 3, 0), PriorSet.draw(QUADRATICS, 9, 0)
    np.testing.assert_array_equal(large.thetas.target[:3], small.thetas.target)


def test_the_fingerprint_sees_every_bit():
    data = PriorSet.draw(QUADRATICS, 3, 0)
    assert data.sha256 == PriorSet.draw(QUADRATICS, 3, 0).sha256
    target = data.thetas.target
    nudged = data.thetas._replace(target=target.at[2, 7].set(jnp.nextafter(target[2, 7], jnp.inf)))
    assert PriorSet(nudged).sha256 != data.sha256


class Broken(Problem):
    """A problem that can be broken in several ways."""

    fault: str = ""

    def sample(self, key):
        return jax.random.normal(key, (3,))

    def start(self, theta):
        return jnp.zeros(3)

    def loss(self, x, theta):
        value = jnp.sum((x - theta) ** 2)
        faults = {
            "negative": value - 100.0,
            "nan": value * jnp.nan,
            "infinite": value + jnp.inf,
            "vector": (x - theta) ** 2,
            "constant": jnp.sum(theta**2) + 0.0 * jnp.sum(jax.lax.stop_gradient(x)),
            "rough": value + jnp.sum(jnp.sqrt(jnp.abs(x))),
            "single": value.astype(jnp.float32),
        }
        return faults.get(self.fault, value)


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("negative", "negative, and losses must be at least 0 on"),
        ("nan", "is not a number on 10 of 10 instances, first on instance 0"),
        ("infinite", "is infinite"),
        ("vector", r"single number .* not shape \(3,\)"),
        ("constant", "does not change with x"),
        ("rough", "gradient that is not finite"),
        ("single", "returns float32, but the problem's precision is float64"),
    ],
)
def test_a_broken_problem_is_refused_with_the_reason(fault, message):
    problem = Broken(fault)
    with pytest.raises(ProblemError, match=message):
        check_problem(problem, draw(problem, 10, named_key(0, "data")), 4)


@pytest.mark.parametrize("problem", [Broken(), Bowl(), QUADRATICS])
def test_a_sound_problem_passes(problem):
    check_problem(problem, draw(problem, 10, named_key(0, "data")), 4)


def test_precision_is_left_as_it_was():
    with jax.enable_x64(False):
        assert jnp.zeros(1).dtype == jnp.float32
        with working_precision(QUADRATICS):
            assert jnp.zeros(1).dtype == jnp.float64
        assert jnp.zeros(1).dtype == jnp.float32


def test_keys_depend_on_every_name_and_not_on_the_precision():
    def bits(*names):
        return jax.random.key_data(named_key(*names)).tolist()

    keys = [bits(0), bits(1), bits(0, "a"), bits(0, "b"), bits(0, "a", 1), bits(0, "a", 2)]
    assert len({tuple(key) for key in keys}) == len(keys)
    with jax.enable_x64(False):
        assert bits(2**31 - 1, "stage", 3) == bits(2**31 - 1, "stage", 3)
        single = bits(7, "stage", 3)
    assert single == bits(7, "stage", 3)


def test_instances_without_any_array_are_refused_in_words():
    problem = Problem.of(lambda x, theta: jnp.sum(x**2), np.ones(2), sample=lambda key: ())
    with pytest.raises(ConfigurationError, match="instances"):
        Instances.of(problem, (), ())


@pytest.mark.parametrize("index", [3, slice(2, 5), slice(None), np.array([4, 0])])
@pytest.mark.parametrize("kind", ["float64", "float32", "int64", "bool"])
def test_instances_keep_their_type_whatever_precision_is_set(index, kind):
    """Sets are cut outside of the problem's precision too."""
    rows = np.arange(24).reshape(8, 3).astype(kind)
    with jax.enable_x64(True):
        stacked = jnp.asarray(rows)
    for on in (False, True):
        with jax.enable_x64(on):
            found = instance({"a": stacked}, index)["a"]
            whole = concatenated([{"a": stacked}, {"a": stacked}])["a"]
        assert found.dtype == whole.dtype == rows.dtype
        np.testing.assert_array_equal(found, rows[index])
        assert instance(stacked[:, 0], 3).shape == ()
        np.testing.assert_array_equal(whole, np.concatenate([rows, rows]))


def test_taking_instances_compiles_nothing(compilations):
    with jax.enable_x64(True):
        stacked = jnp.arange(24.0).reshape(8, 3)
        with compilations() as made:
            for index in (1, slice(1, 6), np.array([3, 1, 1])):
                instance(stacked, index)
            concatenated([stacked, stacked, stacked])
    assert made.count == 0
