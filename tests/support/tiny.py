"""A task small enough for tests, with everything that stages take."""

import dataclasses
import functools
from typing import Any

import jax

from surestep import paper
from surestep.certify.planning import pilot_run, plan_run, references_for
from surestep.problem.datasets import Commitment, SealedSplit, SealedTrainSet, TrainSet
from surestep.problem.draw import working_precision
from surestep.rollout.batched import BLOCK
from surestep.rules.base import with_hyper
from surestep.train.imitate import imitate
from surestep.train.locate import locate
from surestep.train.task import Task

CONFIG = paper.preset("quadratics", "tiny")
EXPERIMENT = paper.build(CONFIG)
PROBLEM = EXPERIMENT.problem
assert EXPERIMENT.teacher is not None
TEACHER = EXPERIMENT.teacher
OPPONENTS = {"heavy ball": EXPERIMENT.baselines["heavy ball"]}

COMMITMENT = Commitment("no configuration", "no plan")
"""Opens train sets that no plan is made for."""


def train_set(size, seed, problem=PROBLEM):
    """A train set that no plan is made for."""
    return TrainSet.draw(problem, size, seed, COMMITMENT)


def sealed(size, seed):
    """A train set that nobody has seen yet."""
    return SealedTrainSet(PROBLEM, size, seed)


def opened(problem, sizes, seed, commitment=COMMITMENT):
    """All four sets, for no plan in particular."""
    return SealedSplit.draw(problem, sizes, seed).open(commitment)


with working_precision(PROBLEM):
    RULE = EXPERIMENT.rule(0)
    SPLIT = opened(PROBLEM, CONFIG.sizes, 0)

TASK = Task(PROBLEM, CONFIG.goal, CONFIG.constraint, CONFIG.horizon, BLOCK)


def planned(prior, train: TrainSet | SealedTrainSet = SPLIT.train, rule=RULE, task=TASK, **changes):
    """The plan for a prior, with heavy ball as the opponent unless changes say otherwise."""
    settings = changed(CONFIG.certify, **{"opponents": tuple(OPPONENTS)} | changes)
    experiment = changed(EXPERIMENT, statistics=task.statistics)
    pilot = pilot_run(settings, task, experiment, rule, prior, SPLIT.prior, train.size)
    return plan_run(settings, task, experiment, prior, pilot, train.size)


def references(train=SPLIT.train):
    """The losses that closeness on a set is counted from."""
    return references_for(CONFIG.certify, EXPERIMENT, train)


@functools.cache
def located():
    """A rule that meets the tiny constraint: heavy ball is what imitation aims at."""
    with working_precision(PROBLEM):
        hyper = imitate(CONFIG.imitate, TASK, RULE, TEACHER, SPLIT.prior, 0).hyper
        start = with_hyper(RULE, jax.numpy.asarray(hyper))
        found = locate(CONFIG.locate, TASK, start, SPLIT.prior, SPLIT.validation, 0)
        return with_hyper(RULE, jax.numpy.asarray(found.hyper))


def changed(settings: Any, **changes: Any) -> Any:
    return dataclasses.replace(settings, **changes)


SMALL = changed(
    CONFIG,
    # As many as a run takes by itself: its folder keeps them, and train sets follow from all of it.
    block=BLOCK,
    sample_block=1,
    locate=changed(CONFIG.locate, steps=600, check_every=200),
    sample=changed(CONFIG.sample, samples=3, burn_in=0, thinning=1),
    # Not the strongest: conjugate gradients end at rounding, of which nothing can be verified.
    certify=changed(CONFIG.certify, opponents=("heavy ball",)),
    evaluate=changed(CONFIG.evaluate, baselines=("heavy ball",), limit=20),
)
