"""Solvers of other libraries for programmes: OSQP, Clarabel and SCS.

Each is set up once and then given what changes. All stop at our own measure: OSQP's tolerances mean
the same residuals, and what the others return is looked at. Points are triples as everybody's.
"""

import abc
import dataclasses
import importlib.util
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import scipy.sparse
from jaxtyping import Float

from surestep.base.lazy import slow_import
from surestep.problem import Coefficients, Point, Programme, Theta, working_precision
from surestep.train import External

_MARGIN = 0.999
"""Solvers count their residuals with rounding of their own."""

_ITERATIONS = 100_000
_TIGHTER = 10.0 ** -np.arange(7)
"""What a tolerance is multiplied by, one after the other, while our measure is not met."""


def programme_outsiders(problem: Programme) -> dict[str, External]:
    """Those that are installed and take such programmes."""
    found: dict[str, External] = {}
    if _installed("osqp") and not problem.cones:
        found["OSQP"] = Osqp(problem)
        found["OSQP from the last solution"] = Osqp(problem, warm=True)
    if _installed("clarabel"):
        found["Clarabel"] = Clarabel(problem)
    if _installed("scs") and problem.sizes[1]:  # it takes none without constraints
        found["SCS"] = Scs(problem)
    return found


def _installed(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


@dataclasses.dataclass(frozen=True)
class Numbers:
    """An instance's coefficients in NumPy."""

    hessian: Float[np.ndarray, "n n"]
    linear: Float[np.ndarray, " n"]
    matrix: Float[np.ndarray, "row n"]
    lower: Float[np.ndarray, " row"]
    upper: Float[np.ndarray, " row"]


class _Outsider(abc.ABC):
    """What opponents share: coefficients in NumPy, of which shared matrices are computed once."""

    def __init__(self, problem: Programme) -> None:
        self.problem = problem
        hessian, matrix = problem.shared_hessian, problem.shared_matrix
        self.shared = hessian is not None and matrix is not None
        self._matrices = (np.asarray(hessian), np.asarray(matrix)) if self.shared else None
        shared = self.shared

        @eqx.filter_jit
        def coefficients(theta: Theta) -> tuple[Any, ...]:
            found = problem.coefficients(theta)
            vectors = found.linear, found.allowed.lower, found.allowed.upper
            return vectors if shared else (*vectors, found.hessian, found.matrix)

        self._coefficients = coefficients

    def numbers(self, theta: Theta) -> Numbers:
        """The coefficients of an instance."""
        with working_precision(self.problem):
            found = [np.asarray(part, np.float64) for part in self._coefficients(theta)]
        linear, lower, upper = found[:3]
        hessian, matrix = self._matrices or found[3:]
        return Numbers(hessian, linear, matrix, lower, upper)

    @abc.abstractmethod
    def __call__(self, theta: Theta, target: float, accuracy: float) -> Point:
        """Bring all residuals below a target."""


class Osqp(_Outsider):
    """OSQP: its criterion is ours, so its tolerances are the target.

    Warm, it starts from the solution of the last call; cold, from zeros. It keeps its penalty.
    """

    def __init__(self, problem: Programme, warm: bool = False) -> None:
        super().__init__(problem)
        self.warm = warm
        self._solver: Any = None

    def __call__(self, theta: Theta, target: float, accuracy: float) -> Point:
        """Update, solve, and read what it takes the constraints for."""
        del accuracy
        found = self.numbers(theta)
        eps = {"eps_abs": _MARGIN * target, "eps_rel": _MARGIN * target * self.problem.relative}
        if self._solver is None or not self.shared:
            self._solver = self._set_up(found, eps)
        else:
            self._solver.update_settings(**eps)
            self._solver.update(q=found.linear, l=found.lower, u=found.upper)
        solved = self._solver.solve(raise_error=False)
        x, y = np.asarray(solved.x), np.asarray(solved.y)
        return {"x": x, "z": np.clip(found.matrix @ x + y, found.lower, found.upper), "y": y}

    def _set_up(self, found: Numbers, eps: dict[str, float]) -> Any:
        solver = slow_import("osqp").OSQP()
        solver.setup(
            P=scipy.sparse.csc_matrix(np.triu(found.hessian)), q=found.linear,
            A=scipy.sparse.csc_matrix(found.matrix), l=found.lower, u=found.upper,
            verbose=False, polishing=False, check_dualgap=False, max_iter=_ITERATIONS,
            warm_starting=self.warm, **eps,
        )  # fmt: skip
        return solver


class _Conic(_Outsider):
    """Solvers of `A x + s = b`: rows with two bounds become two, equalities come first."""

    def __init__(self, problem: Programme) -> None:
        super().__init__(problem)
        self._sessions: dict[Any, Any] = {}
        self._factors: dict[float, int] = {}

        @eqx.filter_jit
        def finish(theta: Theta, x: Any, y: Any) -> tuple[Any, Any]:
            found: Coefficients = problem.coefficients(theta)
            point = {"x": x, "z": found.allowed.project(found.matrix @ x + y), "y": y}
            return point, problem.loss(point, theta)

        self._finish = finish

    def __call__(self, theta: Theta, target: float, accuracy: float) -> Point:
        """Solve, with tighter tolerances if the point misses the target; later calls keep them."""
        del accuracy
        found = self.numbers(theta)
        rows = _Rows.of(found, self.problem)
        point: Point = None
        for i in range(self._factors.get(target, 0), len(_TIGHTER)):
            self._factors[target] = i
            x, y = self._solved(found, rows, float(_MARGIN * target * _TIGHTER[i]))
            point, loss = self._checked(theta, x, rows.back(y))
            if loss < target:
                break
        return point

    def _checked(self, theta: Theta, x: np.ndarray, y: np.ndarray) -> tuple[Point, float]:
        with working_precision(self.problem):
            kind = self.problem.precision
            point, loss = self._finish(theta, jnp.asarray(x, kind), jnp.asarray(y, kind))
            return point, float(loss)

    def _solved(
        self, found: Numbers, rows: "_Rows", tolerance: float
    ) -> tuple[np.ndarray, np.ndarray]:
        """With a solver that has been set up for such rows and this tolerance."""
        key = (tolerance, rows.signs.tobytes(), rows.rows.tobytes())
        session = self._sessions.get(key) if self.shared else None
        if session is None:
            session = self._sessions[key] = self._set_up(found, rows, tolerance)
            return self._read(session)
        self._update(session, found.linear, rows.right_side(found))
        return self._read(session)

    @abc.abstractmethod
    def _set_up(self, found: Numbers, rows: "_Rows", tolerance: float) -> Any:
        """A solver for these numbers."""

    @abc.abstractmethod
    def _update(self, session: Any, linear: np.ndarray, right: np.ndarray) -> None:
        """The same solver for other vectors."""

    @abc.abstractmethod
    def _read(self, session: Any) -> tuple[np.ndarray, np.ndarray]:
        """Solve, and return the variables and the multipliers."""


@dataclasses.dataclass(frozen=True)
class _Rows:
    """The rows of the conic form: which of ours, and whether turned round."""

    equal: int
    rows: np.ndarray
    signs: np.ndarray
    cones: tuple[int, ...]
    total: int

    @classmethod
    def of(cls, found: Numbers, problem: Programme) -> "_Rows":
        total = len(found.upper)
        intervals = total - sum(problem.cones)
        free = np.arange(total) < intervals
        equal = np.array(problem.equalities, int)
        free[equal] = False
        upper = np.flatnonzero(free & np.isfinite(found.upper))
        lower = np.flatnonzero(free & np.isfinite(found.lower))
        parts = [equal, upper, lower, np.arange(intervals, total)]
        signs = np.ones(sum(map(len, parts)))
        first = len(equal) + len(upper)
        signs[first : first + len(lower)] = -1
        return cls(len(equal), np.concatenate(parts), signs, problem.cones, total)

    @property
    def nonnegative(self) -> int:
        """How many inequalities there are."""
        return len(self.rows) - self.equal - sum(self.cones)

    def matrix(self, found: Numbers) -> scipy.sparse.csc_matrix:
        return scipy.sparse.csc_matrix(self.signs[:, None] * found.matrix[self.rows])

    def right_side(self, found: Numbers) -> np.ndarray:
        return np.where(self.signs > 0, found.upper[self.rows], -found.lower[self.rows])

    def back(self, y: np.ndarray) -> np.ndarray:
        """The multipliers of our rows."""
        return np.bincount(self.rows, self.signs * y, self.total)


class Clarabel(_Conic):
    """Clarabel, an interior-point method, which has no warm start."""

    def _set_up(self, found: Numbers, rows: _Rows, tolerance: float) -> Any:
        library = slow_import("clarabel")
        settings = library.DefaultSettings()
        settings.verbose = False
        settings.presolve_enable = False  # or nothing could be updated
        settings.chordal_decomposition_enable = False
        settings.max_threads = 1
        settings.tol_feas = settings.tol_gap_abs = settings.tol_gap_rel = tolerance
        cones = [library.ZeroConeT(rows.equal), library.NonnegativeConeT(rows.nonnegative)]
        cones += [library.SecondOrderConeT(length) for length in rows.cones]
        return library.DefaultSolver(
            scipy.sparse.csc_matrix(np.triu(found.hessian)), found.linear, rows.matrix(found),
            rows.right_side(found), [c for c in cones if c.dim], settings,
        )  # fmt: skip

    def _update(self, session: Any, linear: np.ndarray, right: np.ndarray) -> None:
        session.update(q=linear, b=right)

    def _read(self, session: Any) -> tuple[np.ndarray, np.ndarray]:
        solved = session.solve()
        return np.array(solved.x), np.array(solved.z)


class Scs(_Conic):
    """SCS, a splitting method with a homogeneous embedding; each call starts from zeros."""

    def _set_up(self, found: Numbers, rows: _Rows, tolerance: float) -> Any:
        data = {
            "P": scipy.sparse.csc_matrix(np.triu(found.hessian)), "A": rows.matrix(found),
            "b": rows.right_side(found), "c": found.linear,
        }  # fmt: skip
        cones = {"z": rows.equal, "l": rows.nonnegative, "q": list(rows.cones)}
        return slow_import("scs").SCS(
            data, cones, verbose=False, eps_abs=tolerance,
            eps_rel=tolerance * self.problem.relative, max_iters=_ITERATIONS,
        )  # fmt: skip

    def _update(self, session: Any, linear: np.ndarray, right: np.ndarray) -> None:
        session.update(b=right, c=linear)

    def _read(self, session: Any) -> tuple[np.ndarray, np.ndarray]:
        solved = session.solve(warm_start=False)
        return np.array(solved["x"]), np.array(solved["y"])
