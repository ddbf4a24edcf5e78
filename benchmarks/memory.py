"""The peak memory of a process of its own, by the number of instances.

`python -m benchmarks.memory N` is that process: it observes the heavy ball method on N drawn
instances, as `certify` would, and prints how much memory it had resident at most.
"""

import json
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np

from benchmarks.cases import NO_PLAN, setting
from benchmarks.records import Peak
from surestep.base.errors import HostError
from surestep.problem.datasets import SealedTrainSet
from surestep.problem.sets import IN_MEMORY

DIMENSION = 200
SMALLEST = 2 * IN_MEMORY
"""The smallest set that is drawn a part at a time, as all larger ones are."""


def measure_peak(instances: int) -> Peak:
    """Observe so many instances in a fresh process."""
    command = [sys.executable, "-m", "benchmarks.memory", str(instances)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise HostError(f"the process that measures memory failed: {ended.stderr.strip()[-500:]}")
    before, peak = json.loads(ended.stdout)
    return Peak(instances, peak, before, instances * 2 * DIMENSION * np.dtype(float).itemsize)


def observe_instances(instances: int) -> tuple[int, int]:
    """The peak before and after the observation of so many instances, once a small set is done."""
    mine = setting(DIMENSION)
    task = mine.task()

    def observe(size: int) -> None:
        data = SealedTrainSet(mine.problem, size, 0).open(NO_PLAN)
        task.observe(mine.teacher, data, task.watch((task.horizon,)))

    observe(SMALLEST)
    before = peak_memory()
    observe(instances)
    return before, peak_memory()


def peak_memory() -> int:
    """The most bytes that this process ever had resident."""
    status = Path("/proc/self/status")
    if status.exists():
        # Not ru_maxrss: on Linux it begins with that of the process that started this one.
        lines = dict(line.split(":", 1) for line in status.read_text().splitlines())
        return int(lines["VmHWM"].split()[0]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


if __name__ == "__main__":
    print(json.dumps(observe_instances(int(sys.argv[1]))))
