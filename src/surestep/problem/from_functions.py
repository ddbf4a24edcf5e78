"""Problems made from plain functions and from data that a user has."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Scalar

from surestep.base.errors import ProblemError
from surestep.problem.base import Point, Problem, StockedProblem, Theta
from surestep.problem.given import (
    as_arrays,
    no_sampler,
    require_callable,
    require_numbers,
    require_shares,
    stacked_instances,
)
from surestep.problem.kinds import CompositeProblem
from surestep.problem.penalties import Penalty
from surestep.problem.recorded import Recorded, look_at

Start = Point | Callable[[Theta], Point]
Lower = float | Callable[[Theta], Any] | None


class FunctionProblem(Problem):
    """A problem whose three methods are a user's functions."""

    function: Callable[[Point, Theta], Any]
    first: Start
    sampler: Callable[[Array], Theta]
    lower: Lower
    kind: Literal["float32", "float64"]
    title: str

    @property
    def precision(self) -> Literal["float32", "float64"]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """What the user asked for."""
        return self.kind

    @property
    def nonnegative(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether the user knows a lower bound; losses are counted from it."""
        return self.lower is not None

    @property
    def name(self) -> str:
        """What messages call it."""
        return self.title

    @property
    def about(self) -> str:
        """What it is: what the file or the loss says of itself."""
        module = sys.modules.get(getattr(self.function, "__module__", ""))
        own = getattr(module, "__doc__", None) if module is not None else None
        return str(self.function.__doc__ or own or f"The loss {self.title}, of x and an instance.")

    def sample(self, key: Array) -> Theta:
        """As the user draws it."""
        return as_arrays(self.sampler(key), self.kind, "sample returns")

    def start(self, theta: Theta) -> Point:
        """The user's start, in the problem's precision."""
        point = self.first(theta) if callable(self.first) else self.first
        return as_arrays(point, self.kind, "x0 returns")

    def loss(self, x: Point, theta: Theta) -> Scalar:
        """The user's loss above its lower bound, if there is one."""
        return self._counted(x, theta)

    def _counted(self, x: Point, theta: Theta) -> Any:
        value = self.function(x, theta)
        if value is None or isinstance(value, tuple | list | dict):
            raise ProblemError(
                f"loss returns a {type(value).__name__}: it must return a single number and "
                "nothing else"
            )
        if self.lower is None:
            return value
        return value - (self.lower(theta) if callable(self.lower) else self.lower)


class StockedFunctionProblem(FunctionProblem, StockedProblem):  # pyright: ignore[reportIncompatibleVariableOverride]
    """The same, with instances that the user has instead of a way to draw them."""

    stocked: Theta
    portions: tuple[float, float, float, float]
    together: Int[Array, " instance"]
    found: Recorded

    @property
    def stock(self) -> Theta:
        """The user's instances."""
        return self.stocked

    @property
    def shares(self) -> tuple[float, float, float, float]:
        """Which share of them serves for what."""
        return self.portions

    @property
    def groups(self) -> Array:
        """Equal instances, and those that the user has named together."""
        return self.together

    @property
    def about_data(self) -> str:
        """Which groups there are, and whether the instances drift."""
        return str(self.found)

    def require_steady(self) -> None:
        """Instances that drift get no certificate."""
        self.found.require_steady()

    def sample(self, key: Array) -> Theta:
        """One of the user's instances; data sets are made otherwise, without repetition."""
        return StockedProblem.sample(self, key)


class CompositeFunctionProblem(FunctionProblem, CompositeProblem):  # pyright: ignore[reportIncompatibleVariableOverride]
    """A user's smooth loss and a ready penalty."""

    penalty: Penalty

    def smooth(self, x: Point, theta: Theta) -> Scalar:
        """The user's loss above its lower bound."""
        return self._counted(x, theta)

    def nonsmooth(self, x: Point, theta: Theta) -> Scalar:
        """The penalty."""
        return self.penalty.value(x, theta)

    def prox(self, x: Point, step: Float[Array, "..."], theta: Theta) -> Point:
        """The penalty's proximal map."""
        return self.penalty.prox(x, step, theta)

    def loss(self, x: Point, theta: Theta) -> Scalar:
        """The smooth part plus the penalty."""
        return CompositeProblem.loss(self, x, theta)


class StockedCompositeFunctionProblem(CompositeFunctionProblem, StockedFunctionProblem):
    """Both: a penalty, and instances from data."""


def make_problem(
    loss: Callable[[Point, Theta], Any],
    x0: Start,
    thetas: Theta | str | Path | None = None,
    sample: Callable[[Array], Theta] | None = None,
    penalty: Penalty | None = None,
    lower: Lower = 0.0,
    precision: Literal["float32", "float64"] = "float64",
    shares: tuple[float, float, float, float] = (0.3, 0.2, 0.35, 0.15),
    name: str | None = None,
    groups: Any = None,
    ordered: bool = True,
) -> Problem:
    """Make a problem from plain functions and data.

    **Arguments:**

    - `loss`: `loss(x, theta)`, a single number, written with `jax.numpy`.
    - `x0`: the start, an array or a pytree of arrays, or a function of `theta`.
    - `thetas`: instances that you have, stacked along their first axis (arrays, a pytree of
      arrays, or the path of an .npz file). They are split at random into four disjoint data sets.
      Equal ones are together one draw, of which one instance is taken.
    - `sample`: instead of `thetas`, `sample(key)` draws one instance.
    - `penalty`: a part of the objective that is not smooth, from `surestep.penalties`.
    - `lower`: a bound that the loss never falls below, a number or a function of `theta`. Losses
      are counted from it. `None` if you know no bound: statements that need one are then not made.
    - `precision`: what losses are computed in.
    - `shares`: which shares of `thetas` serve as prior, validation, train and test set.
    - `name`: what messages and reports call the problem; by default, the name of the loss.
    - `groups`: a label for each of `thetas` (a number or a word): instances with the same label
      belong together, as those of a patient, a day or an episode do. They are one draw, too.
    - `ordered`: whether the order of `thetas` is that of time. It is tested then, and instances
      that drift get no certificate. `False` if their order means nothing, because they are sorted.

    **Returns:** a `Problem`, for `surestep.fit`.

    **Raises:** `surestep.errors.ProblemError` if an argument cannot be what it should be.

    **Example:**

    ```python
    import jax
    import jax.numpy as jnp
    import surestep as ss

    problem = ss.make_problem(
        loss=lambda x, theta: jnp.sum((x - theta) ** 2),
        x0=jnp.zeros(3),
        sample=lambda key: jax.random.normal(key, (3,)),
        penalty=ss.penalties.L1(0.1),
    )
    ```
    """
    require_callable("loss", loss, ("x", "theta"))
    if (thetas is None) == (sample is None):
        raise ProblemError(
            "say where instances come from: either thetas (instances you have, stacked along "
            "their first axis, or an .npz file of them) or sample (a function of a random key)"
        )
    if precision not in ("float32", "float64"):
        raise ProblemError(f"precision must be 'float32' or 'float64', not {precision!r}")
    if penalty is not None and not isinstance(penalty, Penalty):
        raise ProblemError(
            "penalty must be one of surestep.penalties (L1, L2, GroupL2, Box, Simplex, Nuclear) or "
            f"a subclass of Penalty, not {type(penalty).__name__}; other non-smooth parts need a "
            "subclass of CompositeProblem"
        )
    if callable(x0):
        require_callable("x0", x0, ("theta",))
    else:
        require_numbers("x0", x0)
    title = name or getattr(loss, "__name__", "problem")
    common = (loss, x0 if callable(x0) else as_arrays(x0, precision))
    if sample is not None:
        if groups is not None:
            raise ProblemError("groups are those of recorded instances (thetas), not of sample")
        require_callable("sample", sample, ("key",))
        basic = (*common, sample, lower, precision, title)
        if penalty is None:
            return FunctionProblem(*basic)
        return CompositeFunctionProblem(*basic, penalty)
    stacked = stacked_instances(thetas, precision)
    require_shares(shares)
    together, found = look_at(stacked, groups, ordered)
    data = (stacked, shares, jnp.asarray(together, jnp.int32), found)
    basic = (*common, no_sampler, lower, precision, title)
    if penalty is None:
        return StockedFunctionProblem(*basic, *data)
    return StockedCompositeFunctionProblem(*basic, *data, penalty)  # pyright: ignore[reportArgumentType, reportCallIssue]


Problem.of = staticmethod(make_problem)
