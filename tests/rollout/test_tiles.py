"""Work in tiles, data that are never in memory as a whole, and the deployed rule alone."""

import dataclasses
import itertools
from typing import ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from support.equal import assert_same
from support.finished import finished
from support.tiny import (
    COMMITMENT,
    CONFIG,
    EXPERIMENT,
    OPPONENTS,
    PROBLEM,
    RULE,
    SPLIT,
    TASK,
    changed,
    planned,
    references,
    sealed,
    train_set,
)
from surestep.base.errors import ConfigurationError, ProblemError, RunFolderError
from surestep.base.keys import named_key
from surestep.certify.certificate import Certificate
from surestep.certify.claims import base as claims
from surestep.certify.gather import certify
from surestep.certify.statements import rigorous_statements
from surestep.problem import sets
from surestep.problem.base import Problem
from surestep.problem.datasets import SplitSizes, TrainSet, _require_room
from surestep.problem.draw import DrawnInChunks, draw
from surestep.problem.form import as_instances
from surestep.problem.instance_files import read_instances
from surestep.problem.sets import StreamedTrainSet, instance_hashes
from surestep.problem.streamed import ReadInChunks
from surestep.rollout import tiles
from surestep.rollout.observe import Observed, observe
from surestep.rollout.tiles import Alone, Cuts, observe_all
from surestep.rules.base import hyper_of, solver_fingerprint, with_hyper
from surestep.run.charges import read_charges
from surestep.run.fresh import certify_again
from surestep.storage.records import to_json
from surestep.train.sample import Sampled

KEY = named_key(3, "data", "TrainSet", *COMMITMENT.names)
SIZE = 61


@pytest.fixture(scope="module")
def prior():
    """Three samples around an untrained rule, weighed by their losses on the prior set."""
    with jax.enable_x64(True):
        hyper = np.asarray(hyper_of(RULE))
        hypers = np.stack([0.001 * hyper, hyper, 0.01 * hyper])
        rules = [with_hyper(RULE, jnp.asarray(one)) for one in hypers]
    losses = np.stack([TASK.losses(rule, SPLIT.prior)[:, 0] for rule in rules])
    return Sampled.given(
        hypers, np.full(3, 0.9), losses, TASK.thresholds(SPLIT.prior), np.log(np.full(3, 1 / 3))
    )


@pytest.fixture
def short(monkeypatch):
    """Tiles of about 40 instances, so that small sets have several."""
    monkeypatch.setattr(tiles, "LENGTH", 40)
    return changed(TASK, block=16)


@given(st.integers(1, 30_000), st.integers(1, 3000))
def test_cuts_cover_a_set_once_in_runs_of_one_length(size, block):
    cuts = Cuts.of(size, block)
    bounds = [cuts.bounds(run) for run in range(cuts.number)]
    assert bounds[0][0] == 0 and bounds[-1][1] == size
    assert all(a[1] == b[0] for a, b in itertools.pairwise(bounds))
    assert all(last - first == cuts.length for first, last in bounds[:-1])
    assert 0 < bounds[-1][1] - bounds[-1][0] <= cuts.length
    longest = max(1024, block)
    assert cuts.length <= longest
    assert size > longest or cuts.number == 1
    # Little is computed in vain: less than an instance a run.
    assert cuts.number * cuts.length - size < cuts.number


def test_a_tile_is_what_one_program_makes_of_its_instances(short, prior):
    """Each tile has the bits of the plain program; the whole set's program may round otherwise."""
    train = train_set(SIZE, 3)
    plan = planned(prior, train)
    watch, goals = short.watch(plan.iterations, 1), 0.5 * TASK.start_losses(train)[:, None]
    work = short.work(RULE, train, watch, prior.hypers, targets=goals)
    assert work.cuts == Cuts(SIZE, 31) and work.number == 6
    places = [work.place(tile) for tile in (1, 5)]
    assert places == [(slice(1, 2), slice(0, 31)), (slice(2, 3), slice(31, SIZE))]
    found = dict(Alone().observe(work, [4, 1, 5, 0]))
    assert list(found) == [4, 1, 5, 0]
    for tile, seen in found.items():
        [number], here = range(SIZE)[work.place(tile).samples], work.place(tile).instances
        padded = np.minimum(np.arange(here.start, here.start + 31), SIZE - 1)
        thetas = jax.tree.map(lambda leaf, chosen=padded: leaf[chosen], train.thetas)
        rule = with_hyper(RULE, jnp.asarray(prior.hypers[number]))
        alone = observe(rule, PROBLEM, thetas, jnp.asarray(goals[padded]), watch, 16)
        known = here.stop - here.start
        np.testing.assert_array_equal(seen.losses, alone.losses[None, :known])
        np.testing.assert_array_equal(seen.reach, alone.reach[None, :known])
        whole = observe(rule, PROBLEM, train.thetas, jnp.asarray(goals), watch, 16)
        np.testing.assert_allclose(whole.losses[here], seen.losses[0], rtol=1e-9)
        np.testing.assert_array_equal(whole.reach[here], seen.reach[0])
    rule = with_hyper(RULE, jnp.asarray(prior.hypers[1]))
    single = dataclasses.replace(work, rule=rule, hypers=None)
    np.testing.assert_array_equal(observe_all(single).losses[:31], found[1].losses[0])


@pytest.mark.parametrize("together", [2, 3, 7])
def test_samples_of_a_batch_are_what_each_is_alone(short, prior, together):
    train = train_set(SIZE, 3)
    plan = planned(prior, train)
    watch, goals = short.watch(plan.iterations, 1), 0.5 * TASK.start_losses(train)[:, None]
    alone, batch = (
        changed(short, sample_block=number).work(RULE, train, watch, prior.hypers, targets=goals)
        for number in (1, together)
    )
    assert batch.number == 2 * -(-3 // min(together, 3))
    seen, reference = (Observed.room((3, SIZE), watch) for _ in range(2))
    for work, tables in ((batch, seen), (alone, reference)):
        for tile, found in Alone().observe(work, range(work.number)):
            tables.put(work.place(tile), found)
    np.testing.assert_allclose(seen.losses, reference.losses, rtol=1e-9)
    np.testing.assert_array_equal(seen.reach, reference.reach)


def test_a_contract_that_is_broken_far_into_a_set_is_reported_with_the_instance(short):
    class Falls(Problem):
        def sample(self, key):
            return jax.random.uniform(key)

        def start(self, theta):
            return jnp.zeros(())

        def loss(self, x, theta):
            return jnp.where(theta > 50, -1.0, 1.0) + 0 * x

    task = changed(short, problem=Falls())
    train = TrainSet(jnp.arange(float(SIZE)))
    rule = OPPONENTS["heavy ball"]
    with pytest.raises(ProblemError, match="fell to -1 on instance 51 of the TrainSet"):
        task.observe(rule, train, task.watch((0, 1)))


class Watched(DrawnInChunks):
    """Remembers how much was asked for at a time."""

    def part(self, first, last):
        asked.append(last - first)
        return super().part(first, last)


asked: list[int] = []


def test_a_streamed_set_gives_the_same_certificate_and_is_never_asked_for_all(short, prior):
    streamed = StreamedTrainSet(Watched(PROBLEM, SIZE, KEY, chunk=32))
    stored = TrainSet(draw(PROBLEM, SIZE, KEY))
    assert stored.sha256 == train_set(SIZE, 3).sha256 == streamed.sha256
    plan = planned(prior, stored)
    asked.clear()
    none = np.zeros(SIZE)
    found = certify(plan, short, RULE, prior, OPPONENTS, none, streamed)
    # Two chunks for the goals and two for the starts, then two runs of instances for the samples
    # and two for the opponent; where instances are told apart, two chunks for that.
    assert asked == [32, 29, 32, 29, 31, 30, 31, 30, *([32, 29] if plan.traits else [])]
    expected = certify(plan, short, RULE, prior, OPPONENTS, none, stored)
    assert_same(found, expected)


def test_parts_of_a_streamed_set_are_those_of_the_set():
    stored = draw(PROBLEM, SIZE, KEY)
    source = DrawnInChunks(PROBLEM, SIZE, KEY, chunk=32)
    for first, last in [(31, 33), (10, 50), (32, 60)]:
        for found, leaf in zip(source.part(first, last), stored, strict=True):
            np.testing.assert_array_equal(found, leaf[first:last])


def test_only_large_train_sets_are_streamed(monkeypatch):
    monkeypatch.setattr(sets, "IN_MEMORY", SIZE)
    assert type(train_set(SIZE, 3)) is TrainSet
    large = train_set(SIZE + 1, 3)
    assert isinstance(large, StreamedTrainSet) and isinstance(large.thetas, DrawnInChunks)
    assert large.size == SIZE + 1
    assert large.thetas.key == KEY
    small = dataclasses.replace(large.thetas, chunk=32)
    parts = list(StreamedTrainSet(small).parts())
    assert [len(part.target) for part in parts] == [32, 30]


def test_instances_are_read_from_npy_files_when_they_are_needed(tmp_path):
    stored = draw(PROBLEM, SIZE, KEY)
    folder = tmp_path / "instances"
    folder.mkdir()
    np.save(folder / "diagonal.npy", stored.diagonal)
    np.save(folder / "target.npy", stored.target)
    found = read_instances(PROBLEM, folder)
    assert isinstance(found.thetas, ReadInChunks)
    assert isinstance(found.thetas.arrays.target, np.memmap)
    assert found.size == SIZE and found.sha256 == TrainSet(stored).sha256
    # What is wrong anywhere in a file is found before work begins.
    bad = np.array(stored.target)
    bad[57, 1] = np.inf
    np.save(folder / "target.npy", bad)
    with pytest.raises(ConfigurationError, match=r"target in .* not finite"):
        read_instances(PROBLEM, folder)
    np.save(folder / "target.npy", stored.target[:-1])
    with pytest.raises(ConfigurationError, match="equally many"):
        read_instances(PROBLEM, folder)
    (folder / "target.npy").unlink()
    with pytest.raises(ConfigurationError, match="must hold the arrays diagonal, target"):
        read_instances(PROBLEM, folder)
    (folder / "target.npy").write_text("no array")
    with pytest.raises(ConfigurationError, match="cannot be read as a folder"):
        read_instances(PROBLEM, folder)


def test_a_single_npy_file_is_a_theta_of_one_array(tmp_path):
    class Square(Problem):
        def sample(self, key):
            return jax.random.normal(key, (2,))

        def start(self, theta):
            return jnp.ones(2)

        def loss(self, x, theta):
            return jnp.sum((x - theta) ** 2)

    rows = np.arange(12, dtype=np.float32).reshape(6, 2)
    np.save(tmp_path / "anything.npy", rows)
    found = read_instances(Square(), tmp_path / "anything.npy")
    part = found.part(2, 4)
    assert part.dtype == np.float64  # the problem's precision, not the file's
    assert part.tolist() == rows[2:4].tolist()
    # Whose loss does not change at the start: a part may be so by chance, a whole file is not.
    np.save(tmp_path / "anything.npy", np.ones((3, 2)))
    with pytest.raises(ProblemError, match="does not change with x"):
        read_instances(Square(), tmp_path / "anything.npy")
    mixed = np.concatenate([np.zeros((1024, 2)), np.ones((1, 2))])
    np.save(tmp_path / "anything.npy", mixed)
    assert read_instances(Square(), tmp_path / "anything.npy").size == 1025
    assert as_instances(Square(), part).dtype == np.float64


def test_statements_do_not_depend_on_how_many_samples_are_averaged_at_a_time(prior, monkeypatch):
    plan = planned(prior)
    found = certify(plan, TASK, RULE, prior, OPPONENTS, references(), SPLIT.train)
    basis = (plan, found.evidence, found.log_posterior, found.deployed_sample)
    together = rigorous_statements(*basis)
    monkeypatch.setattr(claims, "_AT_ONCE", 1)
    assert rigorous_statements(*basis) == together


@pytest.fixture
def run(prior, tmp_path):
    """A folder with samples and a certificate, as a run leaves it."""
    return finished(prior, tmp_path / "run")[0]


def again(run, instances, **options):
    return certify_again(run, CONFIG, EXPERIMENT, instances, 0.05, **options)


def test_the_deployed_rule_alone_pays_for_no_other(run, prior):
    mode = Certificate.load(run.certificate_path).deployed_sample
    document, place = again(run, sealed(64, 3), deployed=True)
    assert Certificate.load(place / "certificate.json") == document
    train = sealed(64, 3).open(CONFIG.commitment(document.plan_sha256))
    assert document.data_sha256["train"] == train.sha256
    rule = with_hyper(RULE, jnp.asarray(prior.hypers[mode]))
    misses = int(np.sum(~(TASK.losses(rule, train)[:, 0] <= TASK.thresholds(train))))
    # Clopper-Pearson at the claim's whole share: the prior has one sample.
    share = next(s.epsilon for s in document.ledger if s.name == "missing the goal")
    expected = stats.beta.ppf(1 - share, misses + 1, 64 - misses)
    missing = next(s for s in document.statements if s.name == "missing the goal")
    assert missing.value == pytest.approx(expected, rel=1e-9)
    assert document.solver_sha256 == solver_fingerprint(rule)
    # It is known by its number in the run, not among the one that is left.
    assert document.deployed_sample == mode


def test_the_deployed_rule_is_not_certified_by_what_chose_it(prior, tmp_path):
    run, train = finished(prior, tmp_path / "run")
    given = TrainSet(train.thetas)
    with pytest.raises(ConfigurationError, match="64 of the 64 instances are in the run's train"):
        again(run, given, deployed=True)
    run.certificate_path.unlink()
    run.kept(run.certificate_path).copy.unlink()
    with pytest.raises(RunFolderError, match="no deployed rule yet"):
        again(run, sealed(64, 3), deployed=True)
    assert len(read_charges(run)) == 1


def begin(run, train, monkeypatch, **options):
    """A certificate that is interrupted before anything is seen."""

    def stopped(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("surestep.run.fresh.certify", stopped)
        with pytest.raises(KeyboardInterrupt):
            again(run, train, **options)


def test_an_unfinished_certificate_with_another_plan_is_another_one(run, monkeypatch):
    train = TrainSet(train_set(64, 3).thetas)
    begin(run, train, monkeypatch)
    # The instances were opened for all samples; for the deployed one alone they cost again.
    document, place = again(run, train, deployed=True)
    assert document.epsilon == pytest.approx(0.1)
    assert place.name == "2" and len(read_charges(run)) == 3
    # The one for all samples goes on as it was planned, before anything was seen of the instances.
    document, place = again(run, train)
    assert document.epsilon == pytest.approx(0.05)
    assert place.name == "1" and len(read_charges(run)) == 3


def test_of_two_that_were_interrupted_each_goes_on(run, monkeypatch):
    train = TrainSet(train_set(64, 3).thetas)
    for deployed in (False, True):
        begin(run, train, monkeypatch, deployed=deployed)
    for deployed, name in ((True, "2"), (False, "1")):
        document, place = again(run, train, deployed=deployed)
        assert place.name == name and len(read_charges(run)) == 3
        assert document.epsilon == pytest.approx(0.05 * int(name))


def test_of_two_that_draw_each_goes_on_with_its_own_instances(run, monkeypatch):
    for deployed in (False, True):
        begin(run, sealed(64, 3), monkeypatch, deployed=deployed)
    documents = {}
    for deployed, name in ((True, "2"), (False, "1")):
        documents[name], place = again(run, sealed(64, 3), deployed=deployed)
        assert place.name == name and len(read_charges(run)) == 3
        assert documents[name].epsilon == pytest.approx(0.05)
        assert documents[name].standing.joint_epsilon == pytest.approx(0.05 * (1 + int(name)))
    first, second = (documents[name].data_sha256["train"] for name in "12")
    assert first != second


def test_nothing_is_certified_again_before_the_runs_own_certificate_is_paid_for(run):
    run.kept(run.charges_path).write(to_json({"charges": []}))
    with pytest.raises(RunFolderError, match="finish the run first"):
        again(run, sealed(64, 3))


def test_more_instances_than_a_folder_can_account_for_are_refused(run, monkeypatch):
    monkeypatch.setattr("surestep.run.fresh.MOST_CHARGED", 100)
    with pytest.raises(ConfigurationError, match="certified on 100 instances in all"):
        again(run, sealed(64, 3))


def test_a_large_train_set_needs_no_room():
    _require_room(PROBLEM, SplitSizes(prior=8, validation=8, train=10**14, test=8))
    with pytest.raises(ConfigurationError, match="instances"):
        _require_room(PROBLEM, SplitSizes(prior=10**14, validation=8, train=8, test=8))


MIXING = np.random.default_rng(0).normal(size=(37, 23)).astype(np.float32)


class Rounded(Problem):
    """Sums in float32, which round by how many of them are computed side by side."""

    precision: ClassVar[Literal["float32", "float64"]] = "float32"

    def sample(self, key):
        return jnp.tanh(MIXING @ jax.random.normal(key, (23,)))

    def start(self, theta):
        return jnp.zeros_like(theta)

    def loss(self, x, theta):
        return jnp.sum((x - theta) ** 2)


def test_an_instance_has_the_same_bits_however_many_are_drawn():
    sets = [train_set(size, 4, Rounded()).hashes for size in (3, 100, 250, 777, 4500)]
    for smaller, larger in itertools.pairwise(sets):
        assert larger[: len(smaller)] == smaller
    later = draw(Rounded(), 10, named_key(4, "data", "TrainSet", *COMMITMENT.names), first=95)
    assert instance_hashes(later) == sets[3][95:105]


def test_the_same_numbers_in_another_type_are_the_same_instances(tmp_path):
    whole = np.arange(60, dtype=np.int64).reshape(20, 3)
    problem = Problem.of(
        lambda x, theta: jnp.sum((x - theta["b"]) ** 2), np.zeros(3), thetas={"b": whole * 1.0}
    )
    np.savez(tmp_path / "whole.npz", b=whole)
    np.savez(tmp_path / "real.npz", b=whole * 1.0)
    found = [read_instances(problem, tmp_path / f"{n}.npz").hashes for n in ("whole", "real")]
    assert found[0] == found[1]
