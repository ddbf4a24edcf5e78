"""Certificates that go on until their claims are decided."""

import dataclasses
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from support.shared import small_run
from support.tiny import EXPERIMENT, SMALL, sealed
from surestep.base.errors import ConfigurationError, RunFolderError
from surestep.certify.certificate import Certificate
from surestep.certify.until import (
    PROVED,
    REFUTED,
    UntilOutcomes,
    course_of,
    until_certificate,
)
from surestep.run import asked_rule
from surestep.run.asked_rule import AskedRule
from surestep.run.charges import read_charges, recorded_hashes
from surestep.run.fresh import certify_again
from surestep.run.until import certify_until, outcomes_of, read_until_plan
from surestep.run.verify.fresh import verify_fresh
from surestep.storage.checkpoint import Saving
from surestep.storage.run_folder import RunFolder

EASY = "loss 1e9 in 3 iterations: 0.99"
"""It takes 355 instances, in batches of 64."""


def certified(folder, claim=EASY, **settings):
    return certify_until(folder, SMALL, EXPERIMENT, claim, **settings)


def checks(folder, rerun=0):
    return verify_fresh(folder, SMALL, EXPERIMENT, rerun, seed=0)


@pytest.fixture(scope="module", autouse=True)
def small_batches():
    """Of 64, so that a claim takes several."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(asked_rule, "_TILES", (64, 64))
        yield


@pytest.fixture(scope="module")
def proved(tmp_path_factory):
    folder = small_run(tmp_path_factory.mktemp("until") / "run")
    certified(folder)
    return folder


@pytest.fixture
def copied(proved, tmp_path):
    return RunFolder(shutil.copytree(proved.path, tmp_path / "run"))


def test_a_claim_that_holds_is_proved_after_about_as_many_instances_as_forecast(proved):
    document, place = certified(proved)
    statement = document.statements[0]
    details = statement.details
    assert details["verdict"] == "proved"
    assert details["decided_after"] == details["expected"]["needed"][1]
    assert details["decided_after"] == details["expected"]["earliest"]
    assert document.sizes["train"] == details["reached"] >= details["decided_after"]
    assert statement.name == PROVED
    assert statement.value >= 0.99
    assert "99% was asked for, and is proved" in statement.sentence
    assert Certificate.load(place / "certificate.json") == document


def test_it_is_charged_once_and_found_again(proved):
    before = (proved.path / "certificates" / "1" / "until.safetensors").stat().st_mtime_ns
    certified(proved)
    assert [(c.certificate, c.epsilon) for c in read_charges(proved)][1:] == [("1", 0.05)]
    after = (proved.path / "certificates" / "1" / "until.safetensors").stat().st_mtime_ns
    assert after == before


def test_it_is_verified_and_rolled_out_again(proved):
    found = checks(proved, rerun=100)
    assert [check for check in found if not check.stands] == []
    assert any("128 instances rolled out again" in check.name for check in found)


def test_what_was_interrupted_goes_on_to_the_same_bits(tmp_path, proved, monkeypatch):
    folder = small_run(tmp_path / "run")
    observe, rounds = AskedRule.observe, []

    def stopped(self, data, rule=None):
        rounds.append(data.size)
        if len(rounds) == 7:  # four of the pilot, then two batches
            raise KeyboardInterrupt
        return observe(self, data, rule)

    monkeypatch.setattr(AskedRule, "observe", stopped)
    with pytest.raises(KeyboardInterrupt):
        certified(folder)
    monkeypatch.setattr(AskedRule, "observe", observe)
    place = folder.path / "certificates" / "1"
    assert outcomes_of(RunFolder(place)).size == 128
    assert not (place / "certificate.json").exists()
    certified(folder)
    assert len(read_charges(folder)) == 2
    for name in ("plan.json", "until.safetensors", "certificate.json"):
        whole = proved.path / "certificates" / "1" / name
        assert (place / name).read_bytes() == whole.read_bytes()


def test_what_is_lost_without_a_warning_is_drawn_again(tmp_path, proved, monkeypatch):
    """As after a power cut: there is no time to save anything."""
    folder = small_run(tmp_path / "run")
    observe, rounds = AskedRule.observe, []

    class Cut(BaseException):
        pass

    def stopped(self, data, rule=None):
        rounds.append(data.size)
        if len(rounds) == 8:
            monkeypatch.setattr(RunFolder, "save", lambda *_: None)
            raise Cut
        return observe(self, data, rule)

    monkeypatch.setattr(Saving, "shortest_wait", 0.0)
    monkeypatch.setattr(Saving, "largest_share", np.inf)
    monkeypatch.setattr(AskedRule, "observe", stopped)
    with pytest.raises(Cut):
        certified(folder)
    monkeypatch.undo()
    place = folder.path / "certificates" / "1"
    assert 0 < outcomes_of(RunFolder(place)).size <= 192
    certified(folder)
    whole = proved.path / "certificates" / "1" / "certificate.json"
    assert (place / "certificate.json").read_bytes() == whole.read_bytes()


def test_a_limit_leaves_it_undecided_and_a_higher_one_goes_on(tmp_path, proved):
    folder = small_run(tmp_path / "run")
    first, _ = certified(folder, most=100)
    assert first.sizes["train"] == 100
    assert first.statements[0].details["verdict"] == "undecided"
    assert 0 < first.statements[0].value < 0.99
    assert [check for check in checks(folder) if not check.stands] == []
    spent, _ = certified(folder, budget=1e-9)
    assert spent.statements[0].details["verdict"] == "undecided"
    assert spent.sizes["train"] == 128  # what is there counts
    again, place = certified(folder)
    assert again == Certificate.load(proved.path / "certificates" / "1" / "certificate.json")
    assert place.name == "1"
    fewer, _ = certified(folder, most=10)
    assert fewer == again  # nothing is forgotten


def test_a_claim_that_does_not_hold_is_refuted(copied):
    document, place = certified(copied, "loss 1e-9 in 1 iteration: 0.9")
    assert place.name == "2"
    low, high = document.statements
    assert (low.name, high.name) == (PROVED, REFUTED)
    assert low.details["verdict"] == "refuted"
    assert high.value <= 0.9
    assert [check for check in checks(copied, rerun=1) if not check.stands] == []


def test_certificates_of_both_kinds_are_numbered_and_verified_together(copied):
    _, place = certify_again(copied, SMALL, EXPERIMENT, sealed(40, 7), 0.02)
    later, third = certified(copied, seed=3)
    assert (place.name, third.name) == ("2", "3")
    assert later.statements[0].details["verdict"] == "proved"
    found = checks(copied)
    assert [check for check in found if not check.stands] == []
    assert {check.name.partition(":")[0] for check in found} >= {
        f"certificate {number}" for number in (1, 2, 3)
    }


def test_another_claim_seed_or_epsilon_draws_other_instances(copied):
    certified(copied, seed=1)
    certified(copied, epsilon=0.1)
    certified(copied, "loss 2e9 in 3 iterations: 0.99")
    places = [copied.path / "certificates" / str(n) for n in range(1, 5)]
    seen = [outcomes_of(RunFolder(place)).losses[:64] for place in places]
    assert not any(np.isin(one, other).any() for i, one in enumerate(seen) for other in seen[:i])


def test_no_instance_of_the_run_is_used(proved):
    plan = read_until_plan(proved.path / "certificates" / "1")
    assert plan is not None
    rule = AskedRule.of(proved, SMALL, EXPERIMENT, plan.asked, plan.deployed_sample, plan.seed)
    fresh = {name for number in range(6) for name in rule.fresh(plan, number).hashes}
    used = {name for hashes in recorded_hashes(proved).values() for name in hashes}
    assert len(used) == SMALL.sizes.prior + SMALL.sizes.validation + SMALL.sizes.train
    assert len(fresh) == 6 * plan.batch
    assert not fresh & used


def _edited(path, change):
    plain = json.loads(path.read_text())
    change(plain)
    path.write_text(json.dumps(plain, indent=2, sort_keys=True) + "\n")


def _better(plain):
    plain["statements"][0]["value"] = 0.9999


def _fewer(plain):
    plain["sizes"]["train"] = 64


def _bolder(plain):
    plain["test"]["proving"]["weights"] = [0.0] * 39 + [1.0]


def _surer(plain):
    plain["shares"][0]["epsilon"] = 0.049


def _luckier(plain):
    plain["seed"] = 5


@pytest.mark.parametrize(
    ("file", "change", "found"),
    [
        ("certificate.json", _better, "every number of the certificate"),
        ("certificate.json", _fewer, "every number of the certificate"),
        ("plan.json", _bolder, "the plan, and its budget"),
        ("plan.json", _surer, "the plan, and its budget"),
        ("plan.json", _luckier, "every number of the certificate"),
    ],
)
def test_edited_files_are_found(copied, file, change, found):
    _edited(copied.path / "certificates" / "1" / file, change)
    failed = [check.name for check in checks(copied) if not check.stands]
    assert f"certificate 1: {found}" in failed


def _reissued(place, outcomes):
    """Somebody who cheats makes the certificate anew from outcomes that suit them."""
    results, plan = RunFolder(place), read_until_plan(place)
    assert plan is not None
    results.save("until", outcomes)
    until_certificate(plan, outcomes).save(place / "certificate.json")


def test_invented_outcomes_are_found_by_rolling_out_again(copied):
    place = copied.path / "certificates" / "1"
    seen = outcomes_of(RunFolder(place))
    losses = seen.losses.copy()
    losses[200] /= 2
    _reissued(place, dataclasses.replace(seen, losses=losses))
    failed = [check for check in checks(copied, rerun=seen.size) if not check.stands]
    assert len(failed) == 1
    assert "1 differ from what is stored, first 200" in failed[0].reason


def test_outcomes_that_were_left_out_are_found(copied):
    place = copied.path / "certificates" / "1"
    seen = outcomes_of(RunFolder(place))
    kept = np.delete(np.arange(seen.size), 3)
    _reissued(place, UntilOutcomes(seen.losses[kept], seen.levels[kept]))
    failed = [check.name for check in checks(copied) if not check.stands]
    assert failed == ["certificate 1: outcomes of whole batches"]


def test_levels_are_computed_again(copied):
    place = copied.path / "certificates" / "1"
    seen = outcomes_of(RunFolder(place))
    _reissued(place, dataclasses.replace(seen, levels=2 * seen.levels))
    failed = [check for check in checks(copied, rerun=1) if not check.stands]
    assert [check.reason[:9] for check in failed] == ["64 differ"]


def _made_elsewhere(folder):
    """As if another version had made the certificate."""
    place = RunFolder(folder.path / "certificates" / "1")
    place.mark("made_with", environments=[{"surestep": "another"}])
    return place.path


def test_what_was_made_elsewhere_is_compared_to_rounding(copied):
    place = _made_elsewhere(copied)
    found = [check for check in checks(copied) if check.name.startswith("certificate 1:")]
    assert all(check.stands for check in found)
    assert "64 instances rolled out again" in found[-1].name
    seen = outcomes_of(RunFolder(place))
    _reissued(place, dataclasses.replace(seen, losses=seen.losses * (1 + 1e-12)))
    assert all(check.stands for check in checks(copied)[-4:])
    _reissued(place, dataclasses.replace(seen, losses=seen.losses / 2))
    assert not checks(copied)[-1].stands


SLOWLY = """
import pathlib, sys, time
from support.tiny import EXPERIMENT, SMALL
from surestep.run import asked_rule
from surestep.run.asked_rule import AskedRule
from surestep.run.until import certify_until
from surestep.storage.checkpoint import Saving
from surestep.storage.run_folder import RunFolder
Saving.shortest_wait, Saving.largest_share, observe = 0.0, 1e9, AskedRule.observe
asked_rule._TILES = (64, 64)
def slowly(self, data, rule=None):
    time.sleep(0.2)
    return observe(self, data, rule)
AskedRule.observe = slowly
certify_until(RunFolder(pathlib.Path(sys.argv[1])), SMALL, EXPERIMENT, sys.argv[2])
"""


@pytest.mark.slow
def test_a_process_that_was_killed_is_gone_on_with(tmp_path, proved):
    folder = small_run(tmp_path / "run")
    place = folder.path / "certificates" / "1"
    command = [sys.executable, "-c", SLOWLY, str(folder.path), EASY]
    paths = {"PYTHONPATH": os.pathsep.join(str(Path(path).resolve()) for path in sys.path if path)}
    with subprocess.Popen(command, env=os.environ | paths) as process:
        while not (place / "until.safetensors").exists():
            assert process.poll() is None
            time.sleep(0.05)
        process.kill()
    assert 0 < outcomes_of(RunFolder(place)).size < 384
    certified(folder)
    for name in ("plan.json", "until.safetensors", "certificate.json"):
        whole = proved.path / "certificates" / "1" / name
        assert (place / name).read_bytes() == whole.read_bytes()


def test_the_best_bound_so_far_counts(proved):
    plan = read_until_plan(proved.path / "certificates" / "1")
    assert plan is not None
    good, bad = np.ones(4 * plan.batch), np.full(2 * plan.batch, 2e9)
    levels = np.full(6 * plan.batch, 1e9)
    early = course_of(plan, UntilOutcomes(good, levels[: len(good)]))
    late = course_of(plan, UntilOutcomes(np.concatenate([good, bad]), levels))
    assert late.low == early.low
    assert late.high < early.high
    assert late.verdict == "refuted"


@pytest.mark.parametrize(
    ("claim", "words"),
    [("goal", "which share of new instances"), ("close: 0.9", "a claim reads WHAT")],
)
def test_what_cannot_be_claimed_is_refused_before_anything_is_drawn(copied, claim, words):
    with pytest.raises(ConfigurationError, match=words):
        certified(copied, claim)
    assert len(read_charges(copied)) == 2


def test_a_run_without_a_certificate_is_refused(tmp_path):
    with pytest.raises(RunFolderError, match="finish the run first"):
        certified(RunFolder(tmp_path))
