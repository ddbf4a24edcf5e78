"""A run on recorded instances: what opens the train set deals it, and all of it is verified."""

import numpy as np
import pytest

import surestep
from support.tiny import CONFIG, changed
from surestep.certify.certificate import Certificate
from surestep.problem.datasets import SealedSplit, SplitSizes
from surestep.rules import Coordinatewise, GradientDescent
from surestep.run.pipeline import learn
from surestep.run.stored import read_plan
from surestep.run.verify.fresh import verify_fresh
from surestep.run.verify.retrain import verify_retrained
from surestep.run.verify.run import verify
from surestep.storage.run_folder import RunFolder

ROWS = np.random.default_rng(3).normal(size=(200, 3))
PROBLEM = surestep.make_problem(
    lambda x, theta: ((x - theta) ** 2).sum(), np.ones(3), thetas=ROWS, name="recorded"
)
EXPERIMENT = surestep.Experiment(
    PROBLEM,
    create_rule=Coordinatewise.create,
    teacher=GradientDescent(0.3),
    baselines={"gradient descent": GradientDescent(0.3)},
    accuracies=surestep.Accuracies((1.0,)),
)
SETTINGS = changed(
    CONFIG,
    name="recorded",
    problem=None,
    block=64,
    sample_block=1,
    goal=surestep.Goal(1.0, 1.0),
    sizes=SplitSizes(50, 40, 60, 20),
    imitate=changed(CONFIG.imitate, steps=300),
    locate=changed(CONFIG.locate, steps=200, check_every=100),
    sample=changed(CONFIG.sample, samples=2, burn_in=0, thinning=1),
    evaluate=changed(CONFIG.evaluate, baselines=(), limit=20, shifted=0),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = RunFolder(tmp_path_factory.mktemp("recorded") / "run")
    learn(SETTINGS, EXPERIMENT, folder)
    return folder


def failed(checks):
    return [check.name for check in checks if not check.stands]


def test_a_run_on_recorded_instances_is_verified_and_made_again(folder):
    assert failed(verify(folder, SETTINGS, EXPERIMENT, 1)) == []
    assert failed(verify_fresh(folder, SETTINGS, EXPERIMENT)) == []
    assert failed(verify_retrained(folder, SETTINGS, EXPERIMENT)) == []


def test_its_train_set_was_dealt_by_its_plan(folder):
    document = Certificate.load(folder.certificate_path)
    sealed = SealedSplit.draw(PROBLEM, SETTINGS.sizes, SETTINGS.seed)
    split = sealed.open(SETTINGS.commitment(read_plan(folder.plan_path).sha256))
    assert document.data_sha256["train"] == split.train.sha256
    other = sealed.open(SETTINGS.commitment("0" * 64))
    assert other.train.sha256 != split.train.sha256
    assert "Which train instances were taken follows from the seed 0" in str(document)
