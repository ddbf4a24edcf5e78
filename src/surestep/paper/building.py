"""What building the five experiments has in common."""

from collections.abc import Callable
from typing import Any

from jaxtyping import Array

from surestep.problem import PriorSet, Problem
from surestep.rules.base import Rule
from surestep.run.config import RunConfig
from surestep.train import Accuracies, Experiment, Family, tuned

__all__ = [
    "BATCH",
    "Accuracies",
    "CreateRule",
    "Experiment",
    "PriorSet",
    "Rule",
    "is_residual",
    "paper_rule",
    "prior_set",
    "rule_of",
    "tuned_number",
]

BATCH = {"image": 10, "lasso": 64, "network": 256, "mnist": 16}
"""How many instances classical solvers take in a batch, before a run has measured what is best."""

CreateRule = Callable[[Array], Rule]
"""Makes a rule, with random weights drawn from a key."""


def is_residual(config: RunConfig[Any]) -> bool:
    """Whether a classical rule is corrected, which needs no teacher."""
    return config.rule == "residual"


def rule_of(
    config: RunConfig[Any], *, paper: CreateRule, fallback: Rule, residual: CreateRule
) -> CreateRule:
    """The rule that a configuration asks for: a corrected classical one, or the paper's."""
    return residual if is_residual(config) else paper_rule(config, paper, fallback)


def paper_rule(config: RunConfig[Any], paper: CreateRule, fallback: Rule) -> CreateRule:
    """The paper's rule as it is, or inside a safeguard with a fallback."""
    if config.rule == "paper":
        return paper
    return lambda key: config.guard.around(paper(key), fallback)


def prior_set(config: RunConfig[Any], problem: Problem) -> PriorSet:
    """The prior set of the run, on which opponents are tuned."""
    return PriorSet.draw(problem, config.sizes.prior, config.seed)


def tuned_number(
    config: RunConfig[Any],
    setting: str,
    family: Family,
    problem: Problem,
    data: PriorSet,
    iterations: int = 0,
) -> float:
    """The best number of a family of rules after some iterations, by default the horizon.

    `setting` is the field of the problem's settings that says which numbers are tried.
    """
    return tuned(
        f"problem.{setting}",
        getattr(config.problem, setting),
        family,
        problem,
        data,
        iterations or config.horizon,
        BATCH[config.name],
    )
