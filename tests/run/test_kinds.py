"""A run of a problem that tells kinds of instances apart, from its data to verification."""

import jax.numpy as jnp
import numpy as np
import pytest

import surestep as ss
from support.tiny import EXPERIMENT, SMALL, changed
from surestep.certify.posterior import Certified
from surestep.paper.quadratics import Quadratics
from surestep.report.files import run_figures
from surestep.report.page import render_page
from surestep.run.pipeline import learn
from surestep.run.verify.run import _finished, verify
from surestep.storage.arrays import read_arrays, write_arrays
from surestep.storage.run_folder import RunFolder

NAMES = ("near", "far")


def far(theta):
    return jnp.sum(theta.target**2) > 500.0


class Divided(Quadratics):
    """Quadratics whose minima are near or far."""

    @property
    def strata(self):
        return ss.Strata(NAMES, far)


PROBLEM = Divided.create(SMALL.problem, SMALL.family_seed)
DIVIDED = changed(EXPERIMENT, problem=PROBLEM)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = RunFolder(tmp_path_factory.mktemp("kinds") / "run")
    return folder, learn(SMALL, DIVIDED, folder)


@pytest.mark.slow
def test_every_kind_has_a_statement_of_its_own_and_verification_finds_other_kinds(run):
    folder, learned = run
    kinds = [s for s in learned.certificate.statements if "stratum" in s.details]
    assert [s.name for s in kinds] == ["instances: near", "instances: far"]
    evidence = learned.certified.evidence
    targets = np.asarray(_finished(folder, SMALL, DIVIDED).train.thetas.target)
    expected = (np.sum(targets**2, axis=1) > 500.0).astype(float)
    np.testing.assert_array_equal(evidence.traits[:, 0], expected)
    counted = [s.details["train_instances"] for s in kinds]
    assert counted == [int(np.sum(expected == 0)), int(np.sum(expected == 1))]
    assert min(counted) > 0
    assert [c.name for c in verify(folder, SMALL, DIVIDED) if not c.stands] == []
    assert "By kind of instance" in render_page(learned, {}, {}, run_figures(learned, folder), [])
    path = folder.path / "certify.safetensors"
    arrays, metadata = read_arrays(path)
    arrays["traits"] = arrays["traits"].copy()
    arrays["traits"][3, 0] = 1 - arrays["traits"][3, 0]
    write_arrays(path, arrays, metadata)
    assert folder.load("certify", Certified).evidence.traits[3, 0] != expected[3]
    broken = {c.name for c in verify(folder, SMALL, DIVIDED) if not c.stands}
    assert "the kind of every train instance" in broken
