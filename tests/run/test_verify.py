"""Verification finds every change, and fresh certificates are fresh or paid for."""

import dataclasses
import json
import shutil
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from support.shared import small_run
from support.tiny import (
    CONFIG,
    EXPERIMENT,
    PROBLEM,
    RULE,
    SMALL,
    SPLIT,
    TASK,
    changed,
    sealed,
    train_set,
)
from support.types import unchecked
from surestep.base.errors import ConfigurationError, RunFolderError
from surestep.certify.certificate import Certificate
from surestep.certify.evidence import Evidence
from surestep.certify.plan import Plan
from surestep.certify.posterior import Certified, find_posterior
from surestep.certify.statements import issue
from surestep.cli.main import main
from surestep.problem.base import instance
from surestep.problem.datasets import PriorSet, SealedSplit, TrainSet, ValidationSet
from surestep.problem.instance_files import read_instances
from surestep.rollout.tiles import Work
from surestep.rules import ConjugateGradients, GradientDescent
from surestep.rules.base import with_hyper
from surestep.run.charges import read_charges
from surestep.run.fresh import certify_again, certify_rule
from surestep.run.instance_store import write_instances
from surestep.run.verify.fresh import verify_fresh
from surestep.run.verify.run import verify
from surestep.storage.arrays import write_arrays
from surestep.storage.checkpoint import Saving
from surestep.storage.records import from_plain, to_json
from surestep.storage.run_folder import RunFolder
from surestep.train.sample import Sampled


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    return small_run(tmp_path_factory.mktemp("verify") / "run")


@pytest.fixture
def run(original, tmp_path):
    shutil.copytree(original.path, tmp_path / "run")
    return RunFolder(tmp_path / "run")


COPIES = "files of facts and their copies"


def failed(run, rerun=0):
    return [check.name for check in verify(run, SMALL, EXPERIMENT, rerun) if not check.stands]


def edit(path, change):
    plain = json.loads(path.read_text())
    change(plain)
    path.write_text(json.dumps(plain))


def test_an_untouched_run_stands(run):
    assert failed(run, rerun=8) == []
    assert main(["verify", str(run.path), "--rerun", "5"]) == 0


def last_digit(value):
    return float(np.nextafter(value, 10.0))


@pytest.mark.parametrize("number", range(7))
def test_a_changed_digit_in_any_statement_is_found(run, number):
    def change(plain):
        statement = plain["statements"][number]
        statement["value"] = last_digit(statement["value"])

    edit(run.certificate_path, change)
    found = failed(run)
    assert found[0] == COPIES
    assert [name[:11] for name in found[1:]] == ["statement: ", "the solver'"]


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (lambda p: p["statements"].pop(0), "statement: missing the goal"),
        (lambda p: p["statements"][0].update(name="always right"), "statement: always right"),
        (lambda p: p["statements"][1]["details"]["above"][0].__setitem__(0, 0.0),
         "statement: losses over iterations"),
        (lambda p: p["statements"][0].update(sentence="With certainty, all is well."),
         "statement: missing the goal"),
        (lambda p: p.update(epsilon=0.01), "epsilon"),
        (lambda p: p.update(horizon=5), "the horizon"),
        (lambda p: p.update(solver_sha256="0" * 64), "the deployed rule's weights"),
        (lambda p: p.update(deployed_sample=1 - p["deployed_sample"]), "which sample is deployed"),
        (lambda p: p["data_sha256"].update(train="0" * 64), "the data sets"),
        (lambda p: p["ledger"][0].update(epsilon=0.5), "the ledger"),
    ],
)  # fmt: skip
def test_a_changed_certificate_is_found(run, change, name):
    edit(run.certificate_path, change)
    assert name in failed(run)


def reissue(run, plan_change):
    """Change the plan and issue a new, consistent certificate for it, as a forger would."""
    edit(run.plan_path, plan_change)
    plan = from_plain(Plan, json.loads(run.plan_path.read_text()))
    prior, found = run.load("sample", Sampled), run.load("certify", Certified)
    again = find_posterior(plan, prior, found.evidence)
    run.save("certify", again)
    rule = with_hyper(RULE, jnp.asarray(prior.hypers[again.deployed_sample]))
    drawn = SealedSplit.draw(PROBLEM, SMALL.sizes, SMALL.seed)
    train = drawn.train.open(SMALL.commitment(plan.sha256))
    issue(SMALL.name, plan, rule, again, prior, drawn, train).save(run.certificate_path)


@pytest.mark.parametrize(
    "change",
    [
        lambda p: next(c for c in p["claims"] if "largest" in c).update(largest=1.0),
        lambda p: p.update(train_size=6400),
        lambda p: p.update(horizon=1),
        lambda p: p.update(log_prior=[0.0, -800.0, -800.0]),
    ],
)
def test_a_plan_made_afterwards_is_found_even_if_all_else_fits(run, change):
    reissue(run, change)
    assert "the plan, and its budget" in failed(run)


def test_a_plan_that_spends_too_much_is_found(run):
    edit(run.plan_path, lambda p: p["shares"][0].update(epsilon=0.9))
    assert "the plan, and its budget" in failed(run)
    assert main(["verify", str(run.path)]) == 5


@pytest.mark.parametrize(
    "change",
    [lambda p: p.update(data_sha256={}, sizes={}), lambda p: p["data_sha256"].update(x="")],
)
def test_data_sets_left_out_or_invented_are_found(run, change):
    edit(run.certificate_path, change)
    assert "the data sets" in failed(run)


def with_evidence(found, **changes):
    return changed(found, evidence=changed(found.evidence, **changes))


def forge(run, **changes):
    """Rewrite the evidence, checksums included, and issue a certificate that fits it."""
    found = run.load("certify", Certified)
    run.save("certify", with_evidence(found, **changes))
    reissue(run, lambda plan: None)


def test_invented_losses_are_found_by_their_hash(run):
    found = run.load("certify", Certified)
    run.save("certify", with_evidence(found, losses=found.evidence.losses * 0.5))
    assert "the evidence (train losses)" in failed(run)


def test_invented_losses_are_found_by_rolling_out_again(run):
    losses = run.load("certify", Certified).evidence.losses.copy()
    losses[:, :, 1:] /= 7
    forge(run, losses=losses)
    assert [name for name in failed(run, rerun=64) if "rolled out again" in name]


def test_an_invented_opponent_is_found_by_rolling_out_again(run):
    theirs = run.load("certify", Certified).evidence.opponent_losses
    forge(run, opponent_losses=theirs * 1e3)
    assert [name for name in failed(run, rerun=64) if "rolled out again" in name]


def test_another_deployed_sample_is_found(run):
    found = run.load("certify", Certified)
    run.save("certify", changed(found, deployed_sample=(found.deployed_sample + 1) % 3))
    assert "posterior, deployed rule and the paper's bound" in failed(run)


@unchecked()
def test_evidence_of_another_shape_is_reported(run):
    found = run.load("certify", Certified)
    run.save("certify", with_evidence(found, losses=found.evidence.losses[:, :10]))
    with pytest.raises(RunFolderError, match=r"axis instance of .* places, elsewhere"):
        failed(run)
    fewer = {
        field.name: getattr(found.evidence, field.name).take(
            range(10), field.metadata["axes"].index(axis)
        )
        for field in dataclasses.fields(Evidence)
        for axis in field.metadata.get("axes", ())
        if axis == "instance"
    }
    assert len(fewer) >= 5
    run.save("certify", with_evidence(found, **fewer))
    assert "the evidence belongs to the plan" in failed(run)


def test_evidence_that_is_no_number_is_found(run):
    """It would be above no tolerance, which is what good losses are."""
    found = run.load("certify", Certified)
    losses = found.evidence.losses.copy()
    losses[(found.deployed_sample + 1) % 3, 0, 0] = np.nan
    run.save("certify", with_evidence(found, losses=losses))
    assert "the evidence belongs to the plan" in failed(run)


def test_the_hits_that_a_plan_observes_follow_from_its_claims(run):
    """They are no field of the file, so nobody can write others there."""
    edit(run.plan_path, lambda plan: plan.update(hit_tolerances=[1.0]))
    with pytest.raises(RunFolderError, match=r"plan\.hit_tolerances is not known"):
        failed(run)


def test_a_flipped_bit_is_found(run):
    path = run.path / "certify.safetensors"
    content = bytearray(path.read_bytes())
    content[-100] ^= 16
    path.write_bytes(content)
    with pytest.raises(RunFolderError, match="damaged"):
        failed(run)
    assert main(["verify", str(run.path)]) == 4


def again(run, train, epsilon=0.05):
    return certify_again(run, SMALL, EXPERIMENT, train, epsilon)


def test_fresh_instances_give_a_fresh_certificate(run):
    document, place = again(run, sealed(200, 123))
    assert Certificate.load(place / "certificate.json") == document
    assert document.sizes["train"] == 200
    assert document.epsilon == 0.05
    first = Certificate.load(run.certificate_path)
    # More instances, tighter statements about the same goal.
    assert document.statements[0].value < first.statements[0].value
    assert len(read_charges(run)) == 2


def given(size, seed):
    """Instances as a file holds them."""
    return TrainSet(train_set(size, seed).thetas)


def test_given_instances_are_charged_to_the_same_ledger(run):
    again(run, given(40, 9))
    document, _ = again(run, given(40, 9), epsilon=0.02)
    assert document.epsilon == pytest.approx(0.07)
    assert document.ledger[0].name == "earlier certificates"
    assert document.ledger[0].epsilon == pytest.approx(0.05)
    assert sum(share.epsilon for share in document.ledger) == pytest.approx(0.07)
    assert "With confidence 93%" in str(document)
    assert "were opened before" in str(document)
    assert "This is certificate 2 after the run's own: all 3 hold at once with confidence 88%." in (
        str(document)
    )
    assert "came from a file" in str(document)
    # Part of it is charged too, and so is a set that holds it.
    larger, _ = again(run, given(50, 9), epsilon=0.01)
    assert larger.epsilon == pytest.approx(0.08)
    with pytest.raises(ConfigurationError, match="nothing would be certain"):
        again(run, given(40, 9), epsilon=0.95)


def test_a_seed_draws_other_instances_for_every_certificate(run):
    documents = [again(run, sealed(20, 5))[0] for _ in range(2)]
    assert [document.epsilon for document in documents] == [0.05, 0.05]
    found: list[Any] = [(one.subject, one.standing) for one in documents]
    assert [subject.number for subject, _ in found] == [1, 2]
    assert [standing.joint_epsilon for _, standing in found] == pytest.approx([0.1, 0.15])
    first, second = (document.data_sha256["train"] for document in documents)
    assert first != second != train_set(20, 5).sha256


def test_a_certificate_of_another_sample_than_the_deployed_one_says_so(run):
    document, _ = again(run, sealed(20, 5))
    own = Certificate.load(run.certificate_path)
    assert document.standing is not None
    assert document.standing.deployed_sample == own.deployed_sample
    other = changed(document, deployed_sample=(own.deployed_sample + 1) % 3)
    for one, said in ((document, document.deployed_sample != own.deployed_sample), (other, True)):
        assert ("which the run has deployed" in str(one)) == said


def unsound(run, rerun=0):
    checks = verify_fresh(run, SMALL, EXPERIMENT, rerun)
    return [check.name for check in checks if not check.stands]


@pytest.fixture(scope="module")
def further(original, tmp_path_factory):
    """A run with two later certificates, the second on instances of the first."""
    place = tmp_path_factory.mktemp("further") / "run"
    shutil.copytree(original.path, place)
    again(RunFolder(place), given(20, 5))
    again(RunFolder(place), given(20, 5), epsilon=0.02)
    return RunFolder(place)


@pytest.fixture
def later(further, tmp_path):
    shutil.copytree(further.path, tmp_path / "later")
    return RunFolder(tmp_path / "later")


def test_later_certificates_are_verified_too(later, capsys):
    assert unsound(later, rerun=20) == []
    assert main(["verify", str(later.path)]) == 0
    shown = capsys.readouterr().out
    for number in (1, 2):
        assert f"stands  certificate {number}: its instances are fresh" in shown
        assert f"stands  certificate {number}: statement: missing the goal" in shown


def second(run, name):
    return run.path / "certificates" / "2" / name


def test_what_is_changed_in_a_later_certificate_is_found(later):
    edit(second(later, "certificate.json"), lambda p: p["statements"][0].update(value=0.0))
    assert unsound(later) == ["certificate 2: statement: missing the goal"]
    assert main(["verify", str(later.path)]) == 5


def test_a_later_certificate_that_hides_what_was_spent_is_found(later):
    """As a forger would: the first charge goes, and a certificate that fits is issued."""
    charges = read_charges(later)
    entry = changed(charges[2], instances=charges[2].instances)
    kept = later.kept(later.charges_path)
    kept.write(to_json({"charges": [charges[0], entry]}))
    found = unsound(later)
    assert "certificate 1" in found  # it is there, and nobody was charged for it
    assert "certificate 2: the plan, and its budget" in found


def test_other_instances_than_those_charged_are_found(later):
    train = given(20, 6)
    write_instances(later.path / "certificates" / "2", train)
    found = unsound(later)
    assert "certificate 2: its instances are those it was charged for" in found
    assert "certificate 2: the data sets" in found
    # Instances that trained the rule are found even if charged.
    used = TrainSet(instance(SPLIT.prior.thetas, slice(20)))
    write_instances(later.path / "certificates" / "1", used)
    assert "certificate 1: its instances are fresh" in unsound(later)


def test_instances_of_another_form_are_refused(later):
    place = later.path / "certificates" / "1"
    write_arrays(place / "instances.safetensors", {"theta": np.zeros((3, 2))}, {})
    with pytest.raises(RunFolderError, match="no instances of this problem"):
        unsound(later)


def test_a_certificate_that_was_begun_states_nothing(later):
    second(later, "certificate.json").unlink()
    assert unsound(later) == []


def test_instances_in_another_order_are_another_certificate(run, monkeypatch):
    def stopped(*_, **__):
        raise KeyboardInterrupt

    fresh = given(20, 5)
    with monkeypatch.context() as patch:
        patch.setattr("surestep.run.fresh.certify", stopped)
        with pytest.raises(KeyboardInterrupt):
            again(run, fresh)
    turned = TrainSet(jax.tree.map(lambda leaf: leaf[::-1], fresh.thetas))
    assert again(run, turned)[0].epsilon == pytest.approx(0.1)


@pytest.mark.parametrize("kind", [PriorSet, ValidationSet])
def test_what_chose_the_rule_cannot_certify_it(run, kind):
    used = TrainSet(kind.draw(PROBLEM, 10, SMALL.seed).thetas)
    with pytest.raises(ConfigurationError, match="cannot certify it"):
        again(run, used)


def test_instances_that_repeat_are_refused(run):
    few = train_set(3, 9).thetas
    often = TrainSet(few._replace(diagonal=jnp.tile(few.diagonal, (9, 1)),
                                  target=jnp.tile(few.target, (9, 1))))  # fmt: skip
    with pytest.raises(ConfigurationError, match="only 3 of the 27 instances are different"):
        again(run, often)


def test_an_interrupted_certificate_is_charged(run, monkeypatch):
    def stopped(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("surestep.run.fresh.certify", stopped)
    with pytest.raises(KeyboardInterrupt):
        again(run, sealed(20, 5))
    assert len(read_charges(run)) == 2


def test_an_interrupted_certificate_goes_on_and_is_charged_once(run, monkeypatch):
    alone, _ = again(run, given(20, 5))
    assert alone.epsilon == 0.05
    # The same on instances of their own: stopped after two of the three samples.
    other = given(20, 6)
    checked, seen = Work.checked, []

    def stopping(work, tile, found):
        if not isinstance(work.data, TrainSet):
            return checked(work, tile, found)  # the pilot's
        seen.append(tile)
        if len(seen) == 3:
            raise KeyboardInterrupt
        return checked(work, tile, found)

    monkeypatch.setattr(Work, "checked", stopping)
    monkeypatch.setattr(Saving, "is_due", lambda self: True)
    with pytest.raises(KeyboardInterrupt):
        again(run, other)
    seen.clear()
    finished, place = again(run, other)
    assert len(seen) == 2  # the sample that was left, and the opponent
    assert finished.epsilon == 0.05
    assert len(read_charges(run)) == 3
    assert not list(place.glob("*partial*"))
    # Now that it has been seen, the same instances cost again.
    seen.clear()
    seen.extend([None] * 3)
    assert again(run, other)[0].epsilon == pytest.approx(0.1)


class Clock:
    """It is always high time to save, however long the last time took."""

    now = 1.0

    def monotonic(self):
        self.now *= 100
        return self.now


def test_instances_from_a_file(run, tmp_path, capfd):
    fresh = train_set(40, 9).thetas
    path = tmp_path / "new.npz"
    np.savez(path, diagonal=fresh.diagonal, target=fresh.target)
    assert read_instances(PROBLEM, path).sha256 == TrainSet(fresh).sha256
    assert main(["certify", str(run.path), "--instances", str(path)]) == 0
    assert "from 40 train instances" in capfd.readouterr().out
    for arrays, message in [
        ({"diagonal": fresh.diagonal}, "must hold the arrays diagonal, target"),
        ({"diagonal": fresh.diagonal, "target": fresh.target[:, :3]}, "must have the shape"),
        ({"diagonal": fresh.diagonal, "target": fresh.target[:3]}, "equally many"),
        ({"diagonal": fresh.diagonal, "target": fresh.target * np.nan}, "not finite"),
    ]:
        np.savez(path, **arrays)
        with pytest.raises(ConfigurationError, match=message):
            read_instances(PROBLEM, path)
    path.write_text("no file of arrays")
    with pytest.raises(ConfigurationError, match="cannot be read"):
        read_instances(PROBLEM, path)


def test_a_classical_rule_by_the_same_path():
    document = certify_rule(
        "gradient descent",
        GradientDescent(1 / 500),
        TASK,
        changed(EXPERIMENT, baselines={"cg": ConjugateGradients(), "slow": GradientDescent(1e-7)}),
        SPLIT.prior,
        sealed(SPLIT.train.size, 0),
        changed(CONFIG.certify, opponents=("cg", "slow")),
    )
    assert all(statement.rigorous for statement in document.statements)
    assert document.opened is not None
    train = sealed(SPLIT.train.size, 0).open(document.opened.commitment)
    assert document.data_sha256["train"] == train.sha256
    assert document.opened.commitment.plan == document.plan_sha256
    misses = int(
        np.sum(TASK.losses(GradientDescent(1 / 500), train)[:, 0] > TASK.thresholds(train))
    )
    # No posterior: plain Clopper-Pearson at the claim's share.
    missing = next(s for s in document.statements if s.name == "missing the goal")
    assert misses == 0
    expected = 1 - missing.epsilon ** (1 / SPLIT.train.size)
    assert missing.value == pytest.approx(expected, rel=1e-9)
    assert any(s.name == "advantage over slow" for s in document.statements)
    # Conjugate gradients end more than three powers of ten lower: nothing is to be said.
    assert all(s.name != "advantage over cg" for s in document.statements)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["certify", "quadratics", "--rule", "heavy bal"], "did you mean 'heavy ball'"),
        (["certify", "quadratics"], "say what to certify"),
        (["certify", "nowhere", "--instances", "3"], "holds no run"),
        (["certify", "quadratics", "--rule", "heavy ball", "--size", "-3"], "negative"),
        (["plan", "--failure", "2"], "cannot be certified"),
        (["plan", "--failure", "0.01", "--confidence", "1"], "confidence"),
        (["plan", "--failure", "0.01", "--samples", "-1"], "at least one sample"),
        (["plan", "--failure", "0.01", "--share", "2"], "share of epsilon"),
        (["audit", "--repeats", "0"], "at least 1"),
        (["audit", "--seed", "-1"], "not negative"),
        (["verify", "nowhere", "--rerun", "-3"], "--rerun must not be negative"),
        (["verify", "nowhere"], "holds no run"),
        (["monitor", "state.json"], "say which failure probability"),
    ],
)
def test_bad_input_is_refused(arguments, message, capfd, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(arguments) in (2, 4)
    assert message in capfd.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_plan_audit_and_monitor_from_the_command_line(capfd, tmp_path, monkeypatch):
    seventh = ["--failure", "0.01", "--samples", "100", "--share", str(1 / 7)]
    assert main(["plan", *seventh, "--curve", str(tmp_path)]) == 0
    assert "503 train instances certify" in capfd.readouterr().out
    assert (tmp_path / "plan.png").exists()
    assert main(["audit", "--repeats", "20"]) == 0
    assert "no statement is false more often" in capfd.readouterr().out
    state = str(tmp_path / "state.json")
    for outcomes, code in (("0\n0\n1\n", 0), ("1 " * 30, 5)):
        monkeypatch.setattr("sys.stdin", io_of(outcomes))
        assert main(["monitor", state, "--failure", "0.05"]) == code
    assert "31 failures in 33 outcomes" in capfd.readouterr().out
    monkeypatch.setattr("sys.stdin", io_of("0"))
    assert main(["monitor", state, "--failure", "0.2"]) == 2
    (tmp_path / "state.json").write_text("{")
    assert main(["monitor", state]) == 4
    assert main(["certify", "nowhere", "--instances", "99999999999999999999"]) in (2, 4)


def io_of(text):
    import io  # noqa: PLC0415

    return io.StringIO(text)


def test_a_later_certificate_whose_instances_are_gone_does_not_stand(later):
    second(later, "instances.safetensors").unlink()
    assert unsound(later) == ["certificate 2: its instances are kept"]


def test_a_later_certificate_needs_the_charge_of_the_runs_own(later):
    own, *others = read_charges(later)
    kept = later.kept(later.charges_path)
    for first in ([], [changed(own, epsilon=own.epsilon / 2)], [changed(own, instances=["0"])]):
        kept.write(to_json({"charges": [*first, *others]}))
        assert "the run's own certificate was charged first" in unsound(later)


def test_stored_instances_are_compared_before_they_are_taken(later):
    write_instances(later.path / "certificates" / "2", given(21, 5))
    with pytest.raises(RunFolderError, match="other instances than it should"):
        unsound(later)
