"""Which training objective makes the best rules? A comparison over seeds.

Every variant trains the same rule from the same start for the same number of steps, and is judged
by its merit on instances that nobody was trained on: mean power of ten of the loss (or of its
distance to the minimum, where that is known), typical and worst instance counted the same, so
smaller is better and a difference of 1 is a factor of ten.

    python benchmarks/objectives.py [--seeds 3]
"""

import argparse
import dataclasses
import statistics
from typing import Any

import jax.numpy as jnp
import numpy as np

from surestep import paper
from surestep.problem.datasets import PriorSet, TestSet, ValidationSet
from surestep.problem.draw import working_precision
from surestep.rules.base import Rule, hyper_of, with_hyper
from surestep.run.config import RunConfig
from surestep.train.constraint import Constraint
from surestep.train.imitate import imitate
from surestep.train.locate import LocateSettings, locate
from surestep.train.steps import merit_of
from surestep.train.trajectory import TrainingSettings

VARIANTS: dict[str, tuple[dict[str, Any], tuple[int, ...]]] = {
    "ratio, pieces of 1 (the paper)": ({"objective": "ratio"}, (1,)),
    "ratio, pieces of 5": ({"objective": "ratio"}, (5,)),
    "ratio of distances, pieces of 5": ({"objective": "ratio", "distances": True}, (5,)),
    "log, pieces of 1": ({"objective": "log"}, (1,)),
    "log, pieces of 5": ({"objective": "log"}, (5,)),
    "log, pieces of 5, then 20": ({"objective": "log"}, (5, 20)),
    "log, through gradients, 20": ({"objective": "log", "through": True}, (20,)),
    "log of distances, 20": ({"objective": "log", "distances": True}, (20,)),
    "log of distances, through, 20": (
        {"objective": "log", "distances": True, "through": True},
        (20,),
    ),
}

CASES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "quadratics, the paper's rule, guarded": (
        "quadratics", "quick", {"rule": "guarded", "horizon": 100},
    ),
    "lasso, learned splitting": ("lasso", "quick", {"rule": "residual", "horizon": 60}),
    "network, quasi-Newton from a learned start": (
        "network", "quick", {"rule": "residual", "horizon": 50},
    ),
}  # fmt: skip
RATES = {"quadratics": 1e-3, "lasso": 0.03, "network": 0.01}
FLOORS = {"quadratics": 1e-12, "lasso": 1e-4, "network": 1e-3}
ITERATIONS = 40_000
"""Iterations that are differentiated in training: pieces are fewer where they are longer."""


def main() -> None:
    """Print one table a case."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    seeds = range(100, 100 + parser.parse_args().seeds)
    for title, (name, preset, changes) in CASES.items():
        config = dataclasses.replace(paper.preset(name, preset), **changes)
        print(f"\n{title} ({ITERATIONS} differentiated iterations, seeds {[*seeds]})")
        for variant, (training, length) in VARIANTS.items():
            if training.get("distances") and name != "lasso":
                continue  # the others' minima are 0, or nobody knows them
            found = [trained(config, training, length, seed) for seed in seeds]
            cells = " ".join(f"{one:7.2f}" for one in found)
            print(f"  {variant:34s} {cells}   median {statistics.median(found):6.2f}", flush=True)


def trained(
    config: RunConfig[Any], training: dict[str, Any], length: tuple[int, ...], seed: int
) -> float:
    """The merit, on fresh instances, of a rule that was trained so."""
    settings = TrainingSettings(floor=FLOORS[config.name], **training)
    config = dataclasses.replace(config, seed=seed, training=settings)
    experiment = paper.build(config)
    anything = Constraint(lower=0.0, width=1.0)
    task = dataclasses.replace(config.task(experiment), constraint=anything)
    prior = PriorSet.draw(task.problem, 100, seed)
    if settings.distances:
        assert experiment.minima is not None
        prior = dataclasses.replace(prior, minima=experiment.minima(prior.thetas))
    validation = ValidationSet.draw(task.problem, 64, seed)
    with working_precision(task.problem):
        rule = experiment.rule(seed)
        if experiment.teacher is not None:
            taught = imitate(config.imitate, task, rule, experiment.teacher, prior, seed).hyper
            rule = with_hyper(rule, jnp.asarray(taught, hyper_of(rule).dtype))
        steps = int(ITERATIONS / statistics.mean(length))
        locating = LocateSettings(
            steps=steps, learning_rate=RATES[config.name], halve_every=max(1, steps // 4),
            length=length, check_every=steps, chunk=steps,
        )  # fmt: skip
        found = locate(locating, task, rule, prior, validation, seed).hyper
        rule = with_hyper(rule, jnp.asarray(found, hyper_of(rule).dtype))
        return judged(config, experiment.minima, task, rule, seed)


def judged(config: RunConfig[Any], minima: Any, task: Any, rule: Rule, seed: int) -> float:
    """The merit on fresh instances."""
    fresh = TestSet.draw(task.problem, 100, seed)
    at = tuple(max(1, task.horizon // part) for part in (4, 2, 1))
    losses = task.losses(rule, fresh, at)
    least = np.asarray(minima(fresh.thetas)) if minima is not None else np.zeros(fresh.size)
    return merit_of(losses - least[:, None], FLOORS[config.name])


if __name__ == "__main__":
    main()
