"""Kinds of instances that a user tells apart, so that each gets statements of its own."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import Int

from surestep.base.errors import ProblemError

MOST_STRATA = 12
"""Epsilon is divided among the kinds: of more, a certificate would say little."""

Theta = Any


@dataclasses.dataclass(frozen=True)
class Strata:
    """Kinds of instances, told apart by a function of theta.

    A certificate then says of every kind by itself how often the goal is missed, and after how
    many iterations instances are close; see `make_problem`.

    **Raises:** `surestep.errors.ProblemError` if there are no names, too many, or two are equal.

    **Example:**

    ```python
    far = ss.Strata(("near", "far"), lambda theta: jnp.linalg.norm(theta) > 2.0)
    print(far.names[int(far.of(jnp.ones(9)))])
    ```
    """

    names: Sequence[str]
    """What the kinds are called."""
    of: Callable[[Theta], Any]
    """The number of an instance's kind, 0 for the first name; written with `jax.numpy`."""

    def __post_init__(self) -> None:
        names = tuple(self.names)
        # A problem is part of what programs are kept by, so all of it must be hashable.
        object.__setattr__(self, "names", names)
        if not (2 <= len(names) <= MOST_STRATA and len(set(names)) == len(names) and all(names)):
            raise ProblemError(
                f"kinds of instances need from 2 to {MOST_STRATA} different names, not {self.names}"
            )
        if not callable(self.of):
            raise ProblemError(
                "the kind of an instance is a function of theta, not "
                f"{type(self.of).__name__}: Strata(names, of)"
            )

    def labels(self, thetas: Theta) -> Int[np.ndarray, " instance"]:
        """The number of every instance's kind.

        **Arguments:**

        - `thetas`: stacked instances.

        **Returns:** whole numbers from 0.

        **Raises:** `surestep.errors.ProblemError` if the function gives anything else.
        """
        found = np.asarray(jax.vmap(self.of)(thetas))
        whole = found.ndim == 1 and found.dtype.kind in "iub"
        if not whole or np.any(found.astype(np.int64) < 0) or np.any(found >= len(self.names)):
            raise ProblemError(
                "the kind of an instance must be a single whole number from 0 to "
                f"{len(self.names) - 1}, one for each of the names {', '.join(self.names)}; found "
                f"{found.dtype} of shape {found.shape[1:]}"
                + (f" from {found.min()} to {found.max()}" if found.size else "")
            )
        return found.astype(np.int64)
