"""A monitor for after deployment: is the certified failure probability still credible?

Fed with the outcome of *every* live instance, it bets against the certificate. While failures are
no more probable than certified, its wealth is a non-negative supermartingale from 1, so it reaches
`1 / delta` with probability `delta` at most, however long it runs (Ville's inequality).

The instances themselves can be watched beside the outcomes, so that a shift is noticed before it
makes solves fail (`instance_monitor`). Either may raise the alarm: their deltas add up.
"""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np

from surestep.base.errors import ConfigurationError, RunFolderError, SurestepError
from surestep.solver.bets import at_first, played
from surestep.solver.instance_monitor import InstanceMonitor
from surestep.storage.files import read_json, write_text
from surestep.storage.records import from_plain, to_json

# Shares of the largest bet that cannot ruin: cautious ones notice small shifts late, bold ones
# large shifts soon. The wealth is the average over all of them.
_BETS = (0.02, 0.05, 0.1, 0.2, 0.4, 0.8)

_AT_ONCE = 100_000  # outcomes; more would take much memory


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
    """The probability of a false alarm in all time, from outcomes."""
    seen: int = 0
    """How many outcomes it was fed."""
    failures: float = 0.0
    """Their sum."""
    log_bets: tuple[float, ...] = at_first(len(_BETS))
    """The logarithms of what is on each bet, before the next outcome."""
    highest: float = 0.0
    """The logarithm of the largest wealth so far."""
    instances: InstanceMonitor | None = None
    """What watches the instances themselves, with a delta of its own."""

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
        if not 0 <= self.seen < 2**53:
            raise ConfigurationError(f"nobody has seen {self.seen} outcomes")

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
        gains = np.log1p(bets * (values - self.failure))
        log_bets, highest = played(self.log_bets, self.seen, gains)
        return dataclasses.replace(
            self,
            seen=self.seen + values.size,
            failures=self.failures + float(values.sum()),
            log_bets=log_bets,
            highest=max(self.highest, highest),
        )

    def shown(self, features: Any) -> "Monitor":
        """The monitor after it was shown one more instance, or several in the order they came.

        **Arguments:**

        - `features`: a row of numbers for every instance, those of its reference sample.

        **Returns:** another `Monitor`; this one stays as it is.

        **Raises:** `surestep.errors.ConfigurationError` if it does not watch instances, or others.

        **Example:**

        ```python
        reference = np.random.default_rng(0).normal(size=(300, 2))
        instances = ss.InstanceMonitor.of(reference, delta=0.005)
        monitor = ss.Monitor(failure=0.05, delta=0.005, instances=instances)
        monitor = monitor.fed([0, 0]).shown([[0.3, -1.2], [2.0, 0.1]])
        ```
        """
        if self.instances is None:
            raise ConfigurationError("this monitor watches no instances: it was made without any")
        return dataclasses.replace(self, instances=self.instances.shown(features))

    @property
    def alarm(self) -> bool:
        """Whether certificate or instances have become incredible; once raised, it stays."""
        return self._failing or (self.instances is not None and self.instances.alarm)

    @property
    def _failing(self) -> bool:
        """Whether there are more failures than certified."""
        return bool(self.highest >= -np.log(self.delta))

    def __str__(self) -> str:
        state = (
            f"ALARM: the certified failure probability {self.failure:g} is no longer credible"
            if self._failing
            else f"no reason to doubt the certified failure probability {self.failure:g}"
        )
        outcomes = (
            f"{state} ({self.failures:g} failures in {self.seen} outcomes, evidence "
            f"{np.exp(min(self.highest, 700)):.3g} of {1 / self.delta:.3g})"
        )
        return outcomes if self.instances is None else f"{outcomes}\n{self.instances}"

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
