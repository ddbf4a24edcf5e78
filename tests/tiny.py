"""A task small enough for tests, with everything that stages take."""

import dataclasses

import jax

from surestep import problems
from surestep.problem import working_precision
from surestep.randomness import named_key
from surestep.rule import with_hyper
from surestep.split import Split
from surestep.stages.imitate import imitate
from surestep.stages.locate import locate
from surestep.task import Task

CONFIG = problems.preset("quadratics", "tiny")
EXPERIMENT = problems.build(CONFIG)
PROBLEM = EXPERIMENT.problem
assert EXPERIMENT.teacher is not None
TEACHER = EXPERIMENT.teacher

with working_precision(PROBLEM):
    RULE = EXPERIMENT.create_rule(named_key(0, "rule"))
    SPLIT = Split.draw(PROBLEM, CONFIG.sizes, 0)

TASK = Task(PROBLEM, CONFIG.goal, CONFIG.constraint, CONFIG.horizon, CONFIG.block)


def located():
    """A rule that meets the tiny constraint: heavy ball is what imitation aims at."""
    with working_precision(PROBLEM):
        hyper = imitate(CONFIG.imitate, TASK, RULE, TEACHER, SPLIT.prior, 0).hyper
        start = with_hyper(RULE, jax.numpy.asarray(hyper))
        found = locate(CONFIG.locate, TASK, start, SPLIT.prior, SPLIT.validation, 0)
        return with_hyper(RULE, jax.numpy.asarray(found.hyper))


def changed(settings, **changes):
    return dataclasses.replace(settings, **changes)
