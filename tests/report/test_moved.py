"""The table of how far the distribution may move."""

import dataclasses

import pytest

from support import outcome
from surestep.certify.certificate import SHIFT
from surestep.report.moved import moved_table, moved_words

CERTIFICATE = outcome.outcome().certificate


def test_every_probability_has_a_row_with_the_radii_of_its_statement():
    table = moved_table(CERTIFICATE)
    assert table is not None
    told = {s.name: s.details[SHIFT] for s in CERTIFICATE.statements if SHIFT in s.details}
    assert {"iterations until", "missing the goal", "sooner than heavy ball"} <= set(told)
    assert [row[0].text for row in table.rows] == list(told)
    for row in table.rows:
        within = told[row[0].text]["within"]
        certified, allowed, other = (
            float(row[i].text.removeprefix("up to ").rstrip("%")) / 100 for i in (1, 2, 3)
        )
        # Rounded down, each by little: what is printed holds.
        assert certified <= 1 - told[row[0].text]["failing"] + 1e-9
        assert allowed == pytest.approx(1 - told[row[0].text]["allowed"], abs=1e-3)
        assert other == pytest.approx(within["total variation"], rel=1e-2)
        assert float(row[4].text.split()[0]) == pytest.approx(within["density ratio"], rel=1e-2)
        assert float(row[5].text) == pytest.approx(within["relative entropy"], rel=1e-2)


def test_a_certificate_that_tells_nothing_of_other_laws_has_no_table():
    bare = [dataclasses.replace(s, details={}) for s in CERTIFICATE.statements]
    assert moved_table(dataclasses.replace(CERTIFICATE, statements=bare)) is None


def test_a_sentence_says_it_of_the_headline():
    words = moved_words(CERTIFICATE)
    assert words.startswith("Of 'iterations until': if new instances come from another")
    assert "total variation" in words and "density ratio" in words and "relative entropy" in words


def test_the_certificate_in_words_says_how_far_its_headline_may_move():
    text = str(CERTIFICATE)
    assert text.count("if new instances come from another distribution") == 1
    assert text.index("iterations until': if new") < text.index("Assumptions:")
