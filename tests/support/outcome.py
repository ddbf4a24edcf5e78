"""A run's outcome made from drawn numbers: the real certificate, without any training."""

import dataclasses

import jax
import numpy as np

from surestep.certify.evidence import Evidence, reach_of_paths
from surestep.certify.pilot import Pilot
from surestep.certify.planning import kept_iterations, plan_certificate
from surestep.certify.posterior import find_posterior
from surestep.certify.settings import CertifySettings
from surestep.certify.statements import make_certificate
from surestep.certify.targets import Target
from surestep.evaluate.evaluated import LEARNED, Evaluated
from surestep.evaluate.off_family import UNSHIFTED, Shifted
from surestep.problem.base import Problem
from surestep.problem.goal import Goal
from surestep.rollout.loop import Status
from surestep.rules import Coordinatewise
from surestep.rules.base import hyper_of, solver_fingerprint
from surestep.run.learned import Learned
from surestep.train.constraint import Constraint
from surestep.train.population import Chosen
from surestep.train.sample import Sampled
from surestep.train.task import Task

HORIZON, TRAIN, TEST, SAMPLES = 20, 300, 120, 3
SOLVERS = [LEARNED, "heavy ball", "conjugate gradients"]
ACCURACIES = [1e-1, 1e-3]
CONFIG = {
    "name": "valley",
    "preset": "quick",
    "seed": 7,
    "problem": {"width": 3.5, "label": "steep & narrow"},
    "sample": {"samples": SAMPLES, "step_sizes": {"initial": 1e-6}},
}
STATUS = {
    "locate": {"state": "done", "seconds": 12.5},
    "evaluate": {"state": "done", "seconds": 0.5},
    "made_with": {"environments": [{"jax": "0.10", "device": "cpu"}]},
}


class Valley(Problem):
    """The square of the distance to a point, times 3.

    What stands here is not on the page.
    """

    def sample(self, key):
        return jax.random.normal(key, (4,))

    def start(self, theta):
        return 0 * theta

    def loss(self, x, theta):
        return 3 * jax.numpy.sum((x - theta) ** 2)


def falling(random, number, rate, steps):
    """Losses that fall to about 10^-rate at the horizon, each instance at its own pace."""
    pace = rate * random.uniform(0.5, 1.5, (number, 1))
    return 10.0 ** (2 - pace * np.arange(steps + 1) * (2 + rate) / rate / HORIZON)


def evaluated(random):
    """The learned rule in the middle: ahead of heavy ball, behind conjugate gradients."""
    steps = 2 * HORIZON
    losses = np.stack([falling(random, TEST, rate, steps) for rate in (4, 1, 9)])
    needed = np.stack([random.integers(low, 2 * low, (2, TEST)) for low in (20, 200, 8)])
    status = np.full(needed.shape, Status.REACHED)
    status[1, 1, :7] = Status.LIMIT
    targets = np.tile(np.array(ACCURACIES)[:, None], (1, TEST))
    none = np.empty((0, len(ACCURACIES), TEST))
    return Evaluated(
        losses=losses,
        gradients=np.tile(np.arange(steps + 1), (3, TEST, 1)),
        measures=np.empty((3, 0, TEST, steps + 1)),
        thresholds=np.ones(TEST),
        starts=losses[0, :, 0],
        references=np.zeros(TEST),
        targets=targets,
        reach_iterations=needed,
        reach_gradients=needed,
        reach_status=status,
        seconds=1e-5 * needed,
        seconds_batch=1e-6 * needed.sum(axis=2),
        solvers=list(SOLVERS),
        accuracies=ACCURACIES,
        above="",
        relative=False,
        measured=[],
        success=Constraint().assess(int(np.sum(losses[0, :, HORIZON] <= 1)), TEST),
        external_losses=none,
        external_seconds=none,
        external=[],
    )


def seen(random, samples, size, targets, at):
    """What certificates rest on, of rules that end at about 1e-4 and an opponent at 0.1."""
    ours = np.stack([falling(random, size, 4, HORIZON) for _ in range(samples)])
    theirs = falling(random, size, 1, 2 * HORIZON)
    thresholds, references = np.ones(size), np.zeros(size)
    levels = np.stack([t.levels(references, ours[0, :, 0], thresholds) for t in targets], axis=1)
    return Evidence(
        losses=ours[:, :, list(at)],
        thresholds=thresholds,
        references=references,
        starts=ours[0, :, 0],
        reach=reach_of_paths(ours, levels),
        opponent_losses=theirs[None, :, HORIZON],
        opponent_reach=reach_of_paths(theirs, levels)[None],
        statistics=np.empty((samples, size, 0)),
        traits=np.empty((size, 0)),
    )


def outcome(seed=0):
    """What `learn` would return."""
    random = np.random.default_rng(seed)
    with jax.enable_x64(True):
        rule = Coordinatewise.create(jax.random.key(seed))
        weights = hyper_of(rule).size
    prior = Sampled.given(
        random.normal(size=(SAMPLES, weights)),
        np.full(SAMPLES, 0.97),
        np.stack([falling(random, 200, 4, HORIZON)[:, -1] for _ in range(SAMPLES)]),
        np.ones(200),
        np.full(SAMPLES, -np.log(SAMPLES)),
    )
    kept, opponents = kept_iterations(HORIZON, 36), ("heavy ball",)
    targets = (Target("loss", 1e-1), Target("loss", 1e-2), Target("goal"))
    pilot = Pilot(seen(random, 1, 200, targets, kept), opponents)
    plan = plan_certificate(
        CertifySettings(opponents=opponents), prior, pilot, targets, "", TRAIN, kept, 1.0
    )
    evidence = seen(random, SAMPLES, TRAIN, targets, plan.iterations)
    found = find_posterior(plan, prior, evidence)
    sizes = {"prior": 200, "validation": 200, "train": TRAIN}
    certificate = make_certificate(
        "valley",
        plan,
        solver_fingerprint(rule),
        found,
        sizes,
        {"prior": "1" * 64, "validation": "2" * 64, "train": "0" * 64},
    )
    shifted = Shifted(
        losses=np.stack([falling(random, 2 * 30, 3, HORIZON).reshape(2, 30, -1)] * 2),
        thresholds=np.ones((2, 30)),
        shifts=[UNSHIFTED, "twice as wide"],
        solvers=SOLVERS[:2],
    )
    task = Task(Valley(), Goal(1.0, 0.0), Constraint(), HORIZON, 64)
    return Learned(task, rule, certificate, prior, found, evaluated(random), 12.5, shifted)


def population():
    """Four rules, two rounds."""
    merits = np.array([[1.0, 2.0, 3.0, 4.0], [0.5, 1.0, 2.5, 3.5], [0.2, 0.9, np.nan, np.nan]])
    return Chosen(hyper=np.zeros(3), merits=merits, member=0, rate=2.0)


def renamed(learned: Learned, name: str) -> Learned:
    """The same outcome for a problem of another name, with a solver of that name."""
    certificate = dataclasses.replace(
        learned.certificate,
        problem=name,
        statements=[
            dataclasses.replace(s, sentence=s.sentence.replace("heavy ball", name))
            for s in learned.certificate.statements
        ],
    )
    evaluation = dataclasses.replace(learned.evaluation, solvers=[LEARNED, name, f"{name} 2"])
    assert learned.shifted is not None
    shifted = dataclasses.replace(learned.shifted, shifts=[UNSHIFTED, name])
    return dataclasses.replace(
        learned, certificate=certificate, evaluated=evaluation, shifted=shifted
    )
