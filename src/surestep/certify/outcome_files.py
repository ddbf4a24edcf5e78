"""Files of outcomes: arrays in .npz, or a table in .csv with a row for each loss or each hit."""

import csv
import io
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from surestep.base.errors import ConfigurationError, RunFolderError, unknown
from surestep.certify.outcomes import OPPONENT
from surestep.storage.files import read_text
from surestep.storage.npz import read_npz

FORMS = (
    "a .csv of outcomes has the columns instance, iteration and loss (or gap, or hit), or instance "
    "and hit"
)
_LOSSES = {"loss": "losses", "gap": "gaps", "hit": "hits"}
_OF_INSTANCES = {"minimum": "minima", "start": "starts", "threshold": "thresholds"}


def read_outcomes(path: Path) -> dict[str, np.ndarray]:
    """The arrays in a file of outcomes, by name; what they mean is looked at elsewhere."""
    if not path.exists():
        raise ConfigurationError(f"{path} is not there")
    if path.suffix == ".npz":
        return read_npz(path)
    if path.suffix != ".csv":
        raise ConfigurationError(f"{path}: outcomes are read from .npz and .csv files")
    try:
        return _Table(path, read_text(path)).arrays()
    except RunFolderError as error:
        raise ConfigurationError(str(error)) from error


def plain_arrays(given: Any) -> dict[str, np.ndarray]:
    """Outcomes as arrays by name: from a file, from a mapping, or from losses or hits alone."""
    if isinstance(given, str | Path):
        found = read_outcomes(Path(given))
    elif isinstance(given, Mapping):
        found = {str(name): np.asarray(value) for name, value in given.items()}
    else:
        array = np.asarray(given)
        found = {"hits" if array.ndim == 1 else "losses": array}
    if "groups" in found:
        # Names of groups are not kept, only which instances have the same one.
        groups = np.asarray(found["groups"])
        labels = np.unique(groups.ravel(), return_inverse=True)[1]
        found["groups"] = labels.reshape(groups.shape).astype(np.int64)
    return found


class _Table:
    """A table with a name for each column, and errors that name lines."""

    def __init__(self, path: Path, text: str) -> None:
        self.path = path
        rows = csv.reader(io.StringIO(text))
        self.columns = [name.strip() for name in next(rows, [])]
        self._require_columns()
        # The first row after the header is line 2.
        self.rows = [(n, row) for n, row in enumerate(rows, 2) if row]
        if not self.rows:
            raise self.wrong("has no rows")
        for line, row in self.rows:
            if len(row) != len(self.columns):
                raise self.wrong(f"has {len(row)} cells, not {len(self.columns)}", line)
        self.instances = dict.fromkeys(name for _, name in self.cells("instance"))
        self.number = {name: i for i, name in enumerate(self.instances)}

    def _require_columns(self) -> None:
        values = [name for name in _LOSSES if name in self.columns]
        long = len(values) == 1 and "iteration" in self.columns
        short = values == ["hit"] and not long
        twice = [name for name in self.columns if self.columns.count(name) > 1]
        if "instance" not in self.columns or twice or not (long or short):
            raise self.wrong(f"has the columns {', '.join(self.columns) or 'none'}: {FORMS}")
        bare = short or values == ["hit"]
        possible = ("instance", "group", values[0], *(("iteration",) if long else ()))
        possible += () if bare else (*_OF_INSTANCES, f"{OPPONENT}NAME")
        for name in self.columns:
            if name not in possible and (bare or not name.startswith(OPPONENT)):
                raise self.wrong(unknown("column", name, possible))

    def wrong(self, words: str, line: int | None = None) -> ConfigurationError:
        """An error that says where it is."""
        where = f"{self.path}" if line is None else f"{self.path}, line {line}:"
        return ConfigurationError(f"{where} {words}")

    def cells(self, column: str) -> Iterator[tuple[int, str]]:
        """The lines and cells of a column."""
        at = self.columns.index(column)
        return ((line, row[at].strip()) for line, row in self.rows)

    def numbers(self, column: str) -> np.ndarray:
        """A column of numbers."""
        found = []
        for line, cell in self.cells(column):
            try:
                found.append(float(cell))
            except ValueError:
                raise self.wrong(f"{column} {cell!r} is not a number", line) from None
        return np.array(found)

    def of_instances(self, column: str, values: Any) -> list[Any]:
        """The one value that a column has for every instance."""
        found: dict[str, Any] = {}
        for (line, name), value in zip(self.cells("instance"), values, strict=True):
            if found.setdefault(name, value) != value:
                raise self.wrong(f"instance {name!r} has another {column} before", line)
        return [found[name] for name in self.instances]

    def arrays(self) -> dict[str, np.ndarray]:
        """What the table says, by the names that arrays have."""
        found: dict[str, np.ndarray] = {}
        if "group" in self.columns:
            names = [name for _, name in self.cells("group")]
            found["groups"] = np.array(self.of_instances("group", names))
        if "iteration" not in self.columns:
            if len(self.instances) < len(self.rows):
                raise self.wrong(f"{self._first_twice('instance')}: hits have one row for each")
            return found | {"hits": self.numbers("hit")}
        for column, name in _OF_INSTANCES.items():
            if column in self.columns:
                values = self.of_instances(column, self.numbers(column).tolist())
                found[name] = np.array(values)
        return found | self._losses()

    def _losses(self) -> dict[str, np.ndarray]:
        numbers = self.numbers("iteration")
        iterations, columns = np.unique(numbers, return_inverse=True)
        rows = np.array([self.number[name] for _, name in self.cells("instance")])
        shape = (len(self.instances), len(iterations))
        places = np.ravel_multi_index((rows, columns), shape)
        counts = np.bincount(places, minlength=shape[0] * shape[1]).reshape(shape)
        for words, wrong in (("twice", counts > 1), ("missing", counts == 0)):
            if wrong.any():
                i, k = np.argwhere(wrong)[0]
                name, at = list(self.instances)[i], f"{iterations[k]:g}"
                raise self.wrong(
                    f"has instance {name!r} after iteration {at} twice"
                    if words == "twice"
                    else f"has no row of instance {name!r} after iteration {at}: every instance "
                    "needs the same iterations (a solve that failed has a loss of inf)"
                )
        found = {"iterations": iterations}
        for column in self.columns:
            if column in _LOSSES or column.startswith(OPPONENT):
                table = np.empty(shape)
                table[rows, columns] = self.numbers(column)
                found[_LOSSES.get(column, column)] = table
        return found

    def _first_twice(self, column: str) -> str:
        seen: set[str] = set()
        for line, name in self.cells(column):
            if name in seen:
                return f"has {column} {name!r} twice (line {line})"
            seen.add(name)
        raise AssertionError
