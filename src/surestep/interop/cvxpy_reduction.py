"""What CVXPY's own reduction of a parametrised problem comes to, as arrays and affine maps.

CVXPY writes a problem that follows its rules (DPP) as a conic programme whose numbers are affine in
the parameters. These maps are taken from it once; instances never go through CVXPY again.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse
from jax.experimental.sparse import BCOO
from jaxtyping import Array, Float, Int

from surestep.base.errors import ProblemError
from surestep.base.lazy import slow_import
from surestep.problem import Theta

_DENSE = 2_000_000
"""Maps with more entries are kept sparse."""

_SYMMETRIC = ("symmetric", "PSD", "NSD")


@dataclasses.dataclass(frozen=True, eq=False)
class Layout:
    """Where each parameter's numbers stand in the one vector that CVXPY multiplies."""

    names: tuple[str, ...]
    picked: tuple[tuple[np.ndarray, ...] | None, ...]
    """Which entries are read, for parameters that are symmetric or diagonal."""

    def __call__(self, theta: Theta) -> Float[Array, " number"]:
        """All parameters as one vector."""
        values = [jnp.asarray(theta[name]) for name in self.names]
        taken = [
            jnp.ravel(value.T) if places is None else value[places]
            for value, places in zip(values, self.picked, strict=True)
        ]
        return jnp.concatenate(taken)


class Affine:
    """An array of which some entries are affine in the parameters."""

    def __init__(
        self, layout: Layout, matrix: Any, offset: np.ndarray, places: np.ndarray | None = None
    ) -> None:
        self._layout, self._offset, self._places = layout, offset, places
        small = np.prod(matrix.shape) <= _DENSE
        self._matrix = matrix.toarray() if small else matrix.tocoo()
        self._compiled = jax.jit(self._evaluate)

    def __call__(self, theta: Theta) -> Array:
        """The array of an instance."""
        return self._compiled(theta)

    def _evaluate(self, theta: Theta) -> Array:
        given = self._layout(theta)
        offset = jnp.asarray(self._offset, given.dtype)
        moved = self._product(given)
        if self._places is None:
            return offset + moved
        return offset.ravel().at[self._places].add(moved).reshape(offset.shape)

    def _product(self, given: Array) -> Array:
        matrix = self._matrix
        if isinstance(matrix, np.ndarray):
            return jnp.asarray(matrix, given.dtype) @ given
        places = jnp.asarray(np.stack([matrix.row, matrix.col], axis=1))
        return BCOO((jnp.asarray(matrix.data, given.dtype), places), shape=matrix.shape) @ given


Coefficient = np.ndarray | Affine


@dataclasses.dataclass(frozen=True, eq=False)
class Reduction:
    """A programme's coefficients, and how its points read in the words of the CVXPY problem."""

    hessian: Coefficient
    linear: Coefficient
    constant: Coefficient
    matrix: Coefficient
    lower: Coefficient
    upper: Coefficient
    cones: tuple[int, ...]
    maximised: bool
    variables: dict[str, Int[np.ndarray, "..."]]
    """For each variable, where in the programme's `x` its entries are; -1 where they are 0."""
    multipliers: tuple[Int[np.ndarray, "..."] | None, ...]
    """For each constraint, which of CVXPY's rows its multipliers are; None: it has no such."""
    row_of: Int[np.ndarray, " row"]
    """For each of CVXPY's rows, the programme's row that it became."""
    side_of: Int[np.ndarray, " row"]
    """1 where it is an upper bound there, -1 where a lower one, 0 where its sign is free."""


def reduced(problem: Any, cp: Any) -> Reduction:
    """Reduce a CVXPY problem whose parameters have some values."""
    data, chain, inverse = problem.get_problem_data(cp.CLARABEL, enforce_dpp=True)
    conic = data["param_prob"]
    _require_known(conic)
    layout, leaves = _layout(problem, conic, chain, inverse)
    size, rows = conic.x.size, conic.constr_size
    fixed = conic.param_id_to_col[-1]
    order = [k for k in range(fixed + 1) if k != fixed]
    table = _Table(layout, order, fixed)
    zero, cones = int(conic.cone_dims.zero), tuple(int(n) for n in conic.cone_dims.soc)
    entries = scipy.sparse.csr_array(conic.A).tocoo()
    tall = _coo(entries.row % max(rows, 1), entries.row // max(rows, 1), entries)
    upper_from, lower_from = _paired(tall, rows, size, zero, sum(cones), fixed)
    row_of, side_of = _placed(upper_from, lower_from, rows, zero, sum(cones))
    linear = scipy.sparse.csr_array(conic.q)
    bounds = scipy.sparse.csr_array(
        (tall.value[tall.column == size], (tall.row[tall.column == size],
         tall.number[tall.column == size])), shape=(rows, fixed + 1),
    )  # fmt: skip
    inside = (tall.column < size) & np.isin(tall.row, upper_from)
    places = row_of[tall.row[inside]] * size + tall.column[inside]
    lower = scipy.sparse.lil_array((len(upper_from), fixed + 1))
    lower[:zero] = bounds[:zero]
    has = np.flatnonzero(lower_from >= 0)
    lower[has] = -1 * bounds[lower_from[has]]
    free = np.ones(len(upper_from), bool)
    free[:zero], free[has] = False, False
    return Reduction(
        hessian=table.scattered(*_hessian(conic, size), (size, size)),
        linear=table.vector(linear[:size]),
        constant=table.vector(linear[size:]),
        matrix=table.scattered(
            places, tall.number[inside], -tall.value[inside], (len(upper_from), size)
        ),
        lower=table.vector(lower.tocsr(), np.where(free, -np.inf, 0.0)),
        upper=table.vector(bounds[upper_from]),
        cones=cones,
        maximised=isinstance(problem.objective, cp.Maximize),
        variables=_variables(problem, conic, leaves),
        multipliers=_multipliers(problem, conic, chain, inverse, cp),
        row_of=row_of,
        side_of=side_of,
    )


def _require_known(conic: Any) -> None:
    """Refuse cones that programmes do not have, and forms of the reduction that are not read."""
    dims = conic.cone_dims
    others = {
        "exponential": dims.exp,
        "semidefinite": len(dims.psd),
        "power": len(dims.p3d) + len(getattr(dims, "pnd", ())),
    }
    needed = [f"{number} {name}" for name, number in others.items() if number]
    if needed:
        raise ProblemError(
            f"CVXPY writes this problem with {' and '.join(needed)} cones: programmes have linear "
            "equalities and inequalities, second-order cones and a quadratic objective"
        )
    assert conic.lower_bounds is None and not getattr(conic, "dir_cones", None)


@dataclasses.dataclass(frozen=True)
class _Coo:
    """Entries by the row of the constraints, their column, and the number that they belong to."""

    row: np.ndarray
    column: np.ndarray
    number: np.ndarray
    value: np.ndarray


def _coo(row: np.ndarray, column: np.ndarray, entries: Any) -> _Coo:
    kept = entries.data != 0
    return _Coo(row[kept], column[kept], entries.col[kept], entries.data[kept])


@dataclasses.dataclass(frozen=True)
class _Table:
    """Makes arrays of what depends on no parameter, and maps of the rest."""

    layout: Layout
    order: list[int]
    fixed: int

    def vector(self, rows: Any, base: np.ndarray | float = 0.0) -> Coefficient:
        """A vector, one row of the table an entry."""
        offset = rows[:, [self.fixed]].toarray().ravel() + base
        moving = rows[:, self.order]
        moving.eliminate_zeros()
        return Affine(self.layout, moving, offset) if moving.nnz else offset

    def scattered(
        self, places: np.ndarray, numbers: np.ndarray, values: np.ndarray, shape: tuple[int, int]
    ) -> Coefficient:
        """A matrix, from its entries' places."""
        still = numbers == self.fixed
        offset = np.zeros(shape)
        np.add.at(offset.reshape(-1), places[still], values[still])
        if still.all():
            return offset
        used, rows = np.unique(places[~still], return_inverse=True)
        moving = scipy.sparse.csr_array(
            (values[~still], (rows, numbers[~still])), shape=(len(used), self.fixed + 1)
        )
        return Affine(self.layout, moving[:, self.order], offset, used)


def _hessian(conic: Any, size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The quadratic part's entries, all of which CVXPY gives."""
    if conic.P is None:
        return np.zeros(0, int), np.zeros(0, int), np.zeros(0)
    entries = scipy.sparse.csr_array(conic.P).tocoo()
    # By columns in CVXPY; the matrix is symmetric.
    return entries.row % size * size + entries.row // size, entries.col, entries.data


def _paired(
    tall: _Coo, rows: int, size: int, zero: int, conic: int, fixed: int
) -> tuple[Int[np.ndarray, " kept"], Int[np.ndarray, " kept"]]:
    """Which rows give the programme's rows and upper bounds, and which give lower bounds (or -1).

    Two inequalities with opposite rows are one row with two bounds: splitting methods then have
    half the rows, and better conditioned ones.
    """
    inside = tall.column < size
    varying = np.zeros(rows, bool)
    varying[tall.row[inside & (tall.number != fixed)]] = True
    still = inside & (tall.number == fixed)
    matrix = scipy.sparse.csr_array(
        (tall.value[still], (tall.row[still], tall.column[still])), shape=(rows, size)
    )
    matrix.sort_indices()
    waiting: dict[bytes, list[int]] = {}
    upper: list[int] = []
    lower: dict[int, int] = {}
    for i in range(zero, rows - conic):
        part = slice(matrix.indptr[i], matrix.indptr[i + 1])
        columns, values = matrix.indices[part].tobytes(), np.asarray(matrix.data[part])
        opposite = waiting.get(columns + (-1.0 * values).tobytes())
        if not varying[i] and opposite:
            lower[opposite.pop(0)] = i
            continue
        if not varying[i]:
            waiting.setdefault(columns + values.tobytes(), []).append(i)
        upper.append(i)
    order = [*range(zero), *upper, *range(rows - conic, rows)]
    return np.array(order, int), np.array([lower.get(i, -1) for i in order], int)


def _placed(
    upper: np.ndarray, lower: np.ndarray, rows: int, zero: int, conic: int
) -> tuple[Int[np.ndarray, " row"], Int[np.ndarray, " row"]]:
    """Where CVXPY's rows are, and on which side."""
    row_of, side_of = np.zeros(rows, int), np.ones(rows, int)
    row_of[upper] = np.arange(len(upper))
    has = np.flatnonzero(lower >= 0)
    row_of[lower[has]], side_of[lower[has]] = has, -1
    side_of[:zero], side_of[rows - conic :] = 0, 0
    return row_of, side_of


def _layout(
    problem: Any, conic: Any, chain: Any, inverse: Sequence[Any]
) -> tuple[Layout, dict[int, Any]]:
    """Where parameters are; and by which leaves CVXPY replaced the problem's variables."""
    parameters: dict[int, int] = {p.id: p.id for p in problem.parameters()}
    leaves: dict[int, Any] = {}
    for reduction, told in zip(chain.reductions, inverse, strict=True):
        if type(reduction).__name__ == "CvxAttr2Constr" and told:
            leaves = dict(told[0])
            replaced = getattr(reduction, "param_id_map", {})
            parameters |= {old: new[0] for old, new in replaced.items()}
    found = []
    for parameter in problem.parameters():
        place = parameters[parameter.id]
        whole = conic.param_id_to_size[place] == parameter.size
        picked = None if whole else _picked(parameter)
        found.append((conic.param_id_to_col[place], parameter.name(), picked))
    found.sort(key=lambda part: part[0])
    return Layout(tuple(f[1] for f in found), tuple(f[2] for f in found)), leaves


def _picked(leaf: Any) -> tuple[np.ndarray, ...]:
    """The entries that stand for all of a symmetric or diagonal leaf, in CVXPY's order."""
    size = leaf.shape[-1]
    if any(leaf.attributes[kind] for kind in _SYMMETRIC):
        return np.triu_indices(size)
    return np.arange(size), np.arange(size)


def _variables(
    problem: Any, conic: Any, leaves: dict[int, Any]
) -> dict[str, Int[np.ndarray, "..."]]:
    found = {}
    for variable in problem.variables():
        leaf = leaves.get(variable.id, variable)
        first = conic.var_id_to_col[leaf.id]
        numbers = first + np.arange(leaf.size)
        if leaf.size == variable.size and not _folded(variable):
            places = numbers.reshape(variable.shape, order="F")
        elif variable.attributes["sparsity"]:
            places = np.full(variable.shape, -1)
            places[variable.sparse_idx] = numbers
        else:
            places = np.full(variable.shape, -1)
            picked = _picked(variable)
            places[picked] = numbers
            places = np.maximum(places, places.T)
        found[variable.name()] = places
    return found


def _folded(leaf: Any) -> bool:
    return any(leaf.attributes[kind] for kind in (*_SYMMETRIC, "diag", "sparsity"))


def _multipliers(
    problem: Any, conic: Any, chain: Any, inverse: Sequence[Any], cp: Any
) -> tuple[Int[np.ndarray, "..."] | None, ...]:
    """Rows by constraint: CVXPY says itself where numbers that are the rows' own would end."""
    numbers, first = {}, 0
    for constraint in conic.constraints:
        numbers[constraint.id] = np.arange(first, first + constraint.size) + 1.0
        first += constraint.size
    kind = slow_import("cvxpy.reductions.solution").Solution
    solution = kind("optimal", 0.0, {conic.x.id: np.ones(conic.x.size)}, numbers, {})
    for reduction, told in reversed(list(zip(chain.reductions, inverse, strict=True))[:-1]):
        solution = reduction.invert(solution, told)
    found: list[Any] = []
    for constraint in problem.constraints:
        value = solution.dual_vars.get(constraint.id)
        plain = isinstance(value, np.ndarray | float) and not isinstance(constraint, cp.SOC)
        found.append(np.reshape(np.asarray(value, int) - 1, constraint.shape) if plain else None)
    return tuple(found)
