"""What a certificate says about a solver, and about one call of it."""

import dataclasses
import functools

import numpy as np

from surestep.base.errors import ConfigurationError
from surestep.certify import Certificate
from surestep.problem import Goal, Point, Problem, Theta, reached, thresholds
from surestep.rules.base import Rule, hyper_of, solver_fingerprint
from surestep.solver.familiar import Familiar
from surestep.solver.monitor import Monitor
from surestep.solver.policy import Policy
from surestep.solver.posterior import Posterior
from surestep.solver.solution import Coverage

GOAL = "missing the goal"
"""The certificate's statement that a monitor watches."""


@dataclasses.dataclass(frozen=True)
class Guarantee:
    """A solver's certificate beside the rule and the posterior that the solver holds."""

    certificate: Certificate | None
    rule: Rule
    posterior: Posterior | None

    @functools.cached_property
    def rule_fits(self) -> bool:
        """Whether the certificate is of this rule."""
        sha256 = None if self.certificate is None else self.certificate.solver_sha256
        return sha256 == solver_fingerprint(self.rule)

    @functools.cached_property
    def posterior_fits(self) -> bool:
        """Whether the deployed rule is the sample that the certificate names."""
        assert self.certificate is not None and self.posterior is not None
        deployed = np.asarray(hyper_of(self.rule))
        index = self.certificate.deployed_sample
        if index >= len(self.posterior.hypers):
            return False
        return np.array_equal(self.posterior.hypers[index].astype(deployed.dtype), deployed)

    def reasons(
        self,
        steps: int,
        tolerance: float | None,
        x0: Point | None,
        policy: Policy,
        differences: tuple[str, ...],
    ) -> tuple[str, ...]:
        """Why the certificate does not speak about a call; none if it does.

        `differences` are those of the instances from what the problem draws.
        """
        certificate = self.certificate
        if certificate is None:
            return ("this solver has no certificate",)
        reasons = []
        if not self.rule_fits:
            reasons.append("the certificate is of another rule")
        if steps != certificate.horizon:
            reasons.append(
                f"{steps} iterations are asked for, the certificate is about {certificate.horizon}"
            )
        if tolerance is not None:
            reasons.append(
                "with a tolerance instances may stop before the "
                f"{certificate.horizon} iterations that the certificate is about"
            )
        if x0 is not None:
            reasons.append("the certificate is about the problem's start, and x0 is another")
        if policy == "posterior" and not self.posterior_fits:
            reasons.append("the posterior is not the one that the certificate is about")
        return (*reasons, *differences)

    def failure(self, policy: Policy) -> float:
        """The certified probability of missing the goal."""
        statements = () if self.certificate is None else self.certificate.statements
        for statement in statements:
            if statement.name == GOAL:
                return statement.posterior_value if policy == "posterior" else statement.value
        raise ConfigurationError(f"there is no certificate about {GOAL}: nothing to monitor")

    def require_monitor(self, monitor: Monitor | None, policy: Policy) -> None:
        """Refuse a monitor that watches a smaller failure probability than is certified."""
        if monitor is None or self.certificate is None:
            return
        certified = self.failure(policy)
        if monitor.failure < certified:
            raise ConfigurationError(
                f"the monitor watches a failure probability of {monitor.failure:g}, but only "
                f"{certified:g} is certified for the policy {policy!r}: Solver.monitor makes one"
            )


@dataclasses.dataclass(frozen=True)
class Looks:
    """What it takes to look at instances: their problem, and what they usually look like."""

    problem: Problem
    familiar: Familiar | None
    block: int

    def monitor(self, failure: float, delta: float) -> Monitor:
        """One that has seen nothing yet."""
        if self.familiar is None or not self.familiar.enough:
            return Monitor(failure, delta)
        return Monitor(failure, delta / 2, instances=self.familiar.monitor(delta / 2))

    def shown(self, monitor: Monitor, thetas: Theta) -> tuple[Monitor, str]:
        """The monitor after it has seen the instances, if it watches them, and what was done."""
        if monitor.instances is None:
            return monitor, ""
        if self.familiar is None:
            return monitor, "; the solver does not know what instances look like, so none was shown"
        features = self.familiar.features(self.problem, thetas, self.block)
        return monitor.shown(features), f"; it was shown {len(features)} instances"


def feed(
    monitor: Monitor | None,
    covered: Coverage,
    goal: Goal,
    looks: Looks,
    thetas: Theta,
    loss: np.ndarray,
) -> tuple[Monitor | None, str]:
    """The monitor after a call, and what was done with it."""
    if monitor is None:
        return None, ""
    if not covered:
        return monitor, f"the monitor was not fed, because the call is {covered}"
    limits = np.asarray(thresholds(goal, looks.problem, thetas, looks.block), np.float64)
    missed = ~reached(loss.astype(np.float64), limits)
    note = f"the monitor was fed {missed.size} outcomes, {int(missed.sum())} of them failures"
    fed, more = looks.shown(monitor.fed(missed), thetas)
    return fed, note + more
