"""Tables of evaluations: every number is where its names say."""

import csv
import dataclasses
import sys
from typing import Any

import numpy as np
import pandas as pd
import pytest

from support import tiny
from support.types import unchecked
from surestep.base.errors import ConfigurationError
from surestep.certify.certificate import Certificate
from surestep.cli.main import main
from surestep.evaluate.evaluated import Evaluated
from surestep.report.tables import frame, table, timings, trajectories, write_parquet
from surestep.rollout.loop import Status
from surestep.run.learned import Learned
from surestep.storage.files import write_text
from surestep.storage.records import to_json
from surestep.storage.run_folder import RunFolder

SOLVERS, INSTANCES, ITERATIONS, TIMED = 3, 4, 5, 2
REACHED, LIMIT = Status.REACHED, Status.LIMIT


def evaluated() -> Evaluated:
    """An evaluation whose numbers all differ; three timed rows are decided by hand."""
    random = np.random.default_rng(0)
    shape = (SOLVERS, INSTANCES, ITERATIONS)
    timed = (SOLVERS, 2, TIMED)
    iterations = np.full(timed, 99)
    status = np.full(timed, LIMIT)
    # Solver 1, instance 0: both accuracies end at iteration 3. Instance 1: one of them, later
    # than what is shown. Solver 2, instance 1: a limit is no end, though the number would fit.
    iterations[1, :, 0], status[1, :, 0] = 3, REACHED
    iterations[1, 0, 1], status[1, 0, 1] = 7, REACHED
    iterations[2, 0, 1], status[2, 0, 1] = 2, LIMIT
    losses = random.uniform(1, 2, shape)
    losses[2, 3, 4] = np.inf
    references = random.uniform(0, 1, INSTANCES)
    return Evaluated(
        losses=losses,
        gradients=np.cumsum(random.integers(1, 5, shape), axis=2),
        measures=random.uniform(size=(SOLVERS, 2, INSTANCES, ITERATIONS)),
        thresholds=random.uniform(size=INSTANCES),
        starts=losses[0, :, 0],
        references=references,
        targets=references + np.array([[0.5], [0.1]]),
        reach_iterations=iterations,
        reach_gradients=10 * iterations,
        reach_status=status,
        seconds=random.uniform(size=timed),
        seconds_batch=random.uniform(size=timed[:2]),
        solvers=["learned", "heavy ball", "Nesterov"],
        accuracies=[0.5, 0.1],
        above="the minimum",
        relative=False,
        measured=["errors", "zeros"],
        success=tiny.TASK.constraint.assess(3, INSTANCES),
        external_losses=random.uniform(0, 2, (1, 2, TIMED)),
        external_seconds=random.uniform(size=(1, 2, TIMED)),
        external=["coordinate descent"],
    )


FOUND = evaluated()


@pytest.fixture
def run(tmp_path):
    folder = RunFolder(tmp_path / "run")
    write_text(folder.config_path, to_json(tiny.CONFIG))
    folder.save("evaluate", FOUND)
    return folder


def test_a_data_set_has_names_for_everything():
    data = trajectories(FOUND)
    assert dict(data.sizes) == {
        "solver": SOLVERS, "instance": INSTANCES, "iteration": ITERATIONS, "measure": 2,
        "accuracy": 2,
    }  # fmt: skip
    one = data.sel(solver="heavy ball", instance=2, iteration=3)
    assert one.losses == FOUND.losses[1, 2, 3]
    assert one.gradients == FOUND.gradients[1, 2, 3]
    assert one.measures.sel(measure="zeros") == FOUND.measures[1, 1, 2, 3]
    assert one.targets.sel(accuracy=0.1) == FOUND.targets[1, 2]
    assert data.references.attrs["long_name"] == "the minimum"
    assert data.gradients.attrs["units"] == "evaluations"
    # As files want it: attributes that can be written, and the arrays as the run keeps them.
    np.testing.assert_array_equal(data.losses, FOUND.losses)


def test_a_tidy_frame_has_a_row_for_every_point():
    rows = frame(FOUND)
    assert list(rows.columns) == [
        "solver", "instance", "iteration", "loss", "gradients", "distance", "errors", "zeros",
    ]  # fmt: skip
    assert len(rows) == SOLVERS * INSTANCES * ITERATIONS
    for s, name in enumerate(FOUND.solvers):
        for i in range(INSTANCES):
            chosen: Any = rows[(rows.solver == name) & (rows.instance == i)]
            np.testing.assert_array_equal(chosen.iteration, np.arange(ITERATIONS))
            np.testing.assert_array_equal(chosen.loss, FOUND.losses[s, i])
            np.testing.assert_array_equal(chosen.gradients, FOUND.gradients[s, i])
            np.testing.assert_array_equal(chosen.distance, FOUND.losses[s, i] - FOUND.references[i])
            np.testing.assert_array_equal(chosen.errors, FOUND.measures[s, 0, i])


def test_an_evaluation_without_measures_or_outsiders():
    bare = dataclasses.replace(
        FOUND,
        measures=np.empty((SOLVERS, 0, INSTANCES, ITERATIONS)),
        measured=[],
        external=[],
        external_losses=np.empty((0, 2, TIMED)),
        external_seconds=np.empty((0, 2, TIMED)),
        reach_status=np.full((SOLVERS, 2, TIMED), LIMIT),
    )
    assert trajectories(bare).sizes["measure"] == 0
    assert list(frame(bare).columns[-2:]) == ["gradients", "distance"]
    rows = table(bare, "quadratics", "tiny")
    assert len(rows) == SOLVERS * INSTANCES * ITERATIONS
    assert list(rows.columns) == list(table(FOUND, "", "").drop(columns=["errors", "zeros"]))


def test_timings_tell_what_was_reached():
    rows = timings(FOUND).set_index(["solver", "accuracy", "instance"])
    assert len(rows) == (SOLVERS + 1) * 2 * TIMED
    row = rows.loc["heavy ball", 0.1, 0]
    assert (row.iterations, row.gradients) == (3, 30)
    assert row.seconds == FOUND.seconds[1, 1, 0]
    assert row.reached
    assert not rows.loc["Nesterov", 0.5, 1].reached
    for a, accuracy in enumerate(FOUND.accuracies):
        for i in range(TIMED):
            row = rows.loc["coordinate descent", accuracy, i]
            assert row.reached == (FOUND.external_losses[0, a, i] < FOUND.targets[a, i])
            assert row.loss == FOUND.external_losses[0, a, i]
            assert pd.isna(row.iterations)


def test_a_table_knows_time_where_it_was_measured():
    rows = table(FOUND, "quadratics", "tiny, seed 0")
    inside = rows[rows.accuracy.isna()]
    assert len(inside) == SOLVERS * INSTANCES * ITERATIONS
    assert set(inside.objective_name) == {"quadratics"}
    known = inside[inside.time.notna()]
    assert len(known) == 1
    row = known.iloc[0]
    assert (row.solver_name, row.instance, row.iteration) == ("heavy ball", 0, 3)
    assert row.time == FOUND.seconds[1, 1, 0], "the stricter of two that end there"
    assert row.objective_value == FOUND.losses[1, 0, 3]
    assert row.objective_distance == FOUND.losses[1, 0, 3] - FOUND.references[0]
    later: Any
    (later,) = rows[rows.accuracy.notna() & rows.iteration.notna()].itertuples()
    assert (later.solver_name, later.instance, later.accuracy) == ("heavy ball", 1, 0.5)
    assert (later.iteration, later.gradients) == (7, 70)
    assert later.time == FOUND.seconds[1, 0, 1]
    assert np.isnan(later.objective_value), "only the target is known"
    outside = rows[rows.solver_name == "coordinate descent"]
    assert outside.iteration.isna().all()
    np.testing.assert_array_equal(outside.time, FOUND.external_seconds.reshape(-1))
    np.testing.assert_array_equal(outside.objective_value, FOUND.external_losses.reshape(-1))
    np.testing.assert_array_equal(outside.accuracy, [0.5, 0.5, 0.1, 0.1])
    np.testing.assert_array_equal(outside.instance, [0, 1, 0, 1])


def test_the_command_writes_what_the_run_holds(run, tmp_path, capfd):
    assert main(["table", str(run.path)]) == 0
    assert main(["table", str(run.path), "--out", str(tmp_path / "table.csv")]) == 0
    assert "65 rows" in capfd.readouterr().out
    expected = table(FOUND, "quadratics", "tiny, seed 0")
    parquet = pd.read_parquet(run.path / "table.parquet")
    pd.testing.assert_frame_equal(parquet, expected, check_exact=True)
    # Text has no types; numbers come back to the last digit, infinity too.
    with (tmp_path / "table.csv").open() as file:
        text = list(csv.DictReader(file))
    for name in ("objective_value", "objective_distance", "time", "zeros"):
        read = [float(row[name] or "nan") for row in text]
        np.testing.assert_array_equal(read, expected[name])
    assert [row["solver_name"] for row in text] == list(expected.solver_name)


@unchecked()  # half-made on purpose
def test_something_learned_as_parquet(tmp_path):
    certificate = Certificate(2, "quadratics", 10, 0.05, [], 0, "", "", "", {}, {}, [])
    nothing: Any = None
    learned = Learned(tiny.TASK, tiny.RULE, certificate, nothing, nothing, FOUND)
    write_parquet(learned, tmp_path / "table.parquet")
    found = pd.read_parquet(tmp_path / "table.parquet")
    pd.testing.assert_frame_equal(found, table(FOUND, "quadratics", "test"), check_exact=True)


def test_what_cannot_be_written_is_refused(run, tmp_path, capfd, monkeypatch):
    assert main(["table", str(run.path), "--out", str(tmp_path / "table.xlsx")]) == 2
    assert ".parquet or .csv" in capfd.readouterr().err
    assert main(["table", str(tmp_path / "nowhere")]) == 4
    assert "holds no run" in capfd.readouterr().err
    (run.path / "evaluate.safetensors").unlink()
    assert main(["table", str(run.path)]) == 4
    assert "surestep resume" in capfd.readouterr().err
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert main(["table", str(run.path)]) == 2
    assert "pip install 'surestep[tables]'" in capfd.readouterr().err
    assert not (run.path / "table.parquet").exists()


def test_a_measure_that_would_hide_a_column_is_refused():
    with pytest.raises(ConfigurationError, match="'loss' would hide a column"):
        frame(dataclasses.replace(FOUND, measured=["errors", "loss"]))
