"""Certificates that were made on another kind of machine: verified to rounding, and no further."""

import dataclasses
import json
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from support.shared import small_run
from support.tiny import EXPERIMENT, PROBLEM, SMALL, changed, sealed, train_set
from surestep.base.errors import ConfigurationError
from surestep.base.keys import named_key
from surestep.certify.posterior import Certified, find_posterior
from surestep.problem import draw as drawing
from surestep.problem import sets
from surestep.problem.datasets import SealedSplit, SealedTrainSet, TrainSet
from surestep.rollout.rounding import (
    EXACT,
    PERTURBATIONS,
    STATISTICS,
    Perturbed,
    agree,
    explained,
    explained_hits,
    losses_kind,
    perturbed_rule,
)
from surestep.rules.base import hyper_of
from surestep.run.charges import read_charges
from surestep.run.fresh import certify_again
from surestep.run.pipeline import learn
from surestep.run.stored import read_plan
from surestep.run.verify.finished import made_elsewhere
from surestep.run.verify.fresh import verify_fresh
from surestep.run.verify.run import verify
from surestep.storage.run_folder import RunFolder
from surestep.train.sample import Sampled


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    folder = small_run(tmp_path_factory.mktemp("elsewhere") / "run")
    certify_again(folder, SMALL, EXPERIMENT, sealed(40, 7), 0.02)
    return folder


def other_last_bits(monkeypatch):
    """From now on this machine draws instances that differ in their last bits."""
    draw = sets.draw

    def drawn(*arguments):
        # Another turn than those that verification takes.
        return Perturbed(TrainSet(draw(*arguments)), PERTURBATIONS + 1).part(0, arguments[1])

    monkeypatch.setattr(sets, "draw", drawn)


@pytest.fixture
def run(original, tmp_path, monkeypatch):
    """A run that was made on a machine of another kind."""
    shutil.copytree(original.path, tmp_path / "run")
    folder = RunFolder(tmp_path / "run")
    for place in (folder, RunFolder(folder.path / "certificates" / "1")):
        place.mark("made_with", environments=[{"device": "gpu of another kind"}])
    other_last_bits(monkeypatch)
    return folder


def opened_here(run):
    """The run's train set as it is drawn here."""
    commitment = SMALL.commitment(read_plan(run.plan_path).sha256)
    return SealedTrainSet(PROBLEM, SMALL.sizes.train, SMALL.seed).open(commitment)


def failed(run, rerun=0):
    checks = verify(run, SMALL, EXPERIMENT, rerun) + verify_fresh(run, SMALL, EXPERIMENT, rerun)
    return [check.name for check in checks if not check.stands]


def edit(path, change):
    plain = json.loads(path.read_text())
    change(plain)
    path.write_text(json.dumps(plain))


def test_what_was_made_elsewhere_stands_to_rounding(run):
    assert made_elsewhere(run)
    train = opened_here(run)
    assert not set(train.hashes) & set(read_charges(run)[0].instances)
    assert failed(run, rerun=64) == []


def test_what_was_made_elsewhere_stands_outside_of_tests_too(run):
    """Users' programs work in float32 where nothing else is said."""
    with jax.enable_x64(False):
        assert failed(run, rerun=64) == []


def test_a_last_digit_of_the_prior_is_found_elsewhere_too(run):
    """What no instance has a part in is not compared to rounding."""

    def change(plain):
        plain["log_prior"][0] *= 1 - 1e-10

    edit(run.plan_path, change)
    assert "the plan, and its budget" in failed(run)


def test_what_was_made_here_must_be_the_same_bits(original, monkeypatch):
    assert not made_elsewhere(original)
    assert failed(original, rerun=8) == []
    other_last_bits(monkeypatch)
    assert "the data sets" in failed(original)


@pytest.mark.parametrize("number", range(4))
def test_a_changed_number_in_a_statement_is_found_elsewhere_too(run, number):
    def change(plain):
        plain["statements"][number]["value"] *= 1 - 1e-6

    edit(run.certificate_path, change)
    assert any(name.startswith("statement") for name in failed(run))


def test_another_plan_is_found_elsewhere_too(run):
    def change(plain):
        plain["lambdas"][0] *= 1 + 1e-6

    edit(run.plan_path, change)
    assert "the plan, and its budget" in failed(run)


def test_other_instances_are_found_elsewhere_too(run, monkeypatch):
    other = SealedSplit.draw(PROBLEM, SMALL.sizes, SMALL.seed + 1)
    monkeypatch.setattr(SealedSplit, "draw", lambda *_: other)
    found = {"the goal on every prior instance", "losses of all 3 samples on the prior set"}
    assert found | {"the goal on every train instance"} <= set(failed(run))


@pytest.mark.parametrize("table", ["losses", "opponent_losses", "reach", "opponent_reach"])
def test_other_observations_are_found_elsewhere_too(run, table):
    plan, prior = read_plan(run.plan_path), run.load("sample", Sampled)
    found = run.load("certify", Certified)
    invented = np.array(getattr(found.evidence, table))
    mine = invented[found.deployed_sample if table in ("losses", "reach") else 0]
    # What was not reached is said to have been, and what was, later.
    mine[:] = np.where(np.isfinite(mine), 1.01 * mine, 3.0)
    evidence = dataclasses.replace(found.evidence, **{table: invented})
    run.save("certify", find_posterior(plan, prior, evidence))
    assert any("rolled out again" in name for name in failed(run, rerun=64))


def test_a_perturb_moves_numbers_by_a_last_bit_and_nothing_else():
    thetas = {"a": jnp.linspace(-2.0, 3.0, 120).reshape(40, 3), "n": jnp.arange(40)}
    perturbations = [Perturbed(TrainSet(thetas), turn).part(1, 40) for turn in range(2)]
    for perturbed in perturbations:
        np.testing.assert_array_equal(perturbed["n"], np.arange(1, 40))
        moved = np.asarray(perturbed["a"] / thetas["a"][1:] - 1)
        assert np.all(np.abs(moved) < 5e-16)
        assert (moved > 0).any() and (moved < 0).any()
        assert perturbed["a"].dtype == jnp.float64
    assert (perturbations[0]["a"] != perturbations[1]["a"]).any()


def test_agreeing_values_have_one_form_and_numbers_to_rounding():
    value = {"a": [1.0, 2, "x", None], "b": {"c": float("nan")}}
    assert agree(value, {"a": [1.0 + 1e-12, 2, "x", None], "b": {"c": float("nan")}}, 1e-9)
    for other in (
        {"a": [1.0 + 1e-6, 2, "x", None], "b": {"c": float("nan")}},
        {"a": [1.0, 3, "x", None], "b": {"c": float("nan")}},
        {"a": [1.0, 2, "x"], "b": {"c": float("nan")}},
        {"a": [1.0, 2, "x", None], "b": {}},
    ):
        assert not agree(value, other, 1e-9)


def test_whole_numbers_may_be_labels_and_are_not_perturbed():
    thetas = {"labels": jnp.array([1.0, -1.0, 0.0]), "numbers": jnp.array([0.1, 0.2, 0.3])}
    perturbed = Perturbed(TrainSet(thetas), 3).part(0, 3)
    np.testing.assert_array_equal(perturbed["labels"], thetas["labels"])
    assert (perturbed["numbers"] != thetas["numbers"]).any()


def test_rules_are_perturbd_too():
    """Instances may be nothing but whole numbers, as those of MNIST are."""
    rule = EXPERIMENT.rule(0)
    hypers = [np.asarray(hyper_of(perturbed_rule(rule, turn))) for turn in range(2)]
    moved = [hyper / np.asarray(hyper_of(rule)) - 1 for hyper in hypers]
    assert all(0 < np.abs(part).max() < 5e-16 for part in moved)
    assert (hypers[0] != hypers[1]).any()


def compared(here, stored, perturbed, scale=1.0):
    """Which losses of at least 0 are explained."""
    goals = np.full(len(here), scale)
    return explained(here, stored, perturbed, losses_kind(True, 1e-6, goals))


def test_only_what_a_perturb_does_is_explained():
    here = np.array([[1.0, 1.0, 1e-3], [2.0, 2.0, 1e-5], [np.inf, np.inf, np.inf]])
    perturbed = [here, here * [1.0, 1.0, 1.5]]
    aside = np.array([[1.0], [-1.0], [0.0]])  # to both sides, as rounding does
    assert compared(here, here, perturbed).all()
    assert compared(here, here * np.array([1.0, 1.0, 3.3]) ** aside, perturbed).all()
    assert not compared(here, here * np.array([1.0, 1.0, 3.4]) ** aside, perturbed)[:2, 2].any()
    # Rounding may set in a column earlier, but not two.
    assert compared(here, here * np.array([1.0, 3.3, 1.0]) ** aside, perturbed).all()
    assert not compared(here, here * np.array([1.1, 1.0, 1.0]) ** aside, perturbed)[:2, 0].any()


def test_an_instance_that_has_converged_excuses_no_other():
    here, perturbed = np.array([[0.0], [1e-3], [1e-20]]), np.array([[1e-32], [1e-3], [1e-12]])
    assert compared(here, here, [perturbed]).all()
    assert not compared(here, here * 1.01, [perturbed])[1, 0]
    far = np.array([[1.0], [1e-4]]), np.array([[1.0], [1.0]])
    assert not compared(far[0], far[0] * [[1.0], [1e3]], [far[1]])[1, 0]


def orbits(rounding, random, starts):
    """Losses of a chaotic rule: every machine sees other orbits after some fifty iterations."""
    x, kept = starts * (1 + rounding * random.choice([-1.0, 0.0, 1.0], len(starts))), []
    for iteration in range(120):
        x = 3.7 * x * (1 - x)
        kept += [x * 10 ** (-iteration / 40)] if iteration % 4 == 0 else []
    return np.stack(kept, axis=1)


def test_honest_losses_of_a_chaotic_rule_are_explained_and_invented_ones_are_not():
    random = np.random.default_rng(0)
    starts = random.uniform(0.1, 0.9, 200)

    def stands(rounding, change=lambda table: table):
        tables = [orbits(2e-16, random, starts) for _ in range(PERTURBATIONS + 1)]
        return compared(tables[0], change(orbits(rounding, random, starts)), tables[1:]).all()

    assert np.mean([stands(2e-16) for _ in range(100)]) >= 0.98
    assert not any(stands(1e-9) for _ in range(20))
    late = np.arange(30) >= 20
    assert not any(stands(2e-16, lambda table: table / np.where(late, 1.5, 1.0)) for _ in range(20))


def test_unstable_instances_do_not_excuse_that_all_have_moved():
    """A hit that a perturbation moves far, a statistic that it flips, explain one and not all."""
    random = np.random.default_rng(1)
    hits = random.integers(300, 400, (200, 1)).astype(float)
    moved = hits.copy()
    moved[7] += 120
    assert explained_hits(hits, moved, [hits, moved]).all()
    assert not explained_hits(hits, hits - 300, [hits, moved]).any()
    none, one = np.zeros((200, 1)), np.zeros((200, 1))
    one[7] = 1.0
    assert explained(none, one, [none, one], STATISTICS).all()
    assert not explained(none, none + 1, [none, one], STATISTICS).any()


def test_a_share_of_goals_that_is_too_good_is_not_explained():
    """Every perturbation decides anew where a rule ends well: how many instances is what counts."""
    random = np.random.default_rng(2)

    def outcomes():
        return (random.uniform(size=(200, 1)) < 0.8).astype(float)

    honest = [explained(outcomes(), outcomes(), [outcomes() for _ in range(8)], EXACT).all()
              for _ in range(100)]  # fmt: skip
    assert np.mean(honest) >= 0.98
    forged = explained(outcomes(), np.ones((200, 1)), [outcomes() for _ in range(8)], EXACT)
    assert not forged.all()


def test_hits_that_are_missed_are_explained_if_a_perturb_misses_as_many():
    here = np.array([[5.0], [6.0], [np.inf], [8.0]])
    missed = np.where([[False], [True], [False], [False]], np.inf, here)
    assert not explained_hits(here, missed, [here]).all()
    perturbed = [here, np.where([[False], [False], [False], [True]], np.inf, here)]
    assert explained_hits(here, missed, perturbed).all()
    assert explained_hits(here, here, [here]).all()
    assert not explained_hits(here, here + 1, perturbed)[:2].any()


def test_samples_of_a_batch_are_verified_as_they_were_certified(tmp_path):
    folder, config = RunFolder(tmp_path / "run"), changed(SMALL, block=16, sample_block=2)
    learn(config, EXPERIMENT, folder)
    certify_again(folder, config, EXPERIMENT, sealed(40, 7), 0.02)
    checks = verify(folder, config, EXPERIMENT, 64) + verify_fresh(folder, config, EXPERIMENT, 64)
    assert [check.name for check in checks if not check.stands] == []


def test_a_later_certificate_with_another_seed_in_its_charge_does_not_stand(run):
    assert failed(run) == []
    charges = json.loads(run.charges_path.read_text())
    charges["charges"][-1]["seed"] += 1
    run.kept(run.charges_path).write(json.dumps(charges))
    found = set(failed(run))
    assert "certificate 1: the goal on every train instance" in found
    assert "certificate 1: what opened the train set" in found


@pytest.mark.parametrize(("name", "deployed"), [("prior", 0), ("validation", 0), ("train", 1)])
def test_what_chose_the_rule_cannot_certify_it_anywhere_as_a_file(run, original, name, deployed):
    """The instances as they were where the run was made; here they would be drawn otherwise."""
    commitment = SMALL.commitment(read_plan(run.plan_path).sha256)
    names = (*commitment.names,) if name == "train" else ()
    role = {"prior": "PriorSet", "validation": "ValidationSet", "train": "TrainSet"}[name]
    theirs = TrainSet(drawing.draw(PROBLEM, 24, named_key(SMALL.seed, "data", role, *names)))
    here = SealedSplit.draw(PROBLEM, SMALL.sizes, SMALL.seed).open(commitment)
    assert not set(theirs.hashes) & set(getattr(here, name).hashes)
    with pytest.raises(ConfigurationError, match=f"24 of the 24 instances are in the run's {name}"):
        certify_again(run, SMALL, EXPERIMENT, theirs, 0.02, deployed=bool(deployed))
    others = TrainSet(drawing.draw(PROBLEM, 24, named_key(99, "data", role)))
    certify_again(run, SMALL, EXPERIMENT, others, 0.02, deployed=bool(deployed))


def test_instances_drawn_elsewhere_are_tied_to_their_evidence_by_what_rules_do(run, monkeypatch):
    """With one goal for all, other instances have the same goals; their losses are others."""
    checks = verify(run, SMALL, EXPERIMENT)
    assert any("the deployed rule on 64 instances" in check.name for check in checks)
    monkeypatch.setattr(SealedTrainSet, "open", lambda *_: train_set(64, 99))
    names = [check.name for check in verify(run, SMALL, EXPERIMENT) if not check.stands]
    assert any("rolled out again" in name for name in names)
