"""The prior's samples: what is stored of them is computed again, for all of them."""

import numpy as np

from surestep.bounds import normalised
from surestep.problem import DataSet
from surestep.rollout.rounding import explained
from surestep.rules.base import Rule
from surestep.run.verify.elsewhere import kind_of_losses, perturbed
from surestep.run.verify.finished import Check, Finished, check
from surestep.train import weighed_risks


def verify_prior(run: Finished) -> list[Check]:
    """Goals and losses on the prior set, and the weights that follow from them."""
    return [_weights(run), _goals(run), _losses(run)]


def _weights(run: Finished) -> Check:
    prior, constraint = run.prior, run.config.constraint
    estimates = [
        constraint.assess(int(good), int(tried)).probability
        for good, tried in zip(prior.successes, prior.trials, strict=True)
    ]
    losses, goals = prior.prior_losses, prior.prior_thresholds
    probabilities = prior.probabilities
    risks = weighed_risks(losses, goals, probabilities, run.experiment.problem.nonnegative)
    alone = len(run.prior.hypers) == 1
    again = {
        "probabilities": np.asarray(estimates),
        "prior_risks": risks,
        # The only one of a run's samples has lost its weight beside the others.
        "log_prior": np.zeros(1) if alone else normalised(-risks),
    }
    wrong = [
        name
        for name, values in again.items()
        if not np.allclose(values, getattr(prior, name), 1e-9, 1e-9 if "log" in name else 0.0)
    ]
    reason = f"{', '.join(wrong)} do not follow from what is stored of the samples"
    return check("the prior's weights", not wrong, reason)


def _goals(run: Finished) -> Check:
    here, stored = run.task.thresholds(run.sealed.prior), run.prior.prior_thresholds
    same = np.array_equal(here, stored)
    if run.elsewhere:
        same = here.shape == stored.shape and np.allclose(here, stored, run.rounding, 0)
    return check("the goal on every prior instance", same, "differs from what is computed here")


def _losses(run: Finished) -> Check:
    number = len(run.prior.hypers)
    wrong = [sample for sample in range(number) if not _same_losses(run, sample)]
    reason = f"those of {len(wrong)} samples differ, first of sample {wrong[0]}" if wrong else ""
    return check(f"losses of all {number} samples on the prior set", not wrong, reason)


def _same_losses(run: Finished, sample: int) -> bool:
    task, data, rule = run.task, run.sealed.prior, run.rule(sample)
    here, stored = task.losses(rule, data), run.prior.prior_losses[sample][:, None]
    if np.array_equal(here, stored):
        return True
    if not run.elsewhere or here.shape != stored.shape:
        return False
    kind = kind_of_losses(run, run.prior.prior_thresholds)
    if kind.close(here, stored).all():
        return True

    def ends(rule: Rule, data: DataSet) -> np.ndarray:
        return task.observe(rule, data, task.watch((task.horizon,))).losses

    others = [ends(*other) for other in perturbed(rule, data)]
    return bool(explained(here, stored, others, kind).all())
