"""No stage compiles anything on its second call."""

import jax
import pytest

from support.tiny import (
    CONFIG,
    EXPERIMENT,
    OPPONENTS,
    PROBLEM,
    TASK,
    TEACHER,
    changed,
    opened,
    planned,
    references,
)
from surestep.certify.gather import certify
from surestep.evaluate.test_set import evaluate
from surestep.problem.draw import working_precision
from surestep.rules.base import hyper_of, with_hyper
from surestep.train.experiment import Accuracies
from surestep.train.imitate import imitate
from surestep.train.locate import locate
from surestep.train.sample import sample

ANYTHING = changed(TASK, constraint=changed(TASK.constraint, lower=0.0))

BASELINES = EXPERIMENT.chosen(CONFIG.evaluate.baselines)


def run(stage, seed):
    """One stage with data, weights and random numbers of its own."""
    with working_precision(PROBLEM):
        split = opened(PROBLEM, CONFIG.sizes, seed)
        rule = EXPERIMENT.rule(seed)
        rule = with_hyper(rule, 0.5 * hyper_of(rule))
    small = changed(CONFIG.sample, samples=3)
    if stage == "imitate":
        imitate(CONFIG.imitate, TASK, rule, TEACHER, split.prior, seed)
    elif stage == "locate":
        locate(CONFIG.locate, ANYTHING, rule, split.prior, split.validation, seed)
    elif stage == "sample":
        sample(small, ANYTHING, rule, split.prior, split.validation, seed)
    elif stage == "certify":
        prior = sample(small, ANYTHING, rule, split.prior, split.validation, seed)
        certify(
            planned(prior), ANYTHING, rule, prior, OPPONENTS, references(split.train), split.train
        )
    elif stage == "evaluate":
        evaluate(CONFIG.evaluate, TASK, rule, BASELINES, Accuracies((1e2, 1.0)), split.test)


def test_the_counter_counts(compilations):
    with compilations() as counter:
        jax.jit(lambda x: x + 1.2345)(3.0)
    assert counter.count > 0


@pytest.mark.parametrize("stage", ["imitate", "locate", "sample", "certify", "evaluate"])
def test_a_second_call_compiles_nothing(stage, compilations):
    run(stage, 0)
    with compilations() as second:
        run(stage, 1)
    assert second.count == 0
