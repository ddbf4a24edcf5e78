"""Splitting for quadratic and conic programmes: one linear system, then one projection."""

import dataclasses
from typing import ClassVar

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Scalar

from surestep.base.errors import ConfigurationError
from surestep.base.lazy import slow_import
from surestep.problem import (
    Coefficients,
    ConstraintSet,
    Oracle,
    Programme,
    Theta,
    Vector,
    working_precision,
)
from surestep.rules.base import Fixed, Need, Rule, State, product

_INDEPENDENT = 1e-10
"""Rows whose part beyond the others is smaller, relative to the largest, depend on these."""


class Matrices(eqx.Module):
    """What the linear systems of all iterations come to, once matrices and penalties are known.

    With `w` what the split rows aim at, and `k` the linear term and the equalities' bounds, the
    next `(A x) = turn @ w + shift @ k`; the point and the equalities' multipliers are
    `lift @ w + base @ k`.
    """

    turn: Fixed
    shift: Fixed
    lift: Fixed
    base: Fixed

    @classmethod
    def of(
        cls,
        hessian: Float[Array, "n n"],
        split: Float[Array, "split n"],
        equal: Float[Array, "equal n"],
        penalties: Float[Array, " split"],
    ) -> "Matrices":
        """Solve for every right-hand side at once.

        The minimiser of `x'Px / 2 + q'x + sum(penalties (split x - w)^2) / 2` where the equalities
        hold. They are added to the matrix, which changes nothing where they hold and makes it
        regular.
        """
        weighted = split.T * penalties
        scale = jnp.mean(penalties) if split.shape[0] else jnp.ones(())
        bent = hessian + weighted @ split + scale * equal.T @ equal
        inverse = jnp.linalg.inv(bent)
        crossed = inverse @ equal.T
        small = jnp.linalg.inv(equal @ crossed)
        fitted = crossed @ small  # from the equalities' bounds to the point
        inner = inverse - fitted @ crossed.T
        # Multipliers of the equalities: those of the added squares cancel where they hold.
        rows, size = equal.shape
        pushed, pulled = inner @ weighted, fitted.T @ weighted
        lift = jnp.concatenate([pushed, pulled])
        corner = scale * jnp.eye(rows, dtype=hessian.dtype) - small
        base = jnp.block([[-inner, fitted], [-fitted.T, corner]])
        return cls(*map(Fixed, (split @ pushed, split @ base[:size], lift, base)))

    def cast(self, kind: str) -> "Matrices":
        """In another precision where iterations need them, in the same one for the ends."""
        return dataclasses.replace(self, turn=Fixed(self.turn.array.astype(kind)))


class SplitState(State):
    """The split rows' image plus their scaled multipliers, and what an instance keeps."""

    sum: Float[Array, " split"]
    shift: Float[Array, " split"]
    known: Float[Array, " known"]
    """The linear term, then the equalities' bounds."""
    allowed: ConstraintSet
    """What the split rows must lie in."""
    own: Matrices | None
    """The instance's matrices, where they are not shared."""
    iteration: Int[Array, ""]


class ProgrammeADMM(Rule):
    """ADMM for programmes, as OSQP does it, with equalities solved for and not iterated.

    Constraints are split off: a linear system makes the objective small near what they ask for,
    then a projection brings them into their set. Equalities belong to the linear system, so they
    hold in every iterate. Where no instance changes the matrices they are factored once: an
    iteration is then one product with a matrix of the split rows' size, and one projection.

    Every row may have a penalty of its own (a second-order cone has one for all its rows), and the
    first iterations relaxations of their own; both are learned. Whatever they are, the rule goes on
    with fixed penalties and the last relaxation, between 0.1 and 1.95, and so converges to a
    solution where there is one (Eckstein and Bertsekas, 1992).

    **Arguments:**

    - `log_penalty`: the logarithms of the penalties, one for all or one for each interval and each
      cone of the split rows; learned.
    - `relaxation`: how far beyond the linear system's image to go, one for all iterations or one
      for each of the first ones, of which the last stays; learned.
    - `split`, `equal`: which rows are split off, and which are equalities (independent ones).
    - `cones`: how many of the split rows, at their end, belong to each second-order cone.
    - `hessian`, `matrix`: `P` and `A` where all instances share them.
    - `single`: whether an iteration's product is computed in single precision.
    - `matrices`: what `prepare` computes.

    ```python
    import jax
    import jax.numpy as jnp
    import surestep as ss

    problem = ss.make_programme(
        P=jnp.eye(3), q=lambda theta: -theta, A=jnp.eye(3), l=-jnp.ones(3), u=jnp.ones(3),
        sample=lambda key: jax.random.normal(key, (3,)),
    )
    rule = ss.rules.ProgrammeADMM.of(problem, penalty=0.5)
    ```
    """

    needs: ClassVar[tuple[Need, ...]] = ("programme",)
    watches_loss: ClassVar[bool] = False

    log_penalty: Float[Array, ""] | Float[Array, " group"]
    relaxation: Float[Array, ""] | Float[Array, " iteration"]
    split: tuple[int, ...] = eqx.field(static=True)
    equal: tuple[int, ...] = eqx.field(static=True)
    cones: tuple[int, ...] = eqx.field(static=True, default=())
    hessian: Fixed | None = None
    matrix: Fixed | None = None
    single: bool = eqx.field(static=True, default=False)
    matrices: Matrices | None = None

    def __check_init__(self) -> None:
        """Refuse one matrix without the other."""
        if (self.hessian is None) != (self.matrix is None):
            raise ConfigurationError("P and A are either both given to the rule, or neither is")

    @classmethod
    def of(
        cls,
        problem: Programme,
        penalty: float = 0.1,
        relaxation: float = 1.6,
        theta: Theta | None = None,
    ) -> "ProgrammeADMM":
        """One penalty for all rows; equalities are found from the problem and an instance of it."""
        hessian, matrix = problem.shared_hessian, problem.shared_matrix
        shared = hessian is not None and matrix is not None
        equal = _independent(problem, theta)
        split = tuple(i for i in range(problem.sizes[1]) if i not in set(equal))
        with working_precision(problem):
            kind = jnp.dtype(problem.precision)
            return cls(
                jnp.asarray(np.log(penalty), kind),
                jnp.asarray(relaxation, kind),
                split,
                equal,
                problem.cones,
                Fixed(jnp.asarray(hessian, kind)) if shared else None,
                Fixed(jnp.asarray(matrix, kind)) if shared else None,
            )

    def prepare(self) -> "ProgrammeADMM":
        """With the matrices, where they are shared."""
        if self.hessian is None or self.matrix is None or self.matrices is not None:
            return self
        found = self._matrices(self.hessian.array, self.matrix.array)
        return dataclasses.replace(self, matrices=found)

    @property
    def groups(self) -> int:
        """How many intervals and cones there are: each may have a penalty of its own."""
        return len(self.split) - sum(self.cones) + len(self.cones)

    @property
    def penalties(self) -> Float[Array, " split"]:
        """One a split row: that of its interval or of its cone."""
        alone = self.groups - len(self.cones)
        lengths = np.array([*np.ones(alone, int), *self.cones], int)
        logs = jnp.broadcast_to(self.log_penalty, (len(lengths),))
        return jnp.exp(logs)[np.repeat(np.arange(len(lengths)), lengths)]

    def _matrices(self, hessian: Float[Array, "n n"], matrix: Float[Array, "row n"]) -> Matrices:
        split, equal = (np.array(rows, int) for rows in (self.split, self.equal))
        found = Matrices.of(hessian, matrix[split], matrix[equal], self.penalties)
        return found.cast("float32") if self.single else found

    def init(self, oracle: Oracle, x: Vector) -> SplitState:
        """From the constraints' image and multipliers at a point."""
        programme = _programme(oracle)
        coefficients = programme.coefficients(oracle.theta)
        oracle.spend(gradients=1)
        point = oracle.unravel(x)
        split, equal = (np.array(rows, int) for rows in (self.split, self.equal))
        own = None if self.hessian is not None else self._own(coefficients)
        allowed = coefficients.allowed
        bounds = ConstraintSet(allowed.lower[split], allowed.upper[split], self.cones)
        known = jnp.concatenate([coefficients.linear, allowed.upper[equal]])
        return SplitState(
            point["z"][split] + point["y"][split] / self.penalties,
            self._used(own).shift.array @ known,
            known,
            bounds,
            own,
            jnp.zeros((), jnp.int32),
        )

    def step(self, oracle: Oracle, state: SplitState) -> SplitState:
        """The linear system, relaxed; the projection is the next iteration's first act."""
        oracle.spend(gradients=1)
        inside = state.allowed.project(state.sum)
        image = product(self._used(state.own).turn.array, 2 * inside - state.sum) + state.shift
        moved = state.sum + self._relaxation(state.iteration) * (image - inside)
        return dataclasses.replace(state, sum=moved, iteration=state.iteration + 1)

    def point(self, state: SplitState) -> Vector:
        """The variables, the constraints' image and the multipliers, as one vector."""
        used = self._used(state.own)
        inside = state.allowed.project(state.sum)
        shown = used.lift.array @ (2 * inside - state.sum) + used.base.array @ state.known
        variables = shown.shape[0] - len(self.equal)
        rows = len(self.split) + len(self.equal)
        order = np.argsort(np.array([*self.split, *self.equal], int))
        bounds = state.known[state.known.shape[0] - len(self.equal) :]
        image = jnp.concatenate([inside, bounds])[order]
        multipliers = self.penalties * (state.sum - inside)
        both = jnp.concatenate([multipliers, shown[variables:]])[order]
        assert image.shape == (rows,)
        # In the order of the point's names.
        return jnp.concatenate([shown[:variables], both, image])

    def stationarity(
        self, oracle: Oracle, state: SplitState, step: float | Scalar
    ) -> tuple[Scalar, Vector]:
        """The largest residual, which is both."""
        del step
        oracle.spend(gradients=1)
        loss = oracle.unmetered_value(self.point(state))
        return loss, loss[None]

    def _own(self, coefficients: Coefficients) -> Matrices:
        return self._matrices(coefficients.hessian, coefficients.matrix)

    def _used(self, own: Matrices | None) -> Matrices:
        found = own if own is not None else self.prepare().matrices
        assert found is not None
        return found

    def _relaxation(self, iteration: Int[Array, ""]) -> Scalar:
        found = jnp.clip(self.relaxation, 0.1, 1.95)
        return found if found.ndim == 0 else found[jnp.minimum(iteration, found.shape[0] - 1)]


def _programme(oracle: Oracle) -> Programme:
    assert isinstance(oracle.problem, Programme)
    return oracle.problem


def _independent(problem: Programme, theta: Theta | None) -> tuple[int, ...]:
    """Equalities of which none follows from the others; the rest are split off."""
    rows = np.array(problem.equalities, int)
    if not rows.size:
        return ()
    matrix = problem.shared_matrix
    if matrix is None:
        if theta is None:
            raise ConfigurationError(
                "A differs from instance to instance: give ProgrammeADMM.of one instance (theta)"
            )
        matrix = np.asarray(problem.coefficients(theta).matrix)
    _, triangle, order = slow_import("scipy.linalg").qr(
        np.asarray(matrix)[rows].T, mode="economic", pivoting=True
    )
    sizes = np.abs(np.diag(triangle))
    kept = order[: int(np.sum(sizes > _INDEPENDENT * sizes[0]))]
    return tuple(sorted(int(row) for row in rows[kept]))
