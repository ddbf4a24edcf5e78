"""The break-even count, on times that were made up."""

import dataclasses
import math
from typing import Any

import numpy as np
import pytest

from support.types import unchecked
from surestep.evaluate.break_even import break_even, training_seconds
from surestep.evaluate.evaluated import Evaluated
from surestep.report.race_table import speed
from surestep.rollout.loop import Status


def evaluated(seconds, missed=None, external=None):
    """Solvers with constant times on four instances and one accuracy."""
    seconds = np.asarray(seconds, float)
    missed = missed or [0] * len(seconds)
    status = [[[Status.LIMIT] * m + [Status.REACHED] * (4 - m)] for m in missed]
    outside = np.asarray([external] if external else [], float).reshape(-1, 1, 1)
    values: dict[str, Any] = {f.name: None for f in dataclasses.fields(Evaluated)} | {
        "seconds": seconds[:, None, None] * np.ones((1, 1, 4)),
        "reach_status": np.array(status),
        "solvers": ["learned", "a", "b"][: len(seconds)],
        "external": ["other"] * len(outside),
        "external_seconds": outside * np.ones((1, 1, 4)),
        "external_losses": np.zeros((len(outside), 1, 4)),
        "references": np.zeros(4),
        "targets": np.full((1, 4), 0.1),
        "accuracies": [0.1],
    }
    with unchecked():  # what is not looked at is not there
        return Evaluated(**values)


def test_training_is_divided_by_what_a_solve_saves_beside_the_fastest():
    (found,) = break_even(evaluated([0.5, 3.0, 1.5]), 100.0)
    assert (found.opponent, found.saved, found.solves) == ("b", 1.0, 100.0)
    assert (found.learned_seconds, found.opponent_seconds) == (0.5, 1.5)


def test_nothing_saved_is_never_paid_for():
    for times in ([2.0, 1.0, 3.0], [1.0, 1.0, 1.0]):
        (found,) = break_even(evaluated(times), 100.0)
        assert found.solves == math.inf


def test_solvers_of_other_libraries_count_too():
    (found,) = break_even(evaluated([0.5, 3.0, 1.5], external=0.75), 100.0)
    assert (found.opponent, found.solves) == ("other", 400.0)


def test_a_solver_that_misses_more_is_not_the_fastest():
    (found,) = break_even(evaluated([1.0, 0.1, 3.0], missed=[0, 2, 0]), 100.0)
    assert (found.opponent, found.solves) == ("b", 50.0)


def test_a_learned_rule_that_misses_more_is_never_worth_it():
    (found,) = break_even(evaluated([0.1, 1.0, 3.0], missed=[3, 1, 2]), 100.0)
    assert (found.opponent, found.missed, found.solves) == ("a", 2, math.inf)
    (found,) = break_even(evaluated([0.1, 1.1, 3.0], missed=[1, 1, 2]), 100.0)
    assert found.solves == pytest.approx(100.0)


def test_without_another_solver_there_is_nothing_to_compare_with():
    (found,) = break_even(evaluated([0.1]), 100.0)
    assert found.opponent == "" and found.solves == math.inf


def test_training_is_what_its_stages_took():
    status = {
        "imitate": {"state": "done", "seconds": 1.5},
        "population": {"state": "done", "seconds": 20.0},
        "locate": {"state": "done"},
        "sample": {"state": "done", "seconds": 4.0},
        "certify": {"state": "done", "seconds": 1000.0},
        "inputs": {"prior": "x"},
    }
    assert training_seconds(status) == 25.5
    assert training_seconds({}) == 0.0


def test_the_page_says_how_fast_the_chosen_rule_is():
    """Beside the fastest of those who miss least, alone and in a batch."""
    found = evaluated([0.5, 3.0, 1.5])
    with unchecked():
        found = dataclasses.replace(
            found, seconds_batch=np.array([[0.1], [9.0], [3.0]]), relative=False
        )
        words = "the speed of b, the fastest opponent, to 0.1, one at a time; 30 \u00d7 in a batch"
        assert speed(found) == ("3 \u00d7", words)
        outside = dataclasses.replace(
            found, external=["other"], external_seconds=np.full((1, 1, 4), 0.25),
            external_losses=np.zeros((1, 1, 4)),
        )  # fmt: skip
        assert speed(outside) == ("0.5 \u00d7", "the speed of other, the fastest opponent, to 0.1")
        alone = dataclasses.replace(
            found, solvers=["learned"], seconds=found.seconds[:1], external=[]
        )
        assert speed(alone) is None
