"""The time that a run itself has used."""

import time

_LEAST = 0.1  # of the time on the clock


class Stopwatch:
    """Counts the seconds that this process has worked.

    On a machine of its own that is the time on the clock. Where others use the processors too, it
    is what this process got of them: waiting for others is not counted. A tenth of the time on the
    clock always is, so that a process that waits for something else (a disk, another device) comes
    to an end too.
    """

    def __init__(self) -> None:
        self._clock, self._worked = time.monotonic(), time.process_time()

    @property
    def seconds(self) -> float:
        """The seconds used since it was started."""
        passed, worked = time.monotonic() - self._clock, time.process_time() - self._worked
        return min(passed, max(worked, _LEAST * passed))
