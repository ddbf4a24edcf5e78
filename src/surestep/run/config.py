"""The configuration of a run: frozen dataclasses, one per stage."""

import dataclasses
import math
from typing import Annotated, Any, Generic, Literal, TypeVar

import tyro

from surestep.base.errors import ConfigurationError
from surestep.certify import CertifySettings
from surestep.evaluate.test_set import EvaluateSettings
from surestep.problem import Commitment, Goal, SplitSizes, require_word, sha256_of
from surestep.rollout.batched import BLOCK
from surestep.rules.safeguarded import SafeguardSettings
from surestep.storage.records import to_json, to_plain
from surestep.train import (
    Constraint,
    Experiment,
    ImitateSettings,
    LocateSettings,
    PopulationSettings,
    SampleSettings,
    Task,
    TrainingSettings,
)

Settings = TypeVar("Settings")


@dataclasses.dataclass(frozen=True)
class RunConfig(Generic[Settings]):
    """Every number of a run. Two runs with equal configurations and rules give equal certificates.

    **Example:**

    ```python
    config = ss.paper.preset("quadratics", "tiny")
    config = dataclasses.replace(config, horizon=20, seed=1)
    config.validate()
    ```
    """

    name: Annotated[str, tyro.conf.Suppress]
    """The problem."""
    preset: Annotated[str, tyro.conf.Suppress]
    """The preset the configuration started from."""
    problem: Settings
    """The family of problems."""
    goal: Goal
    """What counts as success on an instance."""
    horizon: int
    """After how many iterations the goal must be reached."""
    rule: Literal["paper", "guarded", "residual", "auto"] = "paper"
    """Which rule is learned: the paper's, the same inside a safeguard, or a classical one with
    what was learned added to it."""
    seed: int = 0
    """The run's seed: data sets, initial weights, training, sampling."""
    word: str = ""
    """A verifier's word, given after the plan was fixed: it decides about the train set, too."""
    family_seed: int = 0
    """The family's seed: what is drawn once and shared by all instances."""
    block: int = 0
    """How many instances are iterated as one batch; 0 for as many as suit this machine."""
    sample_block: Annotated[int, tyro.conf.arg(aliases=["--abreast"])] = 0
    """How many samples one program rolls out when certifying; 0 for as many as suit it."""
    sizes: SplitSizes = SplitSizes()
    """Sizes of the four data sets."""
    constraint: Constraint = Constraint()
    """Which success probabilities are acceptable."""
    guard: SafeguardSettings = SafeguardSettings()
    """When a guarded rule gives way to its fallback."""
    training: TrainingSettings = TrainingSettings()
    """What training makes small, while locating and sampling."""
    imitate: ImitateSettings = ImitateSettings()
    """Imitation of a classical rule."""
    population: PopulationSettings = PopulationSettings()
    """Several rules that compete before one of them is located."""
    locate: LocateSettings = LocateSettings()
    """Training."""
    sample: SampleSettings = SampleSettings()
    """Sampling the prior."""
    certify: CertifySettings = CertifySettings()
    """Posterior and certificate."""
    evaluate: EvaluateSettings = EvaluateSettings()
    """Evaluation on the test set."""

    def task(self, experiment: Experiment) -> Task:
        """What all stages of a run have in common."""
        return Task(
            experiment.problem,
            self.goal,
            self.constraint,
            self.horizon,
            self.block or BLOCK,
            experiment.statistics,
            self.training,
            self.sample_block or 1,
            to_plain(self.problem),
        )

    def commitment(self, plan_sha256: str) -> Commitment:
        """What opens a train set, once its plan is fixed."""
        # The word is no part of what a verifier is told before giving it.
        configuration = sha256_of(to_json(dataclasses.replace(self, word="")))
        return Commitment(configuration, plan_sha256, self.word)

    def validate(self) -> None:
        """Refuse what cannot work, before any work is done."""
        _require_finite(self)
        require_word(self.word)
        for field in dataclasses.fields(self.sizes):
            size = getattr(self.sizes, field.name)
            if size < 1:
                raise ConfigurationError(f"sizes.{field.name} must be at least 1, not {size}")
        if self.horizon < 1:
            raise ConfigurationError(f"horizon must be at least 1, not {self.horizon}")
        if min(self.block, self.sample_block) < 0:
            raise ConfigurationError(
                "block and sample_block must be at least 1, or 0 for what suits this machine, not "
                f"{self.block} and {self.sample_block}"
            )
        for name in ("seed", "family_seed"):
            if not 0 <= getattr(self, name) < 2**31:
                raise ConfigurationError(
                    f"{name} must be a whole number from 0 to 2^31 - 1, not {getattr(self, name)}"
                )
        checks: Any = self.problem
        if hasattr(checks, "validate"):
            checks.validate()
        self.goal.validate()
        self.constraint.validate(self.sizes.validation)
        self.guard.validate()
        self.training.validate()
        self.imitate.validate()
        self.population.validate(self.horizon)
        self.locate.validate(self.horizon)
        self.sample.validate()
        self.certify.validate()
        self.evaluate.validate()


def _require_finite(value: Any, where: str = "") -> None:
    """No setting is infinite or not a number."""
    if dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            inner = f"{where}.{field.name}" if where else field.name
            _require_finite(getattr(value, field.name), inner)
    elif isinstance(value, list | tuple):
        for item in value:
            _require_finite(item, where)
    elif isinstance(value, float) and not math.isfinite(value):
        raise ConfigurationError(f"{where} must be a finite number, not {value}")
