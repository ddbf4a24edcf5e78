"""`surestep plan`: shares from plans, the confidence that was asked for, and a power."""

import dataclasses
import json
import re

import pytest

from surestep.bounds.budget import Share
from surestep.bounds.sizes import needed_size
from surestep.certify import CertifySettings, usual_plan
from surestep.certify.claims import EARLIER, GoalMissed, LossLevels, Within
from surestep.cli.main import main
from surestep.storage.records import to_json
from surestep.storage.run_folder import RunFolder


def sizes(text):
    """The sizes that sentences begin with."""
    return [int(found) for found in re.findall(r"^(\d+) train instances", text, re.MULTILINE)]


def test_shares_are_those_of_a_plan_with_all_claims(capsys):
    plan = usual_plan(CertifySettings(epsilon=0.1), 50)
    kinds = {type(claim) for claim in plan.claims}
    assert {GoalMissed, Within, LossLevels} < kinds and len(plan.claims) >= 8
    assert sum(share.epsilon for share in plan.shares) == pytest.approx(0.1)
    assert main(["plan", "--failure", "0.02", "--confidence", "0.9", "--samples", "50"]) == 0
    text = capsys.readouterr().out
    goal = plan.ledger.of("missing the goal")
    assert sizes(text) == [needed_size(0.02, goal, 0.902), needed_size(0.02, goal, 0.02)]
    assert text.count("confidence 0.9 ") + text.count("confidence 0.9\n") >= 2
    within = next(claim for claim in plan.claims if isinstance(claim, Within))
    spent = within.headline_part * plan.ledger.of(within.name)
    least = needed_size(0.02, spent, 0.902)
    enough = needed_size(0.02, spent, 0.902, observed=0.004)
    assert f"from {least} train instances on. From {enough} on" in text
    assert "98% of new instances" in text and "99.6% of instances take" in text


def test_a_runs_folder_says_its_shares_weights_and_confidence(tmp_path, capsys):
    weights = (("goal", 4.0), ("within", 1.0))
    plan = usual_plan(CertifySettings(epsilon=0.02, stake=0.5, weights=weights), 4)
    # Charged before, which these statements do not spend.
    charged = dataclasses.replace(plan, epsilon=0.05, shares=(Share(EARLIER, 0.03), *plan.shares))
    folder = RunFolder(tmp_path / "run")
    folder.path.mkdir()
    folder.kept(folder.plan_path).write(to_json(charged))
    asked = ["plan", str(folder.path), "--failure", "0.05", "--observed", "0.01", "--power", "0.8"]
    assert main(asked) == 0
    text = capsys.readouterr().out
    goal = plan.ledger.of("missing the goal")
    assert goal > usual_plan(CertifySettings(epsilon=0.02), 4).ledger.of("missing the goal")
    assert sizes(text) == [needed_size(0.05, goal, w, 0.01, 0.8) for w in (0.625, 0.125)]
    assert "confidence 0.98 and a power of at least 0.8" in text
    assert main([*asked, "--samples", "9"]) == 2
    assert "--samples is what the run in" in capsys.readouterr().err
    assert main(["plan", str(tmp_path), "--failure", "0.05"]) == 4
    assert "holds no plan" in capsys.readouterr().err


def test_a_share_can_be_asked_for_and_the_figure_names_the_confidence(tmp_path, capsys):
    words = ["--share", "1", "--curve", str(tmp_path), "--confidence", "0.9"]
    assert main(["plan", "--failure", "0.1", *words]) == 0
    assert sizes(capsys.readouterr().out)[0] == needed_size(0.1, 0.1, 0.901)
    figure = json.loads((tmp_path / "plan.json").read_text())
    assert figure["title"] == "Certificates with confidence 0.9"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--share 2", "share of epsilon"),
        ("--power 1", "a power must lie strictly between 0 and 1"),
        ("--confidence 1", "confidence must lie strictly"),
        ("--samples -1", "at least one sample"),
        ("--quantile 0.5", "the quantile must lie between"),
        ("--observed 0.2", "it must lie above the observed rate"),
    ],
)
def test_what_cannot_be_planned_is_refused(words, message, capsys):
    assert main(["plan", "--failure", "0.1", *words.split()]) == 2
    assert message in capsys.readouterr().err
