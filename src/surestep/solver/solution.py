"""What a solver hands back: points, losses, how instances ended, and whether it is certified."""

import dataclasses
import functools
from collections import Counter
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from surestep.problem import Point, instance
from surestep.rollout.loop import Status
from surestep.solver.monitor import Monitor

Entries = np.ndarray | Any
"""One entry an instance; from `solve_one` a single number of NumPy's, which is no array."""


@dataclasses.dataclass(frozen=True)
class Coverage:
    """Whether the certificate speaks about a call; true or false as a condition.

    It is decided by how the solver was called, never by how the losses came out.

    **Example:**

    ```python
    covered = solver.solve(thetas, iterations=5).covered
    if not covered:
        print(covered.reasons)
    ```
    """

    reasons: tuple[str, ...] = ()
    """Why it does not; empty if it does."""

    def __bool__(self) -> bool:
        return not self.reasons

    def __str__(self) -> str:
        return "covered" if self else "not covered: " + "; ".join(self.reasons)


@dataclasses.dataclass(frozen=True)
class Solution:
    """Solved instances. Arrays have one entry an instance (`solve_one`: they are single numbers).

    Everything is NumPy, so the process's JAX precision does not matter.

    **Example:**

    ```python
    solution = solver.solve(thetas)
    print(solution)  # how the instances ended, and whether the certificate covers the call
    print(solution.x, solution.loss, solution.failed)
    ```
    """

    x: Point
    """The last points, in the form that the problem's loss takes; where a rollout diverged, the
    problem's start."""
    loss: Entries
    """The losses there; infinity where a rollout diverged."""
    iterations: Entries
    """Iterations made; those of a check's fallback are counted too."""
    gradients: Entries
    """Gradient evaluations, the check's and the fallback's too."""
    status: Entries
    """How each instance ended, as numbers of `surestep.rollout.loop.Status`."""
    covered: Coverage
    """Whether the certificate speaks about the call, and why not."""
    sample: Entries | None = None
    """With the policy `posterior`: which of the posterior's samples each instance was given."""
    monitor: Monitor | None = None
    """The monitor that was given: fed, if the certificate covers the call, else as it was."""
    monitor_note: str = ""
    """What was done with the monitor."""
    starts: Callable[[], Entries] = dataclasses.field(kw_only=True, repr=False, compare=False)
    """How `start_loss` is computed, when somebody asks for it."""

    @functools.cached_property
    def start_loss(self) -> Entries:
        """The losses before the first iteration; where a start was learned, the losses there.

        They are computed when they are asked for, and kept.
        """
        return self.starts()

    @property
    def messages(self) -> list[str]:
        """How every instance ended, in words."""
        rows = zip(
            *(np.atleast_1d(a) for a in (self.status, self.iterations, self.loss)), strict=True
        )
        return [
            f"instance {i}: {Status(int(status)).message} "
            f"({int(made)} iterations, loss {float(loss):.4g})"
            for i, (status, made, loss) in enumerate(rows)
        ]

    @property
    def failed(self) -> np.ndarray:
        """The numbers of the instances that diverged."""
        return np.flatnonzero(np.atleast_1d(self.status) == Status.DIVERGED)

    def __str__(self) -> str:
        ends = Counter(Status(int(status)) for status in np.atleast_1d(self.status))
        lines = [f"{number} of {ends.total()}: {end.message}" for end, number in ends.most_common()]
        lines += [self.messages[i] for i in self.failed[:5]]
        lines.append(str(self.covered))
        return "\n".join(lines + ([self.monitor_note] if self.monitor_note else []))


def stacked(tree: Any) -> Any:
    """A single instance, or a single point, as a stacked set of one."""
    if isinstance(tree, np.ndarray):  # the shorter way
        return tree[None]
    return jax.tree.map(lambda leaf: np.asarray(leaf)[None], tree)


def only(found: Solution) -> Solution:
    """The solution of the only instance of a set, as single numbers."""
    return Solution(
        x=instance(found.x, 0),
        loss=found.loss[0],
        iterations=found.iterations[0],
        gradients=found.gradients[0],
        status=found.status[0],
        covered=found.covered,
        sample=None if found.sample is None else found.sample[0],
        monitor=found.monitor,
        monitor_note=found.monitor_note,
        starts=lambda: found.start_loss[0],
    )
