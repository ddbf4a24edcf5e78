"""A chain of small linear maps as a single kernel of a GPU.

One product for each map writes all hidden columns to memory and reads them again, which is most of
the time that a learned rule takes there. In one kernel they stay in registers.
"""

import functools
import operator
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from surestep.base.lazy import slow_import

Matrices = tuple[Float[Array, "_out _in"], ...]
Biases = tuple[Float[Array, " _out"], ...]
Product = Callable[[Float[Array, "out in"], Float[Array, "in n"]], Float[Array, "out n"]]

LARGEST = 1500
"""How many weights a chain may have: each becomes an instruction, and all are compiled."""
FEWEST = 64
"""For how many columns a kernel is worth its start."""
_AT_ONCE = 256
_WARPS = 4


def apply_chain(
    matrices: Matrices,
    biases: Biases,
    columns: Float[Array, "in n"],
    product: Product = operator.matmul,
) -> Float[Array, "out n"]:
    """Linear maps with a ReLU between any two of them; biases for every map, or none at all."""
    for i, matrix in enumerate(matrices):
        columns = product(matrix, jnp.maximum(columns, 0) if i else columns)
        if biases:
            columns = columns + biases[i][:, None]
    return columns


def apply_fused(
    matrices: Matrices, biases: Biases, columns: Float[Array, "in n"]
) -> Float[Array, "out n"]:
    """The same, which cannot be differentiated: one kernel where that is faster."""
    small = sum(matrix.size for matrix in matrices) <= LARGEST
    if jax.default_backend() != "gpu" or not small or columns.shape[1] < FEWEST:
        return apply_chain(matrices, biases, columns)
    # A program for the processor may be asked for on a machine that has a GPU, too.
    return jax.lax.platform_dependent(
        matrices, biases, columns, cuda=apply_by_kernel, default=apply_chain
    )


def apply_by_kernel(
    matrices: Matrices, biases: Biases, columns: Float[Array, "in n"], interpret: bool = False
) -> Float[Array, "out n"]:
    """The same by the kernel, whatever the sizes; interpreted, it runs everywhere, slowly."""
    # Half a second, for GPUs alone.
    pallas = slow_import("jax.experimental.pallas")
    triton = slow_import("jax.experimental.pallas.triton")
    number, maps = columns.shape[1], len(matrices)

    def kernel(*refs: Any) -> None:
        weights, shifts, source, target = refs[:maps], refs[maps:-2], refs[-2], refs[-1]
        here = pallas.program_id(0) * _AT_ONCE + jnp.arange(_AT_ONCE)
        inside = here < number
        rows = [
            triton.load(source.at[i, here], mask=inside, other=0.0) for i in range(columns.shape[0])
        ]
        for i, weight in enumerate(weights):
            rows = [jnp.maximum(row, 0) for row in rows] if i else rows
            rows = _product(weight, rows)
            if shifts:
                rows = [row + shifts[i][j] for j, row in enumerate(rows)]
        for j, row in enumerate(rows):
            triton.store(target.at[j, here], row, mask=inside)

    given = (*matrices, *biases, columns)
    made = jax.ShapeDtypeStruct((matrices[-1].shape[0], number), columns.dtype)
    return pallas.pallas_call(
        kernel,
        out_shape=made,
        grid=(-(-number // _AT_ONCE),),
        in_specs=[_whole(pallas, array.ndim, array.shape) for array in given],
        out_specs=_whole(pallas, 2, made.shape),
        compiler_params=triton.CompilerParams(num_warps=_WARPS, num_stages=1),
        interpret=interpret,
        name="chain",
    )(*given)


def _product(weight: Any, rows: list[Array]) -> list[Array]:
    """A matrix in memory times rows in registers, written out."""
    return [
        functools.reduce(operator.add, (weight[j, i] * row for i, row in enumerate(rows)))
        for j in range(weight.shape[0])
    ]


def _whole(pallas: Any, axes: int, shape: tuple[int, ...]) -> Any:
    """All of an array is there for every program of the grid."""
    return pallas.BlockSpec(shape, lambda _: (0,) * axes)
