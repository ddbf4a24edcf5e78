"""Evaluations as tables: xarray data sets, pandas data frames, parquet and CSV files."""

import io
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import xarray

from surestep.base.errors import ConfigurationError, RunFolderError
from surestep.base.machine import require
from surestep.evaluate.evaluated import Evaluated
from surestep.rollout.loop import Status
from surestep.storage.files import write_bytes, write_text
from surestep.storage.run_folder import RunFolder

if TYPE_CHECKING:
    from surestep.run.learned import Learned

FORMATS = (".parquet", ".csv")
_TRAJECTORY = ("solver", "instance", "iteration")


def trajectories(subject: "Evaluated | Learned") -> xarray.Dataset:
    """Losses, gradient evaluations and measures of every solver, instance and iteration.

    Beside them stand what the goal and the accuracies of each instance are. Iteration 0 is the
    start; a loss is infinite from the moment a solver diverges.

    **Arguments:**

    - `subject`: what `learn` or `fit` returned, or its `evaluation`.

    **Returns:** an `xarray.Dataset` with the axes solver, instance, iteration, accuracy, measure.

    **Example:**

    ```python
    data = ss.report.trajectories(learned)
    print(data.losses.sel(solver="learned").median("instance"))
    ```
    """
    found = _evaluation(subject)
    return xarray.Dataset(
        data_vars={
            "losses": (_TRAJECTORY, found.losses, _words("loss", "1")),
            "gradients": (_TRAJECTORY, found.gradients, _words("gradients so far", "evaluations")),
            "measures": (("solver", "measure", "instance", "iteration"), found.measures),
            "thresholds": ("instance", found.thresholds, _words("loss that is a success", "1")),
            "references": (
                "instance",
                found.references,
                _words(found.above or "zero", "1") | {"note": "accuracies are counted from it"},
            ),
            "targets": (
                ("accuracy", "instance"),
                found.targets,
                _words("loss that counts as accurate", "1"),
            ),
        },
        coords={
            "solver": found.solvers,
            "measure": np.array(found.measured, dtype=object),
            "instance": ("instance", np.arange(found.losses.shape[1]), _words("test instance")),
            "iteration": (
                "iteration",
                np.arange(found.losses.shape[2]),
                _words("iterations made", "iterations"),
            ),
            "accuracy": (
                "accuracy",
                found.accuracies,
                _words("distance from the reference", "relative" if found.relative else "1"),
            ),
        },
        attrs={"above": found.above, "relative": int(found.relative)},
    )


def frame(subject: "Evaluated | Learned") -> pd.DataFrame:
    """The trajectories as a tidy data frame: one row for each solver, instance and iteration.

    `distance` is the loss above the instance's reference; every measure has a column.

    **Arguments:**

    - `subject`: what `learn` or `fit` returned, or its `evaluation`.

    **Returns:** a `pandas.DataFrame`.

    **Raises:** `surestep.errors.ConfigurationError` if a measure has the name of a column.

    **Example:**

    ```python
    rows = ss.report.frame(learned)
    print(rows.groupby(["solver", "iteration"]).loss.median())
    ```
    """
    data = trajectories(subject)
    columns = {"loss": data.losses, "gradients": data.gradients}
    columns["distance"] = data.losses - data.references
    for name in data.measure.values:
        if name in (*_TRAJECTORY, *columns):
            raise ConfigurationError(f"a measure called {name!r} would hide a column: rename it")
        columns[str(name)] = data.measures.sel(measure=name, drop=True)
    rows = xarray.Dataset({name: column.variable for name, column in columns.items()})
    rows = rows.assign_coords({name: data[name] for name in _TRAJECTORY})
    return rows.to_dataframe(dim_order=list(_TRAJECTORY)).reset_index()


def timings(subject: "Evaluated | Learned") -> pd.DataFrame:
    """One row for each solver, accuracy and timed instance: what it took, and whether it was met.

    Solvers of other libraries are among them; their iterations and gradients are not known.

    **Arguments:**

    - `subject`: what `learn` or `fit` returned, or its `evaluation`.

    **Returns:** a `pandas.DataFrame`.

    **Example:**

    ```python
    rows = ss.report.timings(learned)
    print(rows.groupby(["solver", "accuracy"]).seconds.sum())
    ```
    """
    found = _evaluation(subject)
    parts = [
        _by_accuracy(
            found,
            found.solvers,
            reached=found.reach_status == Status.REACHED,
            iterations=found.reach_iterations,
            gradients=found.reach_gradients,
            seconds=found.seconds,
        )
    ]
    if found.external:
        timed = found.external_losses.shape[2]
        parts.append(
            _by_accuracy(
                found,
                found.external,
                reached=found.external_losses < found.targets[:, :timed],
                seconds=found.external_seconds,
                loss=found.external_losses,
            )
        )
    return pd.concat(parts, ignore_index=True)


def table(subject: "Evaluated | Learned", objective: str, dataset: str) -> pd.DataFrame:
    """The evaluation as benchmark collections keep theirs, with benchopt's names for columns.

    One row for each solver, instance and iteration. `time` is in seconds, without compilation, and
    known where a solver that was timed to an accuracy reached it (the strictest one, if several
    end there). Rows with an `accuracy` are timed runs that ended later than what is shown, whose
    value is not known, and those of other libraries, whose iterations are not known.
    `objective_distance` is the value above the instance's reference.
    """
    found = _evaluation(subject)
    rows = frame(found).rename(
        columns={
            "solver": "solver_name",
            "loss": "objective_value",
            "distance": "objective_distance",
        }
    )
    rows.insert(5, "time", _times(found).reshape(-1))
    rows["accuracy"] = np.nan
    rows = rows.astype({"iteration": "Int64", "gradients": "Int64"})
    ends = _further_ends(found)
    if len(ends):
        rows = pd.concat([rows, ends], ignore_index=True)
    rows.insert(0, "objective_name", objective)
    rows.insert(1, "dataset_name", dataset)
    return rows


def write_parquet(learned: "Learned", path: Path) -> None:
    """Write the evaluation of something learned as a parquet file (see `table`)."""
    name = learned.certificate.problem
    write_table(table(learned, name, "test"), path)


def write_table(rows: pd.DataFrame, path: Path) -> None:
    """Write a data frame as `.parquet` or `.csv`, whole or not at all."""
    require_format(path)
    if path.suffix == ".csv":
        write_text(path, rows.to_csv(index=False))
        return
    buffer = io.BytesIO()
    rows.to_parquet(buffer, engine="pyarrow", index=False)
    write_bytes(path, buffer.getvalue())


def require_format(path: Path) -> None:
    """Refuse a file that could not be written, before any work is done."""
    if path.suffix not in FORMATS:
        raise ConfigurationError(f"a table is written as {' or '.join(FORMATS)}, not as {path}")
    if path.suffix == ".parquet":
        require("pyarrow", "pyarrow", "a parquet file", extra="tables")


def table_of_run(run: RunFolder, objective: str, dataset: str) -> pd.DataFrame:
    """The table of a run folder's evaluation."""
    if not run.has("evaluate"):
        raise RunFolderError(
            f"the run in {run.path} has not been evaluated yet: surestep resume {run.path}"
        )
    return table(run.load("evaluate", Evaluated), objective, dataset)


def _evaluation(subject: "Evaluated | Learned") -> Evaluated:
    return subject if isinstance(subject, Evaluated) else subject.evaluation


def _words(name: str, units: str = "") -> dict[str, str]:
    return {"long_name": name} | ({"units": units} if units else {})


def _by_accuracy(found: Evaluated, solvers: list[str], **columns: np.ndarray) -> pd.DataFrame:
    """Arrays over solver, accuracy and timed instance as rows; what is missing is not known."""
    shape = columns["seconds"].shape
    solver, accuracy, instance = (index.reshape(-1) for index in np.indices(shape))
    rows = pd.DataFrame(
        {
            "solver": np.array(solvers, dtype=object)[solver],
            "accuracy": np.array(found.accuracies)[accuracy],
            "instance": instance,
        }
    )
    for name in ("reached", "iterations", "gradients", "seconds", "loss"):
        rows[name] = columns[name].reshape(-1) if name in columns else np.nan
    # Whole numbers, also beside rows where they are not known.
    return rows.astype({"iterations": "Int64", "gradients": "Int64"})


def _further_ends(found: Evaluated) -> pd.DataFrame:
    """Timed runs that trajectories do not show: of other libraries, or longer than is shown."""
    ends = timings(found)
    later = ends["reached"] & (ends["iterations"] >= found.losses.shape[2]).fillna(False)
    ends = ends[ends["solver"].isin(found.external) | later]
    return pd.DataFrame(
        {
            "solver_name": ends["solver"],
            "instance": ends["instance"],
            "iteration": ends["iterations"],
            "gradients": ends["gradients"],
            "time": ends["seconds"],
            "objective_value": ends["loss"],
            "objective_distance": ends["loss"] - found.references[np.asarray(ends["instance"])],
            "accuracy": ends["accuracy"],
        }
    )


def _times(found: Evaluated) -> np.ndarray:
    """Seconds at every solver, instance and iteration where they are known."""
    times = np.full(found.losses.shape, np.nan)
    shown = found.losses.shape[2]
    reached = (found.reach_status == Status.REACHED) & (found.reach_iterations < shown)
    # From loose to strict, so that the strictest accuracy of an iteration is written last.
    for accuracy in np.argsort(found.accuracies)[::-1]:
        solver, instance = np.nonzero(reached[:, accuracy])
        ended = found.reach_iterations[solver, accuracy, instance]
        times[solver, instance, ended] = found.seconds[solver, accuracy, instance]
    return times
