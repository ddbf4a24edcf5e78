"""A monitor for after deployment: is the certified failure probability still credible?

Fed with the outcome of *every* live instance, it bets against the certificate. While failures are
no more probable than certified, its wealth is a non-negative supermartingale from 1, so it reaches
`1 / delta` with probability `delta` at most, however long it runs (Ville's inequality).

Bets that run from the beginning lose nearly all while all is well, and would need as many failures
to win it back. So only a part of the wealth is bet from the beginning, and before each further
outcome a part of the rest, which has lost nothing. The parts add up to 1, and decrease so slowly
that a failure rate which rises late is noticed about as soon as one that is high at once.
"""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np

from surestep.base.errors import ConfigurationError, RunFolderError, SurestepError
from surestep.storage.files import read_json, write_text
from surestep.storage.records import from_plain, to_json

# Shares of the largest bet that cannot ruin: cautious ones notice small shifts late, bold ones
# large shifts soon. The wealth is the average over all of them.
_BETS = (0.02, 0.05, 0.1, 0.2, 0.4, 0.8)

_AT_ONCE = 100_000  # outcomes; more would take much memory


def _log_rest(time: Any) -> Any:
    """The logarithm of the wealth that is not bet yet before the outcome of this number."""
    return -np.log(np.log2(np.asarray(time, np.float64) + 2))


def _log_new(time: Any) -> Any:
    """The logarithm of what each bet gets before the outcome of this number, from the rest."""
    now, next_ = _log_rest(time), _log_rest(np.asarray(time) + 1)
    return now + np.log(-np.expm1(next_ - now)) - np.log(len(_BETS))


@dataclasses.dataclass(frozen=True)
class Monitor:
    """What has been seen, and how much it speaks against the certificate.

    It must be fed every outcome: leaving out successes raises false alarms, leaving out failures
    hides true ones. `Solver.monitor` makes one for a certificate.

    **Raises:** `surestep.errors.ConfigurationError` if a probability does not lie strictly between
    0 and 1.

    **Example:**

    ```python
    monitor = ss.Monitor(failure=0.05)
    monitor = monitor.fed([0, 0, 1, 0])
    print(monitor, monitor.alarm)
    ```
    """

    failure: float
    """The certified failure probability."""
    delta: float = 0.01
    """The probability of a false alarm in all time."""
    seen: int = 0
    """How many outcomes it was fed."""
    failures: float = 0.0
    """Their sum."""
    log_bets: tuple[float, ...] = (float(_log_new(0)),) * len(_BETS)
    """The logarithms of what is on each bet, before the next outcome."""
    highest: float = 0.0
    """The logarithm of the largest wealth so far."""

    def __post_init__(self) -> None:
        if not 0 < self.failure < 1:
            raise ConfigurationError(
                f"the certified failure probability must lie strictly between 0 and 1, "
                f"not {self.failure}"
            )
        if not 0 < self.delta < 1:
            raise ConfigurationError(f"delta must lie strictly between 0 and 1, not {self.delta}")
        if len(self.log_bets) != len(_BETS):
            raise ConfigurationError(f"a monitor has {len(_BETS)} bets")

    def fed(self, outcomes: Any) -> "Monitor":
        """The monitor after one more outcome, or several in the order they came.

        **Arguments:**

        - `outcomes`: 1 for a failure and 0 for a success, or shares of the goal in [0, 1].

        **Returns:** another `Monitor`; this one stays as it is.

        **Raises:** `surestep.errors.ConfigurationError` if an outcome is not a number from 0 to 1.

        **Example:**

        ```python
        monitor = ss.Monitor(failure=0.01).fed(np.ones(20))
        assert monitor.alarm
        ```
        """
        values = np.atleast_1d(np.asarray(outcomes, np.float64))
        if values.ndim != 1 or not np.all((values >= 0) & (values <= 1)):
            raise ConfigurationError("outcomes must be numbers from 0 to 1")
        if values.size == 0:
            return self
        if values.size > _AT_ONCE:
            found = self
            for first in range(0, values.size, _AT_ONCE):
                found = found.fed(values[first : first + _AT_ONCE])
            return found
        bets = np.array(_BETS)[:, None] / self.failure
        won = np.cumsum(np.log1p(bets * (values - self.failure)), axis=1)
        times = self.seen + 1 + np.arange(values.size)
        # What is added before an outcome wins with the outcomes from then on.
        added = np.concatenate([np.array(self.log_bets)[:, None], _log_new(times) - won], axis=1)
        path = np.logaddexp.accumulate(added, axis=1)
        ended, before_next = path[:, :-1] + won, path[:, 1:] + won
        together = np.logaddexp(np.logaddexp.reduce(ended, axis=0), _log_rest(times))
        return dataclasses.replace(
            self,
            seen=self.seen + values.size,
            failures=self.failures + float(values.sum()),
            log_bets=tuple(float(v) for v in before_next[:, -1]),
            highest=max(self.highest, float(together.max())),
        )

    @property
    def alarm(self) -> bool:
        """Whether the certificate has become incredible; once raised, it stays."""
        return bool(self.highest >= -np.log(self.delta))

    def __str__(self) -> str:
        state = (
            f"ALARM: the certified failure probability {self.failure:g} is no longer credible"
            if self.alarm
            else f"no reason to doubt the certified failure probability {self.failure:g}"
        )
        return (
            f"{state} ({self.failures:g} failures in {self.seen} outcomes, evidence "
            f"{np.exp(min(self.highest, 700)):.3g} of {1 / self.delta:.3g})"
        )

    def save(self, path: Path) -> None:
        """Write the monitor's state as JSON.

        **Arguments:**

        - `path`: the file; one that is there is replaced.

        **Example:**

        ```python
        import pathlib

        ss.Monitor(failure=0.05).fed([0, 1]).save(pathlib.Path("monitor.json"))
        ```
        """
        write_text(path, to_json(self))

    @classmethod
    def load(cls, path: Path) -> "Monitor":
        """Go on from a saved state.

        **Arguments:**

        - `path`: a file that `save` wrote.

        **Returns:** the `Monitor`.

        **Raises:** `surestep.errors.RunFolderError` if the file holds no monitor's state.

        **Example:**

        ```python
        import pathlib

        path = pathlib.Path("monitor.json")
        ss.Monitor(failure=0.05).fed([0, 1]).save(path)
        print(ss.Monitor.load(path).fed([0]).seen)  # 3
        ```
        """
        try:
            return from_plain(cls, read_json(path), path.name)
        except SurestepError as error:
            raise RunFolderError(f"{path} is no monitor's state: {error}") from error
