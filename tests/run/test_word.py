"""A verifier's word: given after the plan's hash, it decides about the train set, and only then."""

import re

import pytest

from support.tiny import EXPERIMENT, SMALL, changed
from surestep.base.errors import ConfigurationError, RunFolderError
from surestep.certify.certificate import Certificate
from surestep.cli.main import main
from surestep.paper import read_config
from surestep.run.pipeline import learn, plan_only
from surestep.run.verify.run import verify
from surestep.run.word import give_word
from surestep.storage.run_folder import RunFolder


@pytest.fixture
def planned(tmp_path):
    folder = RunFolder(tmp_path / "run")
    return folder, plan_only(SMALL, EXPERIMENT, folder)


def test_a_run_that_stops_at_its_plan_has_not_opened_the_train_set(planned):
    folder, commitment = planned
    assert folder.plan_path.exists() and not folder.charges_path.exists()
    assert "train" not in folder.status()["inputs"]
    assert not folder.has("certify")
    config = give_word(folder, SMALL, "4 1 6 2")
    assert read_config(folder) == config == changed(SMALL, word="4 1 6 2")
    with pytest.raises(RunFolderError, match="given the word '4 1 6 2' already"):
        give_word(folder, config, "another")
    learned = learn(config, EXPERIMENT, folder)
    document = Certificate.load(folder.certificate_path)
    assert document == learned.certificate and document.opened is not None
    # The verifier knows the hash again.
    assert document.opened.commitment.told == commitment.sha256
    assert document.opened.commitment.word == "4 1 6 2"
    assert f"after being told the hash {commitment.sha256}, no other plan" in str(document)
    assert all(check.stands for check in verify(folder, config, EXPERIMENT, 2))
    for too_late in (lambda: give_word(folder, SMALL, "7"),
                     lambda: plan_only(config, EXPERIMENT, folder)):  # fmt: skip
        with pytest.raises(RunFolderError, match="was opened already"):
            too_late()


def test_a_word_before_the_plan_is_refused_and_so_is_none(tmp_path, planned):
    with pytest.raises(RunFolderError, match="has no plan yet"):
        give_word(RunFolder(tmp_path / "nothing"), SMALL, "early")
    with pytest.raises(ConfigurationError, match="at least one character"):
        give_word(planned[0], SMALL, "")
    with pytest.raises(ConfigurationError, match="in one line"):
        changed(SMALL, word="two\nlines").validate()


def test_the_commands_tell_the_hash_and_take_the_word(planned, capfd, monkeypatch):
    folder, commitment = planned
    assert main(["resume", str(folder.path), "--until", "plan"]) == 0
    said = capfd.readouterr().out
    assert commitment.sha256 in said and "--word WORD" in said
    assert main(["resume", str(folder.path), "--word", "x" * 101]) == 2
    seen = []
    monkeypatch.setattr(
        "surestep.cli.resume.learn_and_report", lambda config, *_: seen.append(config.word)
    )
    assert main(["resume", str(folder.path), "--word", "so be it"]) == 0
    assert seen == ["so be it"]


def test_without_a_word_the_certificate_says_what_cannot_be_found(tmp_path):
    folder = RunFolder(tmp_path / "run")
    learned = learn(SMALL, EXPERIMENT, folder)
    text = str(learned.certificate)
    assert re.search("No verifier has given a word: .* cannot be found", text)
