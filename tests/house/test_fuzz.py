"""Loaders refuse what is almost right; `make fuzz` does the same a million times."""

import os
from pathlib import Path

import pytest

from house.fuzz import Outcome, attempt, fuzz
from house.fuzz_targets import Target
from surestep.base.errors import RunFolderError


def test_every_loader_refuses_or_reads_what_is_almost_right(tmp_path):
    outcomes = fuzz(2000, seed=0, keep=tmp_path)
    assert len(outcomes) == 18
    assert [crash for outcome in outcomes.values() for crash in outcome.crashes] == []
    # Both happen, so the inputs are neither all right nor all hopeless.
    for name, outcome in outcomes.items():
        assert outcome.accepted and outcome.reasons, name


def target(load):
    return Target("x", "bytes", [b"{}"], load, 1.0)


@pytest.mark.parametrize(
    ("load", "what"),
    [
        (lambda folder: 1 / 0, "ZeroDivisionError"),
        (lambda folder: Path("/nowhere/at/all").mkdir(), "os.mkdir"),
        (lambda folder: Path("/dev/null").write_text(""), "/dev/null"),
        (lambda folder: os.system("true"), "os.system"),
    ],
)
def test_a_loader_that_misbehaves_is_found(load, what, tmp_path):
    assert what in attempt(target(load), b"{}", tmp_path, Outcome())


def test_a_loader_that_behaves_is_not(tmp_path):
    def refuse(folder):
        raise RunFolderError("no")

    for load in (refuse, lambda folder: (folder / "y").write_text("")):
        assert attempt(target(load), b"{}", tmp_path, Outcome()) == ""
