"""A whole run with what makes learning dependable: a population, distances and a guarded rule."""

import dataclasses
import json
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from support.tiny import changed
from surestep import paper
from surestep.base.errors import ConfigurationError
from surestep.problem.datasets import PriorSet
from surestep.report import write_report
from surestep.rules import ADMM, Fista, LearnedSplitting, Safeguarded
from surestep.rules.base import hyper_of, with_hyper
from surestep.run.pipeline import Solved, learn
from surestep.run.verify.run import verify
from surestep.storage.run_folder import RunFolder
from surestep.train.locate import Located
from surestep.train.population import Chosen, PopulationSettings
from surestep.train.steps import merit
from surestep.train.trajectory import TrainingSettings

TINY = paper.preset("lasso", "tiny")
CONFIG = changed(
    TINY,
    training=TrainingSettings(objective="log", distances=True, floor=1e-6, through=True),
    population=PopulationSettings(members=3, steps=40, rates=(1.0, 3.0), length=2, instances=16),
    locate=changed(TINY.locate, steps=200, length=(2,), check_every=100, chunk=100, keep="best"),
    sample=changed(TINY.sample, samples=2, burn_in=0, thinning=1),
    evaluate=changed(TINY.evaluate, limit=20),
)
BUILT = paper.build(CONFIG)
KNOWN: Any = BUILT.minima or BUILT.accuracies.reference
CAREFUL = Fista(BUILT.baselines["FISTA"].step_size)  # pyright: ignore[reportAttributeAccessIssue]
EXPERIMENT = dataclasses.replace(
    BUILT,
    # A rule that compiles fast; untrained it is ADMM, so it needs no teacher.
    create_rule=lambda key: Safeguarded(LearnedSplitting.around(ADMM(0.1), 5), CAREFUL, patience=3),
    teacher=None,
    minima=KNOWN,
    informed=lambda rule: {"FISTA, told": Safeguarded(CAREFUL, CAREFUL)},
)
PRIOR = PriorSet.draw(EXPERIMENT.problem, CONFIG.sizes.prior, CONFIG.seed)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = RunFolder(tmp_path_factory.mktemp("best") / "run")
    return learn(CONFIG, EXPERIMENT, folder), folder


def test_minima_are_solved_once_and_no_rule_gets_below_them(finished):
    learned, folder = finished
    minima = folder.load("minima", Solved).minima
    np.testing.assert_allclose(minima, KNOWN(PRIOR.thetas), rtol=1e-12)
    losses = CONFIG.task(EXPERIMENT).losses(learned.deployed, PRIOR)[:, 0]
    assert np.all(losses >= minima * (1 - 1e-9))


def test_the_winner_of_the_population_is_located(finished):
    learned, folder = finished
    status = folder.status()
    assert status["population"]["state"] == "done" and "imitate" not in status
    chosen = folder.load("population", Chosen)
    assert (~np.isnan(chosen.merits)).sum(axis=1).tolist() == [3, 3, 2]
    # Untrained, all are the same.
    assert np.ptp(chosen.merits[0]) < 1e-9 < np.ptp(chosen.merits[1])
    # What was located is no worse than the winner, which it began with.
    located = folder.load("locate", Located)
    data = dataclasses.replace(PRIOR, minima=folder.load("minima", Solved).minima)
    before, after = (
        merit(CONFIG.task(EXPERIMENT), with_hyper(learned.deployed, jnp.asarray(hyper)), data)
        for hyper in (chosen.hyper, located.hyper)
    )
    assert after <= before


def test_the_deployed_rule_is_guarded_and_compared_with_those_told(finished):
    learned, _ = finished
    assert isinstance(learned.deployed, Safeguarded)
    assert "FISTA, told" in learned.evaluation.solvers
    assert np.all(np.diff(learned.evaluation.losses[0], axis=1) <= 0)


def test_its_certificate_stands_and_nothing_is_computed_twice(finished):
    learned, folder = finished
    assert [
        str(c) for c in verify(folder, paper.read_config(folder), EXPERIMENT, 8, 0) if not c.stands
    ] == []
    before = folder.certificate_path.read_bytes()
    again = learn(CONFIG, EXPERIMENT, folder)
    assert folder.certificate_path.read_bytes() == before
    np.testing.assert_array_equal(hyper_of(again.deployed), hyper_of(learned.deployed))


def test_the_populations_history_is_drawn_with_the_other_figures(finished):
    learned, folder = finished
    paths = write_report(learned, folder)
    assert paths["population"].name == "population.png"
    assert paths["population"].read_bytes()[1:4] == b"PNG"
    data = json.loads((folder.figures / "population.json").read_text())
    assert len(data["panels"][0]["lines"]) == 3


def test_distances_without_a_solver_are_refused_before_anything_is_written(tmp_path):
    blind = dataclasses.replace(EXPERIMENT, minima=None)
    with pytest.raises(ConfigurationError, match=r"training\.distances .* has no solver"):
        learn(CONFIG, blind, RunFolder(tmp_path / "run"))
    assert list(tmp_path.iterdir()) == []
