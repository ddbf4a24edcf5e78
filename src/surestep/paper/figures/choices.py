"""What two choices in training do: the ratio of losses, and trajectories of random length."""

import dataclasses

import numpy as np
from jaxtyping import Float

from surestep.base.progress import Reporter
from surestep.paper import registry
from surestep.problem import SealedSplit, TestSet, working_precision
from surestep.report.figures import Figure, iterations_panel
from surestep.rules.base import Rule, with_hyper
from surestep.train import Constraint, LocateSettings, Restarts, Task, TrainingSettings, hyper_at
from surestep.train.imitate import imitate
from surestep.train.locate import locate

CHOICES: dict[str, tuple[TrainingSettings, Restarts]] = {
    "ratio, random length": (TrainingSettings(), "random"),
    "sum of losses": (TrainingSettings(objective="sum"), "random"),
    "fixed length": (TrainingSettings(), "fixed"),
}
"""The paper's design, and what it is compared with: all else is equal."""


def design_choices(seed: int, report: Reporter, preset: str = "quick") -> Figure:
    """Losses on fresh quadratics of rules that were trained with and without each choice."""
    config = registry.preset("quadratics", preset)
    experiment = registry.build(config)
    # Rules are compared whether or not they meet the constraint.
    anything = Constraint(lower=0.0, width=1.0)
    task = dataclasses.replace(config.task(experiment), constraint=anything)
    sealed = SealedSplit.draw(experiment.problem, config.sizes, seed)
    test = TestSet.draw(experiment.problem, config.sizes.test, seed)
    assert experiment.teacher is not None
    with working_precision(experiment.problem):
        rule = experiment.rule(seed)
        first = imitate(
            config.imitate, task, rule, experiment.teacher, sealed.prior, seed, report
        ).hyper
        rule = with_hyper(rule, hyper_at(rule, first))
    steps = tuple(range(2 * config.horizon + 1))
    curves = {
        name: _trained(
            dataclasses.replace(config.locate, restarts=restarts),
            dataclasses.replace(task, training=training),
            rule, sealed, test, seed, report, steps,
        )
        for name, (training, restarts) in CHOICES.items()
    }  # fmt: skip
    ours, summed, fixed = CHOICES
    return Figure(
        name="choices",
        title=f"Design choices on quadratics (preset {preset}, {config.locate.steps} steps, "
        f"{test.size} test instances, bands of 95 %)",
        groups=list(CHOICES),
        panels=[
            iterations_panel(
                f"Ratio of losses (horizon {config.horizon})",
                "loss",
                {ours: curves[ours], summed: curves[summed]},
                config.horizon,
                0.95,
            ),
            iterations_panel(
                f"Random length of trajectories (horizon {config.horizon})",
                "loss",
                {ours: curves[ours], fixed: curves[fixed]},
                config.horizon,
                0.95,
            ),
        ],
    )


def _trained(
    settings: LocateSettings,
    task: Task,
    rule: Rule,
    sealed: SealedSplit,
    test: TestSet,
    seed: int,
    report: Reporter,
    steps: tuple[int, ...],
) -> Float[np.ndarray, "instance iteration"]:
    found = locate(settings, task, rule, sealed.prior, sealed.validation, seed, report=report)
    with working_precision(task.problem):
        trained = with_hyper(rule, hyper_at(rule, found.hyper))
    return task.losses(trained, test, steps)
