"""Tables of kinds of instances and of predictions: the statements' numbers, and none without."""

import dataclasses

import numpy as np

from surestep.certify.audit import honest, scalar_quadratics
from surestep.certify.certificate import SCHEMA, Certificate
from surestep.certify.claims import Foretold, InStratum
from surestep.report.strata import predictions_table, strata_table

FAMILY = dataclasses.replace(scalar_quadratics(), betting=False)
PLAN = FAMILY.plan(200, 0.2)
STATEMENTS, _, _ = honest(FAMILY, PLAN, FAMILY.draw(np.random.default_rng(3), 200))
CERTIFICATE = Certificate(
    SCHEMA, "family", 10, 0.2, [], 0, "", "", "", {}, {"train": 200}, STATEMENTS
)
BARE = dataclasses.replace(CERTIFICATE, statements=STATEMENTS[:3])


def stated(kind):
    names = [claim.name for claim in PLAN.claims if isinstance(claim, kind)]
    return [s for s in STATEMENTS if s.name in names]


def test_every_kind_of_instance_has_a_row():
    table = strata_table(CERTIFICATE)
    assert table is not None and len(table.rows) == len(stated(InStratum)) == 4
    for row, statement in zip(table.rows, stated(InStratum), strict=True):
        details = statement.details
        # In the audit's families a kind's words are its name.
        assert row[0].text == details["stratum"] == statement.name
        assert int(row[1].text) == details["train_instances"]
        reached = float(row[2].text.removeprefix("at least ").rstrip("%")) / 100
        assert 0 <= (1 - statement.value) - reached < 1e-3
        for cell, needed in zip(row[3:], details["iterations"].values(), strict=True):
            assert cell.text == ("none" if needed is None else f"{needed:.0f}")
    assert strata_table(BARE) is None


def test_factors_of_predictions_are_rounded_up():
    table = predictions_table(CERTIFICATE)
    assert table is not None
    [statement] = stated(Foretold)
    assert [row[0].text for row in table.rows] == ["50%", "80%", "90%"]
    for row, factor in zip(table.rows, statement.details["factors"].values(), strict=True):
        assert (row[1].text == "none") == (factor is None)
        assert factor is None or factor <= float(row[1].text) <= factor * 1.002
    assert predictions_table(BARE) is None
