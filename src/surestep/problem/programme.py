"""Programmes: a quadratic objective under linear constraints, equalities and cones.

A programme is a problem like any other. Its point is a triple: the variables `x`, what the
constraints take `A x` for (`z`, in their set), and their multipliers `y`. Its loss is how far the
triple is from solving the programme, as OSQP measures it: the largest residual. So all that is
said of losses (goals, first hits, quantiles) is said of residuals, and 0 is the minimum.
"""

import abc
from typing import ClassVar

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Scalar

from surestep.problem.base import Point, Problem, Theta
from surestep.problem.constraint_set import ConstraintSet
from surestep.problem.given import as_arrays

Numbers = Float[Array, "..."] | Float[np.ndarray, "..."]
"""A vector, of JAX or of NumPy."""


class Coefficients(eqx.Module):
    """One instance of a programme: `x'Px / 2 + q'x` under `A x` in a set.

    **Arguments:**

    - `hessian`: `P`, symmetric and positive semidefinite.
    - `linear`: `q`.
    - `matrix`: `A`.
    - `allowed`: what `A x` must lie in.

    **Example:**

    ```python
    box = ss.ConstraintSet(-jnp.ones(3), jnp.ones(3))
    found = ss.Coefficients(jnp.eye(3), -2 * jnp.ones(3), jnp.eye(3), box)
    print(found.objective(jnp.ones(3)), found.violation(3 * jnp.ones(3)))
    ```
    """

    hessian: Float[Array, "n n"]
    linear: Float[Array, " n"]
    matrix: Float[Array, "row n"]
    allowed: ConstraintSet

    def objective(self, x: Numbers) -> Scalar:
        """`x'Px / 2 + q'x`."""
        return 0.5 * jnp.vdot(x, self.hessian @ x) + jnp.vdot(self.linear, x)

    def violation(self, x: Numbers) -> Scalar:
        """How far the constraints are from being met: the largest distance of a row."""
        image = self.matrix @ x
        return jnp.max(jnp.abs(image - self.allowed.project(image)), initial=0.0)

    def residuals(self, point: Point, relative: float) -> Float[Array, " 3"]:
        """The primal, the dual and the multipliers' residual, in units of an absolute tolerance.

        As in OSQP, a tolerance is allowed to be `relative` times larger for every unit that the
        terms of a residual are large. The third one is 0 if multipliers fit to where `z` is in the
        set, which holds for every iterate of a splitting method.
        """
        x, z, y = point["x"], point["z"], point["y"]
        image, bent, pulled = self.matrix @ x, self.hessian @ x, self.matrix.T @ y
        primal = _largest(image - z) / (1 + relative * jnp.maximum(_largest(image), _largest(z)))
        terms = jnp.maximum(jnp.maximum(_largest(bent), _largest(pulled)), _largest(self.linear))
        dual = _largest(bent + self.linear + pulled) / (1 + relative * terms)
        normal = _largest(z - self.allowed.project(z + y)) / (1 + relative * _largest(z))
        return jnp.stack([primal, dual, normal])

    def gap(self, point: Point) -> Scalar:
        """The duality gap, `x'Px + q'x + support(y)`; multipliers are first made admissible."""
        x, y = point["x"], self.allowed.recede(point["y"])
        return jnp.vdot(x, self.hessian @ x) + jnp.vdot(self.linear, x) + self.allowed.support(y)


class Programme(Problem):
    """A family of quadratic or conic programmes.

    Subclass it and write three methods: `sample`, `coefficients` and `sizes`. Rules that look at
    the coefficients ask for this kind of problem. `make_programme` makes one from arrays and
    functions.

    **Example:** the nearest point of a box.

    ```python
    class Nearest(ss.Programme):
        def sample(self, key):
            return jax.random.normal(key, (3,))

        @property
        def sizes(self):
            return 3, 3

        def coefficients(self, theta):
            box = ss.ConstraintSet(-jnp.ones(3), jnp.ones(3))
            return ss.Coefficients(jnp.eye(3), -theta, jnp.eye(3), box)


    nearest = Nearest()
    theta = nearest.sample(jax.random.key(0))
    print(nearest.coefficients(theta).objective(theta))
    ```
    """

    relative: ClassVar[float] = 1.0
    """The relative part of a tolerance, as a multiple of its absolute part; 0: there is none."""

    @property
    @abc.abstractmethod
    def sizes(self) -> tuple[int, int]:
        """How many variables and how many constraints there are."""

    @abc.abstractmethod
    def coefficients(self, theta: Theta) -> Coefficients:
        """The numbers of an instance."""

    @property
    def equalities(self) -> tuple[int, ...]:
        """Rows whose two bounds are the same on every instance."""
        return ()

    @property
    def cones(self) -> tuple[int, ...]:
        """How many of the last rows each second-order cone has."""
        return ()

    @property
    def shared_hessian(self) -> np.ndarray | None:
        """`P`, where it is the same for all instances."""
        return None

    @property
    def shared_matrix(self) -> np.ndarray | None:
        """`A`, where it is the same for all instances."""
        return None

    def start(self, theta: Theta) -> Point:
        """Zeros; `z` is moved into its set by whoever begins there."""
        del theta
        variables, rows = self.sizes
        zeros = {"x": np.zeros(variables), "z": np.zeros(rows), "y": np.zeros(rows)}
        return as_arrays(zeros, self.precision)

    def loss(self, x: Point, theta: Theta) -> Scalar:
        """The largest residual."""
        return jnp.max(self.coefficients(theta).residuals(x, self.relative))


def _largest(vector: Numbers) -> Scalar:
    return jnp.max(jnp.abs(vector), initial=0.0)
