"""Structure that a problem has whether or not its author knows: found, not declared.

What the traced program proves is tried with numbers before it is believed. A structure that is
missed costs time; one that is wrongly seen would cost more, so in doubt there is none.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
import scipy.fft
import scipy.linalg.lapack
from jaxtyping import Array, Float

from surestep.problem.base import Problem, Theta, count, instance
from surestep.problem.coordinates import acts_by_coordinates, adds_up_by_coordinates
from surestep.problem.degrees import AFFINE, FREE, degrees
from surestep.problem.draw import working_precision
from surestep.problem.kinds import CompositeProblem
from surestep.problem.quadratic import (
    Vector,
    flat_start,
    hessian,
    hessian_product,
    smooth_part,
    try_quadratic,
)

LARGEST = 3000
"""The largest dimension whose Hessians are written down."""
SHORTEST = 8
"""Shorter axes of a picture are channels: no convolution goes along them."""
_TRIED = 16  # instances that numbers are tried on
_TOLERANCE = {"float64": 1e-9, "float32": 1e-4}

Product = Callable[[Vector], Vector]


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
            picture = np.real(scipy.fft.ifftn(coefficients, axes=self.axes, norm="ortho"))
        else:
            picture = scipy.fft.idctn(coefficients, axes=self.axes, norm="ortho")
        return np.asarray(picture).ravel()


@dataclasses.dataclass(frozen=True)
class Structure:
    """What was found. The smooth part is the loss itself, if the problem has but one part."""

    dimension: int
    composite: bool
    """Whether there is a part that is not smooth."""
    quadratic: bool
    """On every instance, the smooth part is a polynomial of degree 2 (or less) in x."""
    shared: bool
    """It is, and its Hessian is the same on every instance."""
    shared_hessian: Float[np.ndarray, "n n"] | None
    """That Hessian, if its dimension is at most 3000."""
    affine_in_theta: bool
    """The Hessian is shared, and the gradient is affine in theta's numbers."""
    convex: bool
    """The shared Hessian is positive semidefinite, up to rounding; false where that is unknown."""
    matrix: Float[np.ndarray, "m n"] | None
    """The shared Hessian is `matrix' matrix`; only if that makes products cheaper, m < n / 2."""
    separable: bool
    """The smooth part is a sum of functions of one coordinate each: its Hessians are diagonal."""
    convolution: Convolution | None
    """In which coefficients of pictures the shared Hessian is diagonal, if it is not separable."""
    penalty_separable: bool
    """The proximal map acts coordinate by coordinate."""

    @property
    def words(self) -> tuple[str, ...]:
        """What was found, one sentence each."""
        return tuple(_words(self))


def find_structure(problem: Problem, thetas: Theta) -> Structure:
    """Look at a problem's traced programs, and try what they promise on some of the instances."""
    with working_precision(problem):
        theta, tolerance = instance(thetas, 0), _TOLERANCE[problem.precision]
        start = problem.start(theta)
        found = Structure(
            flat_start(problem, theta).size, isinstance(problem, CompositeProblem), False, False,
            None, False, False, None, adds_up_by_coordinates(smooth_part(problem), start, theta),
            None, _penalty_separable(problem, theta),
        )  # fmt: skip
        proved = degrees(smooth_part(problem), start, theta)
        if proved is None:
            return found
        errors = try_quadratic(problem, instance(thetas, _spread(count(thetas))))
        found = dataclasses.replace(found, quadratic=errors.quadratic <= tolerance)
        shared = proved.powers[2] <= FREE and errors.shared <= tolerance
        if not (found.quadratic and shared):
            return found
        affine = proved.powers[1] <= AFFINE and errors.affine <= tolerance
        found = dataclasses.replace(found, shared=True, affine_in_theta=affine)
        return _look_at_hessian(problem, theta, found, tolerance)


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
        said.append(f"{part} is quadratic in x, with a Hessian that depends on theta")
    if found.separable:
        said.append(f"{part} is a sum of functions of one coordinate each")
    if found.matrix is not None and not found.separable:
        said.append(f"the Hessian has rank {len(found.matrix)} of {found.dimension}")
    if found.convolution is not None:
        basis = "Fourier's basis" if found.convolution.basis == "fourier" else "cosines"
        shape = " x ".join(map(str, found.convolution.shape))
        said.append(f"the Hessian is a convolution of shape {shape}, diagonal for {basis}")
    if found.penalty_separable:
        said.append("prox acts coordinate by coordinate")
    return said


def _spread(size: int) -> Array:
    return jnp.asarray(np.unique(np.linspace(0, size - 1, min(size, _TRIED)).astype(int)))


def _look_at_hessian(
    problem: Problem, theta: Theta, found: Structure, tolerance: float
) -> Structure:
    """What the Hessian that all instances share shows."""
    product = functools.partial(hessian_product, problem, theta)
    if found.dimension > LARGEST:
        convolution = None
        if not found.separable:
            convolution = _convolution(problem, theta, product, tolerance)
        convex = False
        if convolution is not None:
            low, high = np.min(convolution.spectrum), np.max(convolution.spectrum)
            convex = bool(low >= -tolerance * high)
        return dataclasses.replace(found, convex=convex, convolution=convolution)
    matrix = hessian(problem, theta)
    if not _same(matrix.__matmul__, product, found.dimension, tolerance):
        return dataclasses.replace(found, shared=False, affine_in_theta=False)
    diagonal = not np.any(matrix - np.diag(np.diag(matrix)))
    convex, factor = _factor(matrix, np.dtype(problem.precision), tolerance)
    picture = _convolution(problem, theta, matrix.__matmul__, tolerance)
    return dataclasses.replace(
        found,
        shared_hessian=matrix,
        convex=convex,
        matrix=factor,
        separable=found.separable or diagonal,
        convolution=None if diagonal else picture,
    )


def _same(one: Product, other: Product, dimension: int, tolerance: float) -> bool:
    """Whether two matrices turn random vectors into the same vectors."""
    for vector in np.random.default_rng(0).normal(size=(3, dimension)):
        wanted = other(vector)
        error = np.linalg.norm(one(vector) - wanted)
        if not error <= tolerance * np.linalg.norm(wanted):
            return False
    return True


def _factor(
    hessian: np.ndarray, kind: np.dtype, tolerance: float
) -> tuple[bool, np.ndarray | None]:
    """Whether a matrix is positive semidefinite, and a factor if its rank is small."""
    size = len(hessian)
    steepest = float(np.max(np.abs(np.diag(hessian))))
    if steepest == 0:
        return not np.any(hessian), None
    small = 10 * size * float(np.finfo(kind).eps) * steepest
    lower, order, rank, _ = scipy.linalg.lapack.dpstrf(hessian, tol=small, lower=1)
    matrix = np.zeros((rank, size))
    matrix[:, order - 1] = np.tril(lower)[:, :rank].T
    if not _same(lambda v: matrix.T @ (matrix @ v), hessian.__matmul__, size, tolerance):
        return False, None
    return True, matrix if 2 * rank < size else None


def _convolution(
    problem: Problem, theta: Theta, product: Product, tolerance: float
) -> Convolution | None:
    """The pictures in whose coefficients a matrix is diagonal, if there are any."""
    leaves = jax.tree.leaves(jax.eval_shape(problem.start, theta))
    shape = tuple(leaves[0].shape)
    axes = tuple(axis for axis, size in enumerate(shape) if size >= SHORTEST)
    if len(leaves) != 1 or not axes:
        return None
    for basis in ("fourier", "cosines"):
        flat = Convolution(shape, axes, basis, np.ones(shape))
        # A picture with coefficients of one size shows all eigenvalues at once.
        signs = flat.transform(_impulse(flat))
        spectrum = np.real(flat.transform(product(_impulse(flat))) / signs)
        found = dataclasses.replace(flat, spectrum=spectrum)

        def diagonal(vector: Vector, found: Convolution = found) -> Vector:
            return found.back(found.spectrum * found.transform(vector))

        if _same(diagonal, product, int(np.prod(shape)), tolerance):
            return found
    return None


def _impulse(found: Convolution) -> Vector:
    """A picture whose coefficients have the same size everywhere."""
    if found.basis == "cosines":
        return found.back(np.ones(found.shape))
    picture = np.zeros(found.shape)
    picture[tuple(0 if axis in found.axes else slice(None) for axis in range(picture.ndim))] = 1
    return picture.ravel()


def _penalty_separable(problem: Problem, theta: Theta) -> bool:
    if not isinstance(problem, CompositeProblem):
        return False
    step = jnp.ones((), problem.precision)
    return acts_by_coordinates(
        lambda x, others: problem.prox(x, *others), problem.start(theta), (step, theta)
    )
