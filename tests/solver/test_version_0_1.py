"""A solver's file that version 0.1 wrote still loads, is certified, and solves as it did then.

`quadratics.safetensors` is the solver of the run `surestep run quadratics --preset tiny`, and
`quadratics.json` holds instances with the losses that version 0.1 computed for them.
"""

import json
from pathlib import Path

import jax
import numpy as np
import pytest

import surestep as ss
from surestep.rules.base import solver_fingerprint

HERE = Path(__file__).parent / "version_0_1"
STORED = json.loads((HERE / "quadratics.json").read_text())


@pytest.fixture(scope="module")
def solver():
    return ss.load(HERE / "quadratics.safetensors", ss.open_problem("quadratics", "tiny"))


@pytest.fixture(scope="module")
def thetas(solver):
    kind = type(solver.probes)
    return kind(**{name: np.array(rows) for name, rows in STORED["thetas"].items()})


def test_its_certificate_is_still_of_its_rule(solver):
    assert solver.certificate.solver_sha256 == solver_fingerprint(solver.rule)
    assert solver.horizon == solver.certificate.horizon == STORED["horizon"]
    assert solver.monitor().failure == STORED["failure"]


def test_it_solves_to_the_losses_it_had(solver, thetas):
    found = solver.solve(thetas)
    assert found.covered
    # Other machines round in other places.
    np.testing.assert_allclose(found.loss, STORED["loss"], rtol=1e-9)


def test_its_posterior_draws_what_it_drew(solver, thetas):
    found = solver.solve(thetas, policy="posterior", key=jax.random.key(3))
    assert found.covered
    np.testing.assert_array_equal(found.sample, STORED["drawn_sample"])
    np.testing.assert_allclose(found.loss, STORED["drawn_loss"], rtol=1e-9)


def test_another_problem_is_still_refused():
    with pytest.raises(ss.errors.SolverFileError, match="made for another problem"):
        ss.load(HERE / "quadratics.safetensors", ss.open_problem("network", "tiny"))
