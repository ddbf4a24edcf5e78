"""Programmes made from arrays, from sparse matrices and from functions of an instance."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from surestep.base.errors import ProblemError
from surestep.problem.base import StockedProblem, Theta, instance
from surestep.problem.constraint_set import ConstraintSet, require_cones
from surestep.problem.degrees import depends
from surestep.problem.given import (
    as_arrays,
    no_sampler,
    require_callable,
    require_shares,
    stacked_instances,
)
from surestep.problem.programme import Coefficients, Programme
from surestep.problem.recorded import Recorded, look_at

Coefficient = Any
"""An array, a SciPy sparse matrix, or a function of theta that returns an array."""

_CONES = ("zero", "nonnegative", "second_order")


class FunctionProgramme(Programme):
    """A programme whose coefficients are a user's arrays and functions."""

    given: dict[str, Any]
    """By name: arrays that all instances share, functions of theta otherwise."""
    sampler: Callable[[Array], Theta]
    counts: tuple[int, int]
    equal: tuple[int, ...]
    lengths: tuple[int, ...]
    ratio: float
    kind: Literal["float32", "float64"]
    title: str

    @property
    def precision(self) -> Literal["float32", "float64"]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """What the user asked for."""
        return self.kind

    @property
    def relative(self) -> float:  # pyright: ignore[reportIncompatibleVariableOverride]
        """What the user asked for."""
        return self.ratio

    @property
    def name(self) -> str:
        """What messages call it."""
        return self.title

    @property
    def sizes(self) -> tuple[int, int]:
        """How many variables and how many constraints there are."""
        return self.counts

    @property
    def equalities(self) -> tuple[int, ...]:
        """Rows whose bounds were the same on every instance that was looked at."""
        return self.equal

    @property
    def cones(self) -> tuple[int, ...]:
        """How many of the last rows each second-order cone has."""
        return self.lengths

    @property
    def shared_hessian(self) -> np.ndarray | None:
        """`P`, where it is an array."""
        return _shared(self.given["P"])

    @property
    def shared_matrix(self) -> np.ndarray | None:
        """`A`, where it is an array."""
        return _shared(self.given["A"])

    def sample(self, key: Array) -> Theta:
        """As the user draws it."""
        return as_arrays(self.sampler(key), self.kind, "sample returns")

    def coefficients(self, theta: Theta) -> Coefficients:
        """The user's arrays, and what the user's functions return."""
        found = {name: _of(value, theta, self.kind) for name, value in self.given.items()}
        hessian = found["P"]
        bounds = ConstraintSet(found["l"], found["u"], self.lengths)
        return Coefficients((hessian + hessian.T) / 2, found["q"], found["A"], bounds)


class StockedFunctionProgramme(FunctionProgramme, StockedProblem):  # pyright: ignore[reportIncompatibleVariableOverride]
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


def make_programme(
    P: Coefficient = None,
    q: Coefficient = None,
    A: Coefficient = None,
    l: Coefficient = None,  # noqa: E741
    u: Coefficient = None,
    b: Coefficient = None,
    cones: Mapping[str, int | Sequence[int]] | None = None,
    thetas: Theta | str | Path | None = None,
    sample: Callable[[Array], Theta] | None = None,
    shares: tuple[float, float, float, float] = (0.3, 0.2, 0.35, 0.15),
    groups: Any = None,
    ordered: bool = True,
    relative: float = 1.0,
    precision: Literal["float32", "float64"] = "float64",
    name: str = "programme",
) -> Programme:
    """Make a quadratic or conic programme from arrays and functions.

    It minimises `x'Px / 2 + q'x` where `l <= A x <= u`, or where `A x + s = b` with `s` in a
    product of cones. Each of the arguments is an array, a SciPy sparse matrix, or a function of
    theta. What no theta changes is factored once, whether it is an array or a function.

    **Arguments:**

    - `P`: the quadratic part, symmetric and positive semidefinite; none: the objective is linear.
    - `q`: the linear part.
    - `A`: the constraints' matrix.
    - `l`, `u`: the constraints' bounds; infinite where there are none, equal for an equality.
    - `b`, `cones`: instead of bounds, the conic form. `cones` says how many rows are `"zero"` (of
      equalities), `"nonnegative"` and, for each cone, `"second_order"`, in this order. Beside
      `l` and `u`, the last rows may be `"second_order"`: `u - A x` is in the cones.
    - `thetas`, `sample`, `shares`, `groups`, `ordered`: where instances come from, as for
      `make_problem`.
    - `relative`: the relative part of a tolerance, as a multiple of its absolute part; 1 as OSQP's
      defaults, 0 for absolute residuals.
    - `precision`: what is computed in.
    - `name`: what messages and reports call it.

    **Returns:** a `Programme`. Its point has the variables `x`, the constraints' image `z` and the
    multipliers `y`; its loss is the largest residual.

    **Raises:** `surestep.errors.ProblemError` if an argument cannot be what it should be.

    **Example:** the nearest point of a box.

    ```python
    import jax
    import jax.numpy as jnp
    import surestep as ss

    problem = ss.make_programme(
        P=jnp.eye(3), q=lambda theta: -theta, A=jnp.eye(3), l=-jnp.ones(3), u=jnp.ones(3),
        sample=lambda key: jax.random.normal(key, (3,)),
    )
    ```
    """
    if (thetas is None) == (sample is None):
        raise ProblemError(
            "say where instances come from: either thetas (instances you have, stacked along "
            "their first axis, or an .npz file of them) or sample (a function of a random key)"
        )
    if precision not in ("float32", "float64"):
        raise ProblemError(f"precision must be 'float32' or 'float64', not {precision!r}")
    if not relative >= 0:
        raise ProblemError(f"relative must be at least 0, not {relative}")
    if A is None or q is None:
        raise ProblemError("a programme needs q and A (P may be left out, and is 0 then)")
    bounds, lengths = _bounds(l, u, b, cones)
    given = {"P": P, "q": q, "A": A} | bounds
    if thetas is not None:
        stacked = stacked_instances(thetas, precision)
        require_shares(shares)
        few = instance(stacked, slice(0, _LOOKED))
        sampler: Callable[[Array], Theta] = no_sampler
    else:
        if groups is not None:
            raise ProblemError("groups are those of recorded instances (thetas), not of sample")
        require_callable("sample", sample, ("key",))
        assert sample is not None
        sampler, stacked = sample, None
        keys = jax.random.split(jax.random.key(0), _LOOKED)
        with jax.enable_x64(precision == "float64"):
            drawn = jax.vmap(lambda key: as_arrays(sample(key), precision, "sample returns"))
            few = jax.jit(drawn)(keys)
    with jax.enable_x64(precision == "float64"):
        found, counts = _settled(given, few, precision, lengths)
        equal = _equal(found, few, precision, lengths, counts[1])
    basic = (found, sampler, counts, equal, lengths, float(relative), precision, name)
    if stacked is None:
        return FunctionProgramme(*basic)
    together, about = look_at(stacked, groups, ordered)
    data = (stacked, shares, jnp.asarray(together, jnp.int32), about)
    return StockedFunctionProgramme(*basic, *data)


_LOOKED = 8
"""On how many instances it is seen which rows are equalities."""


def _bounds(l: Any, u: Any, b: Any, cones: Any) -> tuple[dict[str, Any], tuple[int, ...]]:  # noqa: E741
    """Lower and upper bounds from either form, and the second-order cones."""
    wrong = sorted(set(cones or ()) - set(_CONES))
    if wrong:
        raise ProblemError(f"cones are {', '.join(_CONES)}, not {', '.join(wrong)}")
    asked = (cones or {}).get("second_order", ())
    lengths = (asked,) if isinstance(asked, int) else tuple(int(length) for length in asked)
    if b is None and l is not None and u is not None:
        if set(cones or ()) - {"second_order"}:
            raise ProblemError("beside l and u cones are second_order: bounds say the others")
        return {"l": l, "u": u}, lengths
    if (b is None) != (cones is None):
        raise ProblemError("the conic form needs both b and cones")
    if b is None or cones is None:
        raise ProblemError("say the constraints' bounds l and u, or b and cones")
    if l is not None or u is not None:
        raise ProblemError("give either the bounds l and u, or b and cones")
    zero, nonnegative = int(cones.get("zero", 0)), int(cones.get("nonnegative", 0))
    rows = zero + nonnegative + sum(lengths)
    first = np.arange(rows) < zero

    def lower(offset: Any) -> Any:
        return jnp.where(first, offset, -jnp.inf)

    def checked(offset: Any) -> Any:
        offset = _dense(offset)
        if np.shape(offset) != (rows,):
            raise ProblemError(f"b has the shape {np.shape(offset)}, and the cones {rows} rows")
        return offset

    if callable(b):
        return {"l": lambda theta: lower(checked(b(theta))), "u": b}, lengths
    return {"l": lower(checked(b)), "u": b}, lengths


def _settled(
    given: Mapping[str, Any], few: Theta, kind: str, lengths: tuple[int, ...]
) -> tuple[dict[str, Any], tuple[int, int]]:
    """Functions that depend on nothing as arrays; all shapes checked."""
    theta = instance(few, 0)
    first = {name: _of(value, theta, kind) for name, value in given.items() if value is not None}
    shape = np.shape(first["A"])
    if len(shape) != 2:
        raise ProblemError(f"A must be a matrix, not an array of the shape {shape}")
    rows, size = shape
    require_cones(lengths, rows)
    given = dict(given)
    if given["P"] is None:
        given["P"], first["P"] = np.zeros((size, size)), jnp.zeros((size, size))
    wanted = {"P": (size, size), "q": (size,), "A": shape, "l": (rows,), "u": (rows,)}
    for name, expected in wanted.items():
        found = np.shape(first[name])
        if found != expected:
            raise ProblemError(f"{name} has the shape {found}, not {expected} as A asks for")
    settled = {}
    for name, value in given.items():
        function = callable(value)
        if function and depends(lambda theta, value=value: _of(value, theta, kind), theta):
            settled[name] = value
        else:
            settled[name] = jnp.asarray(first[name])
    _require_convex(settled["P"])
    return settled, (size, rows)


def _require_convex(hessian: Any) -> None:
    if callable(hessian):
        return
    values = np.linalg.eigvalsh(np.asarray((hessian + hessian.T) / 2, np.float64))
    if values.size and values[0] < -1e-9 * max(1.0, values[-1]):
        raise ProblemError(
            f"P must be positive semidefinite: its smallest eigenvalue is {values[0]:.3g}"
        )


def _equal(
    found: Mapping[str, Any], few: Theta, kind: str, lengths: tuple[int, ...], rows: int
) -> tuple[int, ...]:
    """Rows whose bounds agree on all instances that are looked at."""
    number = jax.tree.leaves(few)[0].shape[0]
    intervals = rows - sum(lengths)
    same = np.ones(intervals, bool)
    for i in range(number):
        theta = instance(few, i)
        low, high = (np.asarray(_of(found[name], theta, kind))[:intervals] for name in ("l", "u"))
        if np.any(low > high):
            raise ProblemError(
                f"l is above u in row {int(np.argmax(low > high))} of instance {i}: no point "
                "meets that constraint"
            )
        same &= low == high
    return tuple(np.flatnonzero(same).tolist())


def _shared(value: Any) -> np.ndarray | None:
    return None if callable(value) else np.asarray(value)


def _of(value: Any, theta: Theta, kind: str) -> Array:
    """A coefficient on an instance, in the programme's precision."""
    found = _dense(value(theta) if callable(value) else value)
    return as_arrays(found if isinstance(found, jax.Array) else np.asarray(found, float), kind)


def _dense(value: Any) -> Any:
    """A sparse matrix as an array."""
    return value.toarray() if hasattr(value, "toarray") else value
