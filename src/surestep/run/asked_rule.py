"""A run's deployed rule and what is asked of it: instances are drawn for it and rolled out."""

import dataclasses
import time
from typing import Any, Self

import numpy as np
from jaxtyping import Float

from surestep.base.errors import ConfigurationError, RunFolderError
from surestep.base.keys import named_key
from surestep.certify.asked import Asked
from surestep.certify.until import UntilOutcomes, UntilPlan, plan_until
from surestep.problem import DrawnInChunks, StockedProblem, TrainSet
from surestep.rollout.tiles import observe_all
from surestep.rules.base import Rule, solver_fingerprint
from surestep.run.config import RunConfig
from surestep.storage.run_folder import RunFolder
from surestep.train import Experiment, Sampled

_KEYS = "until"
_PILOT = 256
_TILES = (64, 256)


@dataclasses.dataclass(frozen=True)
class AskedRule:
    """A trained rule, and what is asked of it."""

    config: RunConfig[Any]
    experiment: Experiment
    asked: Asked
    """With its iterations."""
    sample: int
    """Which sample is deployed."""
    rule: Rule
    seed: int

    @classmethod
    def of(
        cls,
        folder: RunFolder,
        config: RunConfig[Any],
        experiment: Experiment,
        asked: Asked,
        sample: int,
        seed: int,
    ) -> Self:
        """The rule that a run has deployed: one of its samples."""
        hypers = folder.load("sample", Sampled).hypers
        if not 0 <= sample < len(hypers):
            raise RunFolderError(f"{folder.path} has {len(hypers)} samples, and no sample {sample}")
        rule = experiment.rule_at(config.seed, hypers[sample])
        return cls(config, experiment, asked, sample, rule, seed)

    @property
    def above(self) -> str:
        """What closeness is counted from, in words; nothing where that is 0."""
        counted = self.asked.target.kind != "goal" and not self.asked.from_zero
        accuracies = self.experiment.accuracies
        return accuracies.above if counted and accuracies.reference is not None else ""

    @property
    def tile(self) -> int:
        """How many instances are rolled out by one call of the program."""
        return min(max(self.config.block, _TILES[0]), _TILES[1])

    def fresh(self, plan: UntilPlan, number: int) -> TrainSet:
        """The batch of fresh instances of this number.

        The key is made from the plan's hash: nobody has seen them before the plan was fixed.
        """
        return self._drawn(plan.batch, plan.sha256, number)

    def _drawn(self, size: int, *names: str | int) -> TrainSet:
        key = named_key(self.seed, _KEYS, *names)
        return TrainSet(DrawnInChunks(self.experiment.problem, size, key).part(0, size))

    def observe(self, data: TrainSet, rule: Rule | None = None) -> UntilOutcomes:
        """What the rule, or another that takes its place, does on some instances."""
        assert self.asked.iterations is not None
        task = self.config.task(self.experiment)
        watch = dataclasses.replace(task.watch((self.asked.iterations,)), statistics=())
        work = task.work(rule or self.rule, data, watch, length=self.tile)
        return UntilOutcomes(observe_all(work).losses[:, 0], self.levels(data))

    def levels(self, data: TrainSet) -> Float[np.ndarray, " instance"]:
        """The loss that every instance is to reach."""
        task, target = self.config.task(self.experiment), self.asked.target
        nothing = np.zeros(data.size)
        references = self.experiment.references(data) if self.above else nothing
        starts = task.start_losses(data) if target.kind == "start" else nothing
        thresholds = task.thresholds(data) if target.kind == "goal" else nothing
        return np.asarray(target.levels(references, starts, thresholds), np.float64)

    def pilot(self) -> tuple[UntilOutcomes, float]:
        """Outcomes on instances that are drawn for this alone, and the seconds of one of them."""
        seen, took = UntilOutcomes.nothing(), 0.0
        for number in range(max(_PILOT // self.tile, 2)):
            began = time.monotonic()
            data = self._drawn(self.tile, "pilot", self.asked.words, number)
            seen = seen.then(self.observe(data))
            # The first one compiles.
            took = time.monotonic() - began
        return seen, took / self.tile

    def plan(self, epsilon: float, pilot: UntilOutcomes) -> UntilPlan:
        """The plan, whose bets are guided by the pilot."""
        assert self.asked.iterations is not None
        good = int(pilot.hits.sum())
        return plan_until(
            self.asked,
            epsilon,
            (good, pilot.size - good),
            self.tile,
            problem=self.config.name,
            iterations=self.asked.iterations,
            above=self.above,
            goal=self.config.goal,
            pool=self.experiment.pool,
            seed=self.seed,
            deployed_sample=self.sample,
            solver_sha256=solver_fingerprint(self.rule),
        )


def asked_of(claim: str, config: RunConfig[Any], experiment: Experiment) -> Asked:
    """A claim that can be made of a run's rule, its iterations filled in."""
    asked, problem = Asked.read(claim), experiment.problem
    if isinstance(problem, StockedProblem):
        raise ConfigurationError(
            "recorded instances cannot be drawn for as long as it takes: certify on a file of "
            "fresh ones (--instances FILE.npz)"
        )
    counted = asked.target.kind != "goal" and not asked.from_zero
    if counted and experiment.accuracies.reference is None and not problem.nonnegative:
        raise ConfigurationError(
            f"{claim!r} is counted from minima, and nobody knows those of this problem: ask for "
            "'loss V' or 'goal'"
        )
    if asked.iterations is None:
        return dataclasses.replace(asked, iterations=config.horizon)
    return asked
