"""Structure that a problem has whether or not its author knows: found, not declared.

What the traced program proves is tried with numbers before it is believed. A structure that is
missed costs time; one that is wrongly seen would cost more, so in doubt there is none.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy.fft
import scipy.linalg
from jaxtyping import Array, Float

from surestep.problem.base import Problem, Theta, count, instance
from surestep.problem.coordinates import acts_by_coordinates, adds_up_by_coordinates
from surestep.problem.degrees import AFFINE, FREE, degrees
from surestep.problem.draw import working_precision
from surestep.problem.front import AffineFront, find_front
from surestep.problem.kinds import CompositeProblem
from surestep.problem.quadratic import (
    Rows,
    Vector,
    hessian,
    hessian_products,
    smooth_part,
    try_quadratic,
)
from surestep.problem.squares import is_sum_of_squares, squares_of

LARGEST = 3000
"""The largest dimension whose Hessians are written down."""
SHORTEST = 8
"""Shorter axes of a picture are channels: no convolution goes along them."""
_TRIED, _FEW, _MANY = 16, 4, 1000  # instances that are tried: fewer in more dimensions than that
_TOLERANCE = {"float64": 1e-9, "float32": 1e-4}
_CLOSE = {"float64": 1e-12, "float32": 1e-5}  # the same, for a matrix and what it is made of
_BASES: tuple[Literal["fourier", "cosines"], ...] = ("fourier", "cosines")

Products = Callable[[Rows], Rows]
"""A symmetric matrix times some vectors."""


@dataclasses.dataclass(frozen=True)
class Convolution:
    """A Hessian that is diagonal for Fourier's or for cosine coefficients of a picture."""

    shape: tuple[int, ...]
    """The picture's."""
    axes: tuple[int, ...]
    """The axes that are transformed; the others are channels."""
    basis: Literal["fourier", "cosines"]
    """`fourier`: the picture is continued by itself; `cosines`: by its mirror image (type 2)."""
    spectrum: Float[np.ndarray, "..."]
    """The Hessian's eigenvalues, one for each coefficient, in the picture's shape."""

    def transform(self, vector: Vector) -> np.ndarray:
        """The coefficients of a flattened picture; the transform is orthogonal."""
        picture = vector.reshape(self.shape)
        if self.basis == "fourier":
            return np.asarray(scipy.fft.fftn(picture, axes=self.axes, norm="ortho"))
        return np.asarray(scipy.fft.dctn(picture, axes=self.axes, norm="ortho"))

    def back(self, coefficients: np.ndarray) -> Vector:
        """The flattened picture of such coefficients."""
        if self.basis == "fourier":
            picture = np.asarray(scipy.fft.ifftn(coefficients, axes=self.axes, norm="ortho"))
        else:
            picture = np.asarray(scipy.fft.idctn(coefficients, axes=self.axes, norm="ortho"))
        return np.real(picture).ravel()

    def products(self, rows: Rows) -> Rows:
        """The Hessian times some vectors."""
        return np.stack([self.back(self.spectrum * self.transform(row)) for row in rows])


@dataclasses.dataclass(frozen=True)
class Structure:
    """What was found. The smooth part is the loss itself, if the problem has but one part."""

    dimension: int
    composite: bool
    """Whether there is a part that is not smooth."""
    quadratic: bool = False
    """On every instance, the smooth part is a polynomial of degree 2 (or less) in x."""
    shared: bool = False
    """It is, and its Hessian is the same on every instance."""
    shared_hessian: Float[np.ndarray, "n n"] | None = None
    """That Hessian, if its dimension is at most 3000."""
    affine_in_theta: bool = False
    """The Hessian is shared, and the gradient is affine in theta's numbers."""
    convex: bool = False
    """The shared Hessian is positive semidefinite, up to rounding; false where that is unknown."""
    matrix: Float[np.ndarray, "m n"] | None = None
    """The shared Hessian is `matrix' matrix`; only if that makes products cheaper, m < n / 2."""
    separable: bool = False
    """The smooth part is a sum of functions of one coordinate each: its Hessians are diagonal."""
    diagonal: Float[np.ndarray, " n"] | None = None
    """The shared Hessian's diagonal, if it is nothing but that; in any dimension."""
    convolution: Convolution | None = None
    """In which coefficients of pictures the shared Hessian is diagonal, if it is not separable."""
    penalty_separable: bool = False
    """The proximal map acts coordinate by coordinate."""
    squares: bool = False
    """The loss is a sum of squares, up to a constant, of numbers that `squares_of` computes."""
    front: AffineFront | None = None
    """The loss is a sum of functions of one number each, behind an affine map; looked for where
    there is no part that is not smooth, no shared Hessian, and no such sum without the map."""

    @property
    def words(self) -> tuple[str, ...]:
        """What was found, one sentence each."""
        return tuple(_words(self))


def find_structure(problem: Problem, thetas: Theta) -> Structure:
    """Look at a problem's traced programs, and try what they promise on some of the instances."""
    with working_precision(problem):
        thetas, tolerance = jax.tree.map(np.asarray, thetas), _TOLERANCE[problem.precision]
        theta = instance(thetas, 0)
        start = jax.eval_shape(problem.start, theta)
        found = Structure(
            sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(start)),
            isinstance(problem, CompositeProblem),
            separable=adds_up_by_coordinates(smooth_part(problem), start, theta),
            penalty_separable=_penalty_separable(problem, start, theta),
            squares=_squares(problem, thetas),
        )
        found = _look_at_smooth_part(problem, thetas, found)
        if found.composite or found.shared or found.separable:
            return found
        return dataclasses.replace(found, front=find_front(problem, thetas, tolerance))


def _look_at_smooth_part(problem: Problem, thetas: Theta, found: Structure) -> Structure:
    """Whether it is quadratic, and what all instances share then."""
    theta, tolerance = instance(thetas, 0), _TOLERANCE[problem.precision]
    start = jax.eval_shape(problem.start, theta)
    proved = degrees(smooth_part(problem), start, theta)
    if proved is None:
        return found
    errors = try_quadratic(problem, _some(thetas, found.dimension))
    found = dataclasses.replace(found, quadratic=errors.quadratic <= tolerance)
    shared = proved.powers[2] <= FREE and errors.shared <= tolerance
    if not (found.quadratic and shared):
        return found
    affine = proved.powers[1] <= AFFINE and errors.affine <= tolerance
    found = dataclasses.replace(found, shared=True, affine_in_theta=affine)
    return _look_at_hessian(problem, theta, found)


def _words(found: Structure) -> list[str]:
    part = "the smooth part" if found.composite else "the loss"
    said = []
    if found.shared:
        said.append(
            f"{part} is quadratic in x, with the same Hessian on every instance: it can be "
            "factored once"
        )
        if found.affine_in_theta:
            said.append("its gradient is affine in theta")
    elif found.quadratic:
        said.append(f"{part} is quadratic in x, with a Hessian that theta may change")
    if found.separable:
        said.append(f"{part} is a sum of functions of one coordinate each")
    if found.matrix is not None and not found.separable:
        said.append(f"the Hessian has rank {len(found.matrix)} of {found.dimension}")
    if found.convolution is not None:
        basis = "Fourier's basis" if found.convolution.basis == "fourier" else "cosines"
        shape = " x ".join(map(str, found.convolution.shape))
        said.append(f"the Hessian is a convolution of shape {shape}, diagonal for {basis}")
    if found.squares:
        said.append("the loss is a sum of squares")
    if found.front is not None:
        said.append(_front_words(found.front))
    if found.penalty_separable:
        said.append("prox acts coordinate by coordinate")
    return said


def _front_words(front: AffineFront) -> str:
    rows, size = front.matrix.shape
    kind = "convex functions" if front.convex else "functions"
    return (
        f"the loss is a sum of {kind} of one number each, as far as trials tell, of a map "
        f"A x + b(theta) whose matrix ({rows} x {size}) is the same on every instance: it can be "
        "factored once"
    )


def _some(thetas: Theta, dimension: int) -> Theta:
    """Instances from all over a set."""
    most = min(count(thetas), _TRIED if dimension <= _MANY else _FEW)
    places = np.linspace(0, count(thetas) - 1, most).astype(int)
    return jax.tree.map(lambda leaf: leaf[places], thetas)


def _look_at_hessian(problem: Problem, theta: Theta, found: Structure) -> Structure:
    """What the Hessian that all instances share shows."""
    through_program = functools.partial(hessian_products, problem, theta)
    shapes = [tuple(leaf.shape) for leaf in jax.tree.leaves(jax.eval_shape(problem.start, theta))]
    tolerance = _CLOSE[problem.precision]
    if found.dimension > LARGEST:
        if found.separable:
            diagonal = through_program(np.ones((1, found.dimension)))[0]
            return dataclasses.replace(found, diagonal=diagonal, convex=_rising(diagonal, 0.0))
        picture = _convolution(through_program, shapes, tolerance)
        convex = picture is not None and _rising(picture.spectrum, tolerance)
        return dataclasses.replace(found, convex=convex, convolution=picture)
    matrix = hessian(problem, theta, found.dimension)
    if not _same(_times(matrix), through_program, found.dimension, tolerance):
        return dataclasses.replace(found, shared=False, affine_in_theta=False)
    convex, factor = _factor(matrix, problem.precision)
    found = dataclasses.replace(found, shared_hessian=matrix, convex=convex, matrix=factor)
    diagonal = np.diag(matrix).copy()
    if not np.any(matrix - np.diag(diagonal)):
        return dataclasses.replace(found, separable=True, diagonal=diagonal)
    return dataclasses.replace(found, convolution=_convolution(_times(matrix), shapes, tolerance))


def _rising(eigenvalues: np.ndarray, tolerance: float) -> bool:
    """Whether none is negative, up to a tolerance."""
    return bool(np.min(eigenvalues) >= -tolerance * np.max(np.abs(eigenvalues)))


def _times(matrix: Rows) -> Products:
    return lambda rows: rows @ matrix


def _same(one: Products, other: Products, dimension: int, tolerance: float) -> bool:
    """Whether two matrices turn random vectors into the same vectors."""
    vectors = np.random.default_rng(0).normal(size=(3, dimension))
    wanted = other(vectors)
    errors = np.linalg.norm(one(vectors) - wanted, axis=1)
    return bool(np.all(errors <= tolerance * np.linalg.norm(wanted, axis=1)))


def _factor(
    hessian: Float[np.ndarray, "n n"], kind: str
) -> tuple[bool, Float[np.ndarray, "m n"] | None]:
    """Whether a matrix is positive semidefinite, and a factor if its rank is small."""
    size, steepest = len(hessian), float(np.max(np.abs(np.diag(hessian))))
    if steepest == 0:
        return not np.any(hessian), None
    small = size * float(np.finfo(kind).eps) * steepest
    (factorise,) = scipy.linalg.get_lapack_funcs(("pstrf",), (hessian,))
    lower, order, rank, _ = factorise(hessian, tol=small, lower=1)
    matrix = np.zeros((rank, size))
    matrix[:, order - 1] = np.tril(lower)[:, :rank].T
    if not _same(lambda rows: rows @ matrix.T @ matrix, _times(hessian), size, _CLOSE[kind]):
        return False, None
    return True, matrix if 2 * rank < size else None


def _convolution(
    products: Products, shapes: list[tuple[int, ...]], tolerance: float
) -> Convolution | None:
    """The coefficients of pictures for which a matrix is diagonal, if there are any."""
    axes = tuple(axis for axis, size in enumerate(shapes[0]) if size >= SHORTEST)
    if len(shapes) != 1 or not axes:
        return None
    for basis in _BASES:
        found = Convolution(shapes[0], axes, basis, np.ones(shapes[0]))
        # A picture whose coefficients are all as large shows all eigenvalues at once.
        flat = _flat_picture(found)
        turned = found.transform(products(flat[None])[0])
        found = dataclasses.replace(found, spectrum=np.real(turned / found.transform(flat)))
        if _same(found.products, products, flat.size, tolerance):
            return found
    return None


def _flat_picture(found: Convolution) -> Vector:
    """A picture whose coefficients have the same size everywhere."""
    if found.basis == "cosines":
        return found.back(np.ones(found.shape))
    picture = np.zeros(found.shape)
    picture[tuple(0 if axis in found.axes else slice(None) for axis in range(picture.ndim))] = 1
    return picture.ravel()


def _squares(problem: Problem, thetas: Theta) -> bool:
    """Whether differences of losses are those of the squares that were found."""
    if not is_sum_of_squares(problem, instance(thetas, 0)):
        return False
    some = _some(thetas, _MANY + 1)
    errors = np.asarray(_square_errors(problem, some))
    return bool(np.all(errors <= _TOLERANCE[problem.precision]))


@eqx.filter_jit
def _square_errors(problem: Problem, thetas: Theta) -> Float[Array, " instance"]:
    def one(theta: Theta) -> Array:
        x = problem.start(theta)
        leaves, form = jax.tree.flatten(x)
        keys = jax.random.split(jax.random.key(0), len(leaves))
        moved = [
            leaf + jax.random.normal(key, jnp.shape(leaf), leaf.dtype)
            for leaf, key in zip(leaves, keys, strict=True)
        ]
        away = jax.tree.unflatten(form, moved)
        found = [squares_of(problem, at, theta) for at in (x, away)]
        sums = [jnp.inf if one is None else jnp.sum(one**2) for one in found]
        losses = [problem.loss(at, theta) for at in (x, away)]
        size = jnp.abs(losses[0]) + jnp.abs(losses[1])
        return jnp.abs((losses[1] - losses[0]) - (sums[1] - sums[0])) / size

    return jax.vmap(one)(thetas)


def _penalty_separable(problem: Problem, start: Any, theta: Theta) -> bool:
    if not isinstance(problem, CompositeProblem):
        return False
    step = np.ones((), problem.precision)
    return acts_by_coordinates(lambda x, given: problem.prox(x, *given), start, (step, theta))
