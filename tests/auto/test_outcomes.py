"""`ss.certify`: plan, outcomes, certificate, verification and page, in Python and as commands."""

import dataclasses
import html
import json
import re

import numpy as np
import pytest

import surestep as ss
from surestep.certify.certificate import Certificate
from surestep.cli.main import main
from surestep.run.outcomes import OutcomeFolder
from surestep.run.verify.outcomes import verify_outcomes
from surestep.storage.arrays import read_arrays, write_arrays

STEPS = 20
HOSTILE = "\"'><script>steal()</script>{{ 7*7 }}"


def solved(seed, number, rate=4.0):
    """Outcomes of a solver, and of one that is slower."""
    random = np.random.default_rng(seed)

    def losses(rate):
        pace = rate * random.uniform(0.5, 1.5, (number, 1))
        return 10.0 ** (2 - pace * np.arange(STEPS + 1) / STEPS)

    return {
        "losses": losses(rate),
        "minima": np.zeros(number),
        "thresholds": np.ones(number),
        "opponent_FISTA": losses(rate - 1),
    }


PILOT, OUTCOMES = solved(0, 200), solved(1, 600)
BELOW = PILOT | {"losses": -PILOT["losses"], "minima": np.full(200, -1e9)}


@pytest.fixture
def folder(tmp_path):
    ss.certify(OUTCOMES, pilot=PILOT, out=tmp_path / "osqp", solver="OSQP", problem="portfolios")
    return OutcomeFolder(tmp_path / "osqp")


def failed(folder):
    return [check.name for check in verify_outcomes(folder) if not check.stands]


def test_with_a_folder_or_without_the_certificate_is_the_same(folder):
    alone = ss.certify(OUTCOMES, pilot=PILOT, solver="OSQP", problem="portfolios")
    assert alone == folder.certificate()
    names = {statement.name for statement in alone.statements}
    assert names >= {"iterations until", "missing the goal", "losses over iterations",
                     "sooner than FISTA"}  # fmt: skip
    assert failed(folder) == []


def test_a_plan_that_was_made_before_gives_the_same_certificate(folder, tmp_path):
    place = tmp_path / "before"
    sha256 = ss.plan_certificate(place, 600, pilot=PILOT, solver="OSQP", problem="portfolios")
    assert failed(OutcomeFolder(place)) == []
    document = ss.certify(OUTCOMES, out=place)
    assert document == folder.certificate()
    assert document.plan_sha256 == sha256


def test_a_plan_serves_once(folder):
    again = ss.certify(OUTCOMES, out=folder.path)
    assert again == folder.certificate()
    with pytest.raises(ss.errors.RunFolderError, match="epsilon was spent on those"):
        ss.certify(solved(2, 600), out=folder.path)
    with pytest.raises(ss.errors.RunFolderError, match="holds another plan"):
        ss.certify(OUTCOMES, pilot=PILOT, out=folder.path, epsilon=0.1)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({}, "say what to claim"),
        ({"pilot": PILOT, "claims": ["goal"]}, "not both"),
        ({"pilot": OUTCOMES}, "cannot show them"),
        ({"claims": "goal"}, "claims are a list"),
        ({"pilot": PILOT, "epsilon": 1.5}, "epsilon must lie strictly"),
        ({"pilot": PILOT, "accuracies": [np.inf]}, "finite numbers"),
        ({"pilot": BELOW}, "the pilot's losses are negative"),
    ],
)  # fmt: skip
def test_what_does_not_go_together_is_refused(settings, words, tmp_path):
    with pytest.raises(ss.errors.ConfigurationError, match=words):
        ss.certify(OUTCOMES, **settings, out=tmp_path / "out")


def test_a_folder_of_something_else_is_left_as_it_is(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ss.errors.RunFolderError, match="no empty folder"):
        ss.certify(OUTCOMES, pilot=PILOT, out=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def edited(path, change):
    plain = json.loads(path.read_text())
    change(plain)
    path.write_text(json.dumps(plain, indent=2, sort_keys=True) + "\n")


def changed(path, name, change):
    arrays, metadata = read_arrays(path)
    array = arrays[name].copy()
    change(array)
    write_arrays(path, arrays | {name: array}, metadata)


def _lower(plain):
    plain["statements"][1]["value"] = 0.001


def _fewer(plain):
    plain["statements"].pop()


def _more(plain):
    plain["sizes"]["train"] = 700


def _richer(plain):
    plain["terms"]["shares"][0]["epsilon"] *= 2


def _other_clip(plain):
    [claim] = [c for c in plain["terms"]["claims"] if c["kind"] == "clipped"]
    claim["largest"] *= 0.5


def _improved(array):
    array[3] /= 10


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (lambda f: edited(f.certificate_path, _lower), "statement: missing the goal"),
        (lambda f: edited(f.certificate_path, _fewer), "the statements"),
        (lambda f: edited(f.certificate_path, _more), "sizes"),
        (lambda f: edited(f.plan_path, _richer), "the plan, and its budget"),
        (lambda f: edited(f.plan_path, _other_clip), "the plan, and its budget"),
        (lambda f: changed(f.outcomes_path, "losses", _improved), "data sha256"),
        (lambda f: changed(f.pilot_path, "losses", _improved), "the plan, and its budget"),
        (lambda f: f.pilot_path.unlink(), "the plan, and its budget"),
    ],
)
def test_what_was_changed_afterwards_is_found(folder, change, found):
    change(folder)
    assert found in failed(folder)


def test_the_page_says_everything_that_the_certificate_says(folder):
    page = folder.report_path.read_text()
    shown = " ".join(html.unescape(re.sub(r"<[^>]*>", " ", page)).split())
    document = folder.certificate()
    for statement in document.statements:
        assert statement.plain in shown
    for text in document.assumptions:
        assert text[1:] in shown
    assert document.plan_sha256 in shown
    failure = next(s for s in document.statements if s.name == "missing the goal").value
    [command] = re.findall(r"surestep monitor state.json --failure (\S+)", shown)
    assert failure <= float(command) < 1.01 * failure
    assert page.count("<figure>") == 2


def test_nothing_that_a_stranger_wrote_becomes_markup(tmp_path):
    given = dict(PILOT)
    given["opponent_" + HOSTILE] = given.pop("opponent_FISTA")
    other = dict(OUTCOMES)
    other["opponent_" + HOSTILE] = other.pop("opponent_FISTA")
    ss.certify(other, pilot=given, out=tmp_path / "x", solver=HOSTILE, problem=HOSTILE)
    page = (tmp_path / "x" / "report.html").read_text()
    assert page.count("<script") == 1
    assert page.count(html.escape("<script>steal()")) > 5


def test_hits_need_neither_pilot_nor_claims(tmp_path):
    hits = np.random.default_rng(0).random(400) < 0.99
    document = ss.certify(hits, out=tmp_path / "hits", solver="Gurobi")
    assert failed(OutcomeFolder(tmp_path / "hits")) == []
    assert "hit with probability at least 9" in str(document)
    assert "surestep monitor" in (tmp_path / "hits" / "report.html").read_text()


def test_a_pilot_of_hits_may_look_like_the_outcomes():
    solved = np.arange(6) >= 2
    hits = {"hits": np.tile(solved, (300, 1))}
    document = ss.certify(hits, pilot=hits | {"hits": hits["hits"][:50]})
    assert not any("very losses" in text for text in document.assumptions)
    assert document.statements[0].value == 2


def test_as_commands(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    np.savez("pilot.npz", **PILOT)
    np.savez("osqp.npz", **OUTCOMES)
    assert main(["certify", "osqp.npz", "--pilot", "pilot.npz", "--solver", "OSQP"]) == 0
    shown = capsys.readouterr().out
    assert "Certificate for OSQP on osqp, from 600 instances." in shown
    assert "runs/osqp/report.html" in shown
    assert main(["verify", "runs/osqp"]) == 0
    assert re.search(r"all \d+ checks stand", capsys.readouterr().out)
    page = (tmp_path / "runs/osqp/report.html").read_bytes()
    (tmp_path / "runs/osqp/report.html").unlink()
    assert main(["report", "runs/osqp"]) == 0
    assert (tmp_path / "runs/osqp/report.html").read_bytes() == page
    (tmp_path / "runs/osqp/report.html").write_bytes(page.replace(b"At least 95%", b"At least 99%"))
    capsys.readouterr()
    assert main(["verify", "runs/osqp"]) == 5
    assert "FAILS   the report: is not what the folder gives" in capsys.readouterr().out
    edited(tmp_path / "runs/osqp/certificate.json", _lower)
    assert main(["verify", "runs/osqp"]) == 5
    assert "FAILS   statement: missing the goal" in capsys.readouterr().out
    assert main(["verify", "runs/osqp", "--rerun", "3"]) == 2


def test_a_plan_ahead_as_commands(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    rows = [f"{i},{k},{OUTCOMES['losses'][i, k]}" for i in range(50) for k in (0, 10, 20)]
    (tmp_path / "mine.csv").write_text("\n".join(["instance,iteration,loss", *rows]) + "\n")
    claims = ["--claims", "loss 10 in 20 iterations: 0.9", "loss 1 in 20 iterations"]
    assert main(["certify", "runs/mine", *claims]) == 2
    assert main(["certify", "runs/mine", "--size", "50", *claims]) == 0
    sha256 = re.findall(r"sha256: (\w+)", capsys.readouterr().out)
    assert main(["report", "runs/mine"]) == 2
    assert main(["verify", "runs/mine"]) == 0
    assert main(["certify", "mine.csv", "--out", "runs/mine"]) == 0
    document = Certificate.load(tmp_path / "runs/mine/certificate.json")
    assert [document.plan_sha256] == sha256
    assert "(90% was asked for, and is shown)" in document.statements[0].sentence
    assert main(["verify", "runs/mine"]) == 0
    assert main(["certify", "mine.csv", "--until", "goal: 0.9"]) == 2


def test_what_is_printed_of_a_certificate_is_what_it_holds(folder):
    document = dataclasses.replace(folder.certificate(), sizes={"train": 600})
    assert str(document).startswith("Certificate for OSQP on portfolios, from 600 instances.")
