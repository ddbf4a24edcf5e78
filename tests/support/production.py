"""A solver as a run leaves it, without the training: heavy ball with two learned numbers."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from support.tiny import OPPONENTS, PROBLEM, SPLIT, TASK, planned, references
from surestep.certify.gather import certify
from surestep.certify.statements import make_certificate
from surestep.problem.draw import working_precision
from surestep.rules import HeavyBall
from surestep.rules.base import hyper_of, solver_fingerprint, with_hyper
from surestep.solver.posterior import Posterior
from surestep.solver.solver import Solver
from surestep.train.sample import Sampled


def first(thetas: Any, number: int) -> Any:
    """The first instances of a stacked set."""
    return jax.tree.map(lambda leaf: leaf[:number], thetas)


THETAS = first(SPLIT.test.thetas, 6)


@functools.cache
def certified_solver() -> Any:
    """Three samples of a posterior, a certificate that is really theirs."""
    classical: Any = OPPONENTS["heavy ball"]
    with working_precision(PROBLEM), jax.enable_x64(True):
        rule = HeavyBall(jnp.asarray(classical.step_size), jnp.asarray(classical.momentum))
        hypers = np.asarray(hyper_of(rule)) * np.array([[0.9], [1.0], [0.8]])
        rules = [with_hyper(rule, jnp.asarray(hyper)) for hyper in hypers]
        losses = np.stack([TASK.losses(one, SPLIT.prior)[:, 0] for one in rules])
        thresholds = TASK.thresholds(SPLIT.prior)
        prior = Sampled.given(hypers, np.full(3, 0.9), losses, thresholds, np.zeros(3))
        plan = planned(prior, rule=rule)
        found = certify(plan, TASK, rule, prior, OPPONENTS, references(), SPLIT.train)
        deployed = rules[found.deployed_sample]
    sha256 = solver_fingerprint(deployed)
    document = make_certificate("tiny", plan, sha256, found, {"train": SPLIT.train.size}, {})
    # Weights that draws can tell apart, whatever the train set says.
    weights = np.log(np.roll([0.6, 0.3, 0.1], found.deployed_sample))
    posterior = Posterior(hypers, weights)
    probes = first(SPLIT.prior.thetas, 4)
    return Solver(
        PROBLEM, deployed, TASK.horizon, TASK.goal, TASK.block, document, posterior, probes
    )
