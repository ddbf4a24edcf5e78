"""Chains of small linear maps as one kernel: the same numbers as product by product."""

import itertools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export

from support.tiny import PROBLEM
from support.types import unchecked
from surestep.base.keys import named_key
from surestep.interop.plain import rule_of
from surestep.problem.draw import working_precision
from surestep.problem.form import theta_form
from surestep.rules import (
    Blended,
    Convolutional,
    Coordinatewise,
    GradientDescent,
    Preconditioned,
    Proximal,
    Residual,
    fused,
)
from surestep.rules.blocks import LinearChain, Perceptron, trained_product, without_kernels
from surestep.rules.fused import apply_by_kernel, apply_chain, apply_fused
from surestep.solver.export import export_solver

RULES = {
    "blended": lambda key: Blended.create(key, 5),
    "coordinatewise": Coordinatewise.create,
    "preconditioned": lambda key: Preconditioned.create(key, 5),
    "proximal": lambda key: Proximal.create(key, 0.1),
}


def chain(widths, biases, number):
    """A chain and columns for it, in NumPy."""
    rng = np.random.default_rng(sum(widths) + number)
    matrices = tuple(rng.normal(size=(b, a)) for a, b in itertools.pairwise(widths))
    shifts = tuple(rng.normal(size=m.shape[0]) for m in matrices) if biases else ()
    return matrices, shifts, rng.normal(size=(widths[0], number))


def by_numpy(matrices, biases, columns):
    for i, matrix in enumerate(matrices):
        columns = matrix @ (np.maximum(columns, 0) if i else columns)
        columns = columns + (biases[i][:, None] if biases else 0)
    return columns


@pytest.mark.parametrize("biases", [False, True])
@pytest.mark.parametrize(("widths", "number"), [((3, 4, 2), 70), ((2, 1), 300), ((4, 3, 3, 1), 1)])
def test_the_kernel_computes_the_chain(widths, number, biases):
    given = chain(widths, biases, number)
    with working_precision(PROBLEM):
        arrays = jax.tree.map(jnp.asarray, given)
        found = apply_by_kernel(*arrays, interpret=True)
        plain = apply_chain(*arrays)
    np.testing.assert_allclose(found, by_numpy(*given), rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(plain, by_numpy(*given), rtol=1e-12, atol=1e-13)


def test_the_kernel_computes_batches_of_chains():
    """A batch of rules on a batch of instances, as certifying rolls them out."""
    rng = np.random.default_rng(5)
    matrices = (rng.normal(size=(3, 4, 2)), rng.normal(size=(3, 1, 4)))
    columns = rng.normal(size=(3, 6, 2, 40))
    with working_precision(PROBLEM):

        def each(matrices, columns):
            return jax.vmap(lambda one: apply_by_kernel(matrices, (), one, interpret=True))(columns)

        found = jax.vmap(each)(jax.tree.map(jnp.asarray, matrices), jnp.asarray(columns))
    for rule in range(3):
        for instance in range(6):
            mine = tuple(matrix[rule] for matrix in matrices)
            np.testing.assert_allclose(
                found[rule, instance], by_numpy(mine, (), columns[rule, instance]), rtol=1e-12
            )


@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_the_kernel_can_be_compiled_for_a_gpu(precision, monkeypatch):
    """As far as a machine without one can tell: the program for CUDA has the kernel in it."""
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    given = chain((7, 15, 20, 15, 1), False, 200)
    with jax.enable_x64(precision == "float64"):
        shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, precision), given)
        program = jax.jit(apply_fused).trace(*shapes).lower(lowering_platforms=("cuda",))
        assert "triton" in program.as_text()
        program = jax.jit(apply_fused).trace(*shapes).lower(lowering_platforms=("cpu",))
        assert "triton" not in program.as_text()


@pytest.mark.parametrize(
    ("widths", "number"), [((40, 40), 64), ((7, 15, 1), fused.FEWEST - 1)], ids=["large", "few"]
)
def test_what_is_large_or_few_goes_by_products(widths, number, monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    given = jax.tree.map(jnp.asarray, chain(widths, False, number))
    assert "pallas" not in str(jax.make_jaxpr(apply_fused)(*given))


@pytest.mark.parametrize("name", RULES)
def test_only_prepared_rules_have_kernels_and_exported_ones_lose_them(name, monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(fused, "FEWEST", 1)
    with working_precision(PROBLEM):
        rule = RULES[name](named_key(0, "rule"))

    def chains(rule):
        kinds = (LinearChain, Perceptron)
        found = jax.tree.leaves(rule, is_leaf=lambda part: isinstance(part, kinds))
        return [part for part in found if isinstance(part, kinds)]

    def kernels(rule):
        for part in chains(rule):
            matrices = part.weights if isinstance(part, Perceptron) else part.groups
            inputs = jax.tree.leaves(matrices)[0].shape[1]
            yield "pallas" in str(jax.make_jaxpr(part)(jnp.zeros((inputs, 70))))

    assert not any(kernels(rule))
    assert list(kernels(rule.prepare())) == [True, True]
    bare = without_kernels(rule.prepare())
    assert type(bare) is type(rule) and list(kernels(bare)) == [False, False]
    for before, after in zip(jax.tree.leaves(rule.prepare()), jax.tree.leaves(bare), strict=True):
        np.testing.assert_array_equal(before, after)


def test_an_exported_solver_has_no_kernel(monkeypatch, tmp_path):
    """Else it could be used with one version of JAX alone; exporting refuses such programs."""
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(fused, "FEWEST", 1)
    jax.clear_caches()
    rule = Coordinatewise.create(named_key(0, "rule"))
    form = theta_form(PROBLEM)
    export_solver(tmp_path / "solver", rule, PROBLEM, form, 3, 4, 4, ("cuda",))
    program = export.deserialize(bytearray((tmp_path / "solver").read_bytes()))
    assert "triton" not in program.mlir_module()


def test_rules_in_loops_of_other_libraries_can_be_differentiated_on_a_gpu(monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(fused, "FEWEST", 1)
    rule = rule_of(Coordinatewise.create(named_key(0, "rule")))
    assert isinstance(rule, Coordinatewise)
    assert "pallas" not in str(jax.make_jaxpr(rule.direction)(jnp.zeros((3, 70))))


def _slopes(chain, columns):
    """Derivatives of a number made of a chain's outputs, to its weights and its input."""
    return jax.grad(lambda chain, columns: jnp.sum(jnp.sin(chain(columns))), argnums=(0, 1))(
        chain, columns
    )


@pytest.mark.parametrize("number", [1, 40])
def test_training_a_chain_has_the_derivatives_of_its_products(number):
    with working_precision(PROBLEM):
        chain = LinearChain.create(((3, 4), (4, 5, 4), (4, 1)), named_key(0, "chain"))
        columns = jax.random.normal(named_key(1, "columns"), (2, 3, number))
        plain = without_kernels(chain.prepared())
        found = jax.vmap(_slopes, (None, 0))(chain, columns)
        # To the multiplied weights, as far as they are the trained ones, and to the input.
        wanted = jax.vmap(_slopes, (None, 0))(plain, columns)

        def by_matmul(groups, columns):
            return jnp.sum(jnp.sin(LinearChain(groups).multiplied().prepared()(columns)))

        exact = jax.vmap(jax.grad(by_matmul), (None, 0))(chain.groups, columns)
    np.testing.assert_allclose(found[1], wanted[1], rtol=1e-12, atol=1e-14)
    for one, other in zip(jax.tree.leaves(found[0]), jax.tree.leaves(exact), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-14)


def test_training_a_perceptron_has_the_derivatives_of_its_products():
    with working_precision(PROBLEM):
        perceptron = Perceptron.create((3, 6, 2), named_key(0, "chain"), biases=True)
        columns = jax.random.normal(named_key(1, "columns"), (3, 9))
        found = _slopes(perceptron, columns)
        wanted = _slopes(without_kernels(perceptron.prepared()), columns)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("kind", [*RULES, "convolutional", "residual"])
def test_rules_in_other_loops_have_forward_derivatives_too(kind):
    makers = {
        "convolutional": lambda key: Convolutional.create(key, 4, 5),
        "residual": lambda key: Residual.around(GradientDescent(0.1), 5, key),
    } | RULES
    with working_precision(PROBLEM):
        rule = rule_of(makers[kind](named_key(0, "rule")))
        kinds = (LinearChain, Perceptron)
        leaves = jax.tree.leaves(rule, is_leaf=lambda part: isinstance(part, kinds))
        parts = [part for part in leaves if isinstance(part, kinds)]
        assert parts
        for part in parts:
            first = part.groups[0] if isinstance(part, LinearChain) else part.weights
            columns = jnp.ones((first[0].shape[1], 70))
            _, found = jax.jvp(part, (columns,), (columns,))
            assert np.all(np.isfinite(found))


@pytest.mark.parametrize("shape", [(4,), (2, 4, 3)])
@unchecked()
def test_products_of_other_shapes_can_be_trained_too(shape):
    with working_precision(PROBLEM):
        matrix = jax.random.normal(named_key(0, "matrix"), (5, 4))
        columns = jax.random.normal(named_key(1, "columns"), shape)
        found, wanted = (
            jax.grad(lambda matrix, product=product: jnp.sum(jnp.sin(product(matrix, columns))))(
                matrix
            )
            for product in (trained_product, jnp.matmul)
        )
        mixed = jax.grad(lambda c: jnp.sum(trained_product(matrix, c)))(jnp.ones((4, 2), "float32"))
    np.testing.assert_allclose(found, wanted, rtol=1e-12)
    assert mixed.dtype == jnp.float32


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="about programs for processors")
def test_no_product_backwards_has_its_matrix_turned():
    """XLA's fast library takes a product only if the first factor's columns meet the rows."""
    with working_precision(PROBLEM):
        chain = LinearChain.create(((3, 16), (16, 16, 16), (16, 1)), named_key(0, "chain"))
        program = jax.jit(_slopes).lower(chain, jnp.ones((3, 200))).compile().as_text() or ""
        plain = without_kernels(chain.prepared())
        usual = jax.jit(_slopes).lower(plain, jnp.ones((3, 200))).compile().as_text() or ""
    turned = r"f64\[16,200\][^=]* dot\(.*lhs_contracting_dims=\{0\}"
    assert not re.search(turned, program)
    assert re.search(turned, usual)
