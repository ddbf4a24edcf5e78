"""Ready penalties against independent references."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import optimize

from surestep.base.errors import ConfigurationError
from surestep.problem.penalties import L1, L2, Box, GroupL2, Nuclear, Simplex

RANDOM = np.random.default_rng(3)
VECTOR = 2 * RANDOM.normal(size=6)
MATRIX = 2 * RANDOM.normal(size=(3, 2))
STEP = 0.7


def objective(penalty, x):
    """What a proximal map minimises, written with NumPy for each penalty."""
    values = {
        "L1": lambda z: 0.4 * np.abs(z).sum(),
        "L2": lambda z: 0.4 * np.sqrt((z**2).sum()),
        "GroupL2": lambda z: 0.4 * np.sqrt((z.reshape(3, 2) ** 2).sum(axis=1)).sum(),
        "Nuclear": lambda z: 0.4 * np.linalg.svd(z.reshape(3, 2), compute_uv=False).sum(),
    }
    value = values[type(penalty).__name__]
    return lambda z: value(z) + ((z - x.ravel()) ** 2).sum() / (2 * STEP)


@pytest.mark.parametrize(
    ("penalty", "x"),
    [(L1(0.4), VECTOR), (L2(0.4), VECTOR), (GroupL2(0.4), MATRIX), (Nuclear(0.4), MATRIX)],
    ids=lambda value: type(value).__name__,
)
def test_a_prox_minimises_its_objective(penalty, x):
    with jax.enable_x64(True):
        found = np.asarray(penalty.prox(jnp.asarray(x), jnp.asarray(STEP), None))
        value = float(penalty.value(jnp.asarray(found), None))
    function = objective(penalty, x)
    reference = min(
        (
            optimize.minimize(function, start, method="Nelder-Mead",
                              options={"xatol": 1e-10, "fatol": 1e-14, "maxiter": 20_000})
            for start in (x.ravel(), found.ravel() + 0.01)
        ),
        key=lambda result: result.fun,
    )  # fmt: skip
    assert function(found.ravel()) <= reference.fun + 1e-9
    np.testing.assert_allclose(found.ravel(), reference.x, atol=2e-4)
    distance = ((found - x) ** 2).sum() / (2 * STEP)
    assert value + distance == pytest.approx(function(found.ravel()), rel=1e-12)


def test_the_simplex_against_a_quadratic_programme():
    with jax.enable_x64(True):
        found = np.asarray(Simplex(1.5).prox(jnp.asarray(VECTOR), jnp.asarray(STEP), None))
        assert float(Simplex(1.5).value(jnp.asarray(found), None)) == 0
        assert np.isinf(float(Simplex(1.5).value(jnp.asarray(found + 0.01), None)))
    reference = optimize.minimize(
        lambda z: ((z - VECTOR) ** 2).sum(), np.full(6, 0.25), method="SLSQP",
        bounds=[(0, None)] * 6, options={"ftol": 1e-14},
        constraints={"type": "eq", "fun": lambda z: z.sum() - 1.5},
    )  # fmt: skip
    np.testing.assert_allclose(found, reference.x, atol=1e-6)
    assert found.sum() == pytest.approx(1.5, rel=1e-14) and found.min() == 0


def test_a_box_from_the_instance_and_pytrees():
    box = Box(lambda theta: -theta, 1.0)
    x = {"a": jnp.array([-3.0, 0.5]), "b": jnp.array(4.0)}
    found = box.prox(x, jnp.asarray(1.0), jnp.asarray(2.0))
    assert found["a"].tolist() == [-2.0, 0.5] and float(found["b"]) == 1.0
    assert float(box.value(found, jnp.asarray(2.0))) == 0
    assert np.isinf(float(box.value(x, jnp.asarray(2.0))))
    # An instance's weight, and leaves together.
    assert float(L1(lambda theta: theta).value(x, jnp.asarray(2.0))) == 15.0


def test_gradients_of_norms_are_finite_at_zero():
    for penalty, x in ((L2(1.0), jnp.zeros(3)), (GroupL2(1.0), jnp.zeros((2, 2)))):
        assert bool(jnp.all(jax.grad(lambda z, p=penalty: p.value(z, None))(x) == 0))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: L1(0.0), "the weight of L1 must be positive"),
        (lambda: Nuclear(float("inf")), "the weight of Nuclear"),
        (lambda: Box(2.0, 1.0), "a lower bound below its upper one"),
        (lambda: Simplex(-1.0), "a positive total"),
        (lambda: GroupL2(1.0).value(jnp.zeros(3), None), "two axes"),
        (lambda: Simplex().value(jnp.zeros((2, 2)), None), "a single vector"),
        (lambda: Nuclear(1.0).value(jnp.zeros(3), None), "a single matrix"),
    ],
)
def test_what_cannot_be_is_refused(make, message):
    with pytest.raises(ConfigurationError, match=message):
        make()
