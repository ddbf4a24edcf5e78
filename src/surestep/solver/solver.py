"""The solver: a trained rule, ready for production, with the certificate that speaks about it."""

import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from surestep.base.errors import ConfigurationError
from surestep.base.keys import named_key
from surestep.certify.certificate import Certificate
from surestep.problem.base import Point, Problem, Theta, instance
from surestep.problem.draw import draw, working_precision
from surestep.problem.form import theta_form
from surestep.problem.goal import Goal, reached, thresholds
from surestep.problem.instances import Instances, as_points
from surestep.rollout.batched import BLOCK, Draws, begin_each, continue_each, points_of
from surestep.rollout.loop import Status, Underway
from surestep.rules.base import Rule, hyper_of, require_fit, solver_fingerprint
from surestep.solver.export import export_solver
from surestep.solver.file import Stored, read_solver, write_solver
from surestep.solver.monitor import Monitor
from surestep.solver.posterior import Posterior
from surestep.solver.signature import PROBES
from surestep.solver.solution import Coverage, Solution

Policy = Literal["point", "posterior"]
"""Which rule solves: the deployed one, or one drawn from the posterior for each instance."""

Callback = Callable[[int, np.ndarray, Point], bool | None]
"""Given the iterations made so far, the losses and the points; True asks to stop."""

GOAL = "missing the goal"
"""The certificate's statement that a monitor watches."""


@dataclasses.dataclass(frozen=True)
class Solver:
    """A rule for a family of problems, and what is certified of it.

    `learn(...).solver` makes one, `save` and `surestep.load` carry it to where it is needed.
    """

    problem: Problem
    rule: Rule
    horizon: int
    """How many iterations the certificate is about, and `solve` makes by default."""
    goal: Goal
    """What counts as success on an instance."""
    block: int = BLOCK
    """How many instances are iterated side by side."""
    certificate: Certificate | None = None
    posterior: Posterior | None = None
    probes: Theta = None
    """A few stacked instances, kept in the file, by which `load` recognises the problem; drawn
    when they are needed, if not given."""

    def __post_init__(self) -> None:
        if self.horizon < 1 or self.block < 1:
            raise ConfigurationError(
                f"horizon and block must be at least 1, not {self.horizon} and {self.block}"
            )
        self.goal.validate()
        require_fit(self.rule, self.problem)

    def solve(
        self,
        thetas: Theta,
        *,
        iterations: int | None = None,
        tolerance: float | None = None,
        x0: Point | None = None,
        callback: Callback | None = None,
        every: int | None = None,
        policy: Policy = "point",
        key: Array | None = None,
        monitor: Monitor | None = None,
    ) -> Solution:
        """Solve a stacked set of instances (`solve_one` takes a single one).

        There are two methods because a set of one is not an instance: what comes back has the
        form that the method's name says, not one that is guessed from shapes.

        - `iterations`: as many as the certificate is about, unless said otherwise.
        - `tolerance`: an instance is left alone once its loss is below.
        - `x0`: other starts, stacked like the instances, in the form that the loss takes.
        - `callback`: called at the start and after `every` iterations (a tenth of the horizon).
        - `policy`: "posterior" draws a rule from the posterior, afresh for each instance, so that
          outcomes stay independent; it needs a `key`.
        - `monitor`: comes back as `Solution.monitor`, fed with whether each instance missed the
          goal, if the certificate covers the call, and else unchanged.

        Calls with the same number of instances share one compiled program, whatever the
        iterations, the tolerance and the weights.
        """
        steps = self._require(iterations, tolerance, every, policy, key)
        with working_precision(self.problem):
            given = Instances.of(self.problem, self._form, thetas)
            reasons = self._reasons(steps, tolerance, x0, policy, given)
            self._require_monitor(monitor, policy)
            starts = None if x0 is None else as_points(self.problem, given.thetas, x0)
            draws = None if key is None else self._draw(key, given.size)
            targets = None if tolerance is None else jnp.full(given.size, tolerance, float)
            run = _Run(self, given.thetas, targets, draws)
            pause = every or max(1, self.horizon // 10)
            try:
                first, last, stopped = run.go(starts, steps, callback, pause)
            except (TypeError, ValueError) as error:
                if not given.reshaped:
                    raise
                raise ConfigurationError(
                    f"the rule cannot run on instances of these shapes: {given.differences[0]} "
                    f"({error})"
                ) from error
            x, losses = points_of(self.problem, given.thetas, last)
            loss = np.asarray(losses)
            if stopped:
                reasons += ("the callback asked to stop",)
            covered = Coverage(reasons)
            fed, note = self._fed(monitor, covered, given.thetas, loss)
            return Solution(
                x=jax.tree.map(np.asarray, x),
                loss=loss,
                start_loss=np.asarray(first),
                iterations=np.asarray(last.iterations),
                gradients=np.asarray(last.progress.evaluations.gradients),
                status=_statuses(np.asarray(last.progress.diverged), loss, tolerance, stopped),
                covered=covered,
                sample=None if draws is None else np.asarray(draws.chosen),
                monitor=fed,
                monitor_note=note,
            )

    def solve_one(
        self,
        theta: Theta,
        *,
        iterations: int | None = None,
        tolerance: float | None = None,
        x0: Point | None = None,
        callback: Callback | None = None,
        every: int | None = None,
        policy: Policy = "point",
        key: Array | None = None,
        monitor: Monitor | None = None,
    ) -> Solution:
        """Solve one instance: as `solve` for a set, without the axis of instances."""

        def alone(iteration: int, losses: np.ndarray, points: Point) -> bool | None:
            assert callback is not None
            return callback(iteration, losses[0], instance(points, 0))

        found = self.solve(
            _stacked(theta),
            iterations=iterations,
            tolerance=tolerance,
            x0=None if x0 is None else _stacked(x0),
            callback=None if callback is None else alone,
            every=every,
            policy=policy,
            key=key,
            monitor=monitor,
        )
        arrays = ("x", "loss", "start_loss", "iterations", "gradients", "status", "sample")
        return dataclasses.replace(
            found, **{name: instance(getattr(found, name), 0) for name in arrays}
        )

    def monitor(self, delta: float = 0.01, policy: Policy = "point") -> Monitor:
        """A monitor of the certified probability of missing the goal, for a policy."""
        return Monitor(self._certified_failure(policy), delta)

    def save(self, path: Path | str) -> None:
        """Write the solver into a file, all but its problem; `surestep.load` reads it."""
        probes = self.probes
        if probes is None:
            probes = draw(self.problem, PROBES, named_key(0, "probes"))
        stored = Stored(
            self.rule, self.horizon, self.goal, self.block, self.certificate, self.posterior, probes
        )
        write_solver(Path(path), self.problem, stored)

    def export(
        self,
        path: Path | str,
        batch: int | None = None,
        iterations: int | None = None,
        platforms: tuple[str, ...] | None = None,
    ) -> None:
        """Write the compiled solver into a file that runs with JAX alone, without surestep.

        It makes a fixed number of iterations (the horizon's) with the deployed rule, on `batch`
        instances, or on any number of them if that is not given. `platforms` names what it is to
        run on ("cpu", "cuda"); without it, what this process computes on. To run it:

            import jax, pathlib
            solver = jax.export.deserialize(bytearray(pathlib.Path("solver.jax").read_bytes()))
            with jax.enable_x64(True):  # where the problem's precision is float64
                solved = solver.call({"diagonal": ..., "target": ...})  # stacked, by name
            solved["x"], solved["loss"], solved["status"]  # 0: finished, 3: diverged

        Instances and points have the names that `surestep solve` uses in its .npz files. Reading
        such a file takes the small package `flatbuffers` beside JAX.
        """
        steps = self._require(iterations, None, None, "point", None)
        if batch is not None and batch < 1:
            raise ConfigurationError(f"batch must be at least 1, not {batch}")
        export_solver(
            Path(path), self.rule, self.problem, self._form, steps, batch, self.block, platforms
        )

    @functools.cached_property
    def _form(self) -> Theta:
        """Shapes and dtypes of one instance."""
        return theta_form(self.problem)

    @functools.cached_property
    def _certified_rule(self) -> bool:
        sha256 = None if self.certificate is None else self.certificate.solver_sha256
        return sha256 == solver_fingerprint(self.rule)

    def _require(
        self,
        iterations: int | None,
        tolerance: float | None,
        every: int | None,
        policy: Policy,
        key: Array | None,
    ) -> int:
        steps = self.horizon if iterations is None else iterations
        if steps < 1:
            raise ConfigurationError(f"iterations must be at least 1, not {steps}")
        if every is not None and every < 1:
            raise ConfigurationError(f"every must be at least 1, not {every}")
        if tolerance is not None and not tolerance > 0:
            raise ConfigurationError(f"tolerance must be positive, not {tolerance}")
        if policy not in ("point", "posterior"):
            raise ConfigurationError(f"policy must be 'point' or 'posterior', not {policy!r}")
        if policy == "posterior" and self.posterior is None:
            raise ConfigurationError("this solver has no posterior to draw from: use the point")
        if (policy == "posterior") != (key is not None):
            raise ConfigurationError(
                "a key goes with the policy 'posterior', which draws, and with no other"
            )
        return steps

    def _reasons(
        self,
        steps: int,
        tolerance: float | None,
        x0: Point | None,
        policy: Policy,
        given: Instances,
    ) -> tuple[str, ...]:
        """Why the certificate does not speak about a call."""
        certificate = self.certificate
        if certificate is None:
            return ("this solver has no certificate",)
        reasons = []
        if not self._certified_rule:
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
        if policy == "posterior" and not self._posterior_fits:
            reasons.append("the posterior is not the one that the certificate is about")
        return (*reasons, *given.differences)

    @functools.cached_property
    def _posterior_fits(self) -> bool:
        """Whether the rule that the certificate deploys is the sample that it names."""
        assert self.certificate is not None and self.posterior is not None
        deployed = np.asarray(hyper_of(self.rule))
        index = self.certificate.deployed_sample
        if index >= len(self.posterior.hypers):
            return False
        return np.array_equal(self.posterior.hypers[index].astype(deployed.dtype), deployed)

    def _certified_failure(self, policy: Policy) -> float:
        statements = () if self.certificate is None else self.certificate.statements
        for statement in statements:
            if statement.name == GOAL:
                return statement.value if policy == "point" else statement.posterior_value
        raise ConfigurationError(f"there is no certificate about {GOAL}: nothing to monitor")

    def _require_monitor(self, monitor: Monitor | None, policy: Policy) -> None:
        if monitor is None or self.certificate is None:
            return
        certified = self._certified_failure(policy)
        if monitor.failure < certified:
            raise ConfigurationError(
                f"the monitor watches a failure probability of {monitor.failure:g}, but only "
                f"{certified:g} is certified for the policy {policy!r}: Solver.monitor makes one"
            )

    def _draw(self, key: Array, number: int) -> Draws:
        assert self.posterior is not None
        hypers = jnp.asarray(self.posterior.hypers.astype(hyper_of(self.rule).dtype))
        return Draws(hypers, self.posterior.draw(key, number))

    def _fed(
        self, monitor: Monitor | None, covered: Coverage, thetas: Theta, loss: np.ndarray
    ) -> tuple[Monitor | None, str]:
        if monitor is None:
            return None, ""
        if not covered:
            return monitor, f"the monitor was not fed, because the call is {covered}"
        limits = np.asarray(thresholds(self.goal, self.problem, thetas, self.block), np.float64)
        missed = ~reached(loss.astype(np.float64), limits)
        note = f"the monitor was fed {missed.size} outcomes, {int(missed.sum())} of them failures"
        return monitor.fed(missed), note


def load(path: Path | str, problem: Problem, rule: Rule | None = None) -> Solver:
    """Read a solver that `Solver.save` wrote, for the problem it was learned for.

    No code from the file is run. A file that is damaged, that was made for another problem or
    whose certificate is of another rule is refused, with the reason. For a rule whose class is
    not one of surestep's own, give a rule of the same structure as a template.
    """
    stored = read_solver(Path(path), problem, rule)
    return Solver(
        problem,
        stored.rule,
        stored.horizon,
        stored.goal,
        stored.block,
        stored.certificate,
        stored.posterior,
        stored.probes,
    )


@dataclasses.dataclass(frozen=True)
class _Run:
    """One call, chunk by chunk."""

    solver: Solver
    thetas: Theta
    targets: Array | None
    draws: Draws | None

    def go(
        self, starts: Point | None, steps: int, callback: Callback | None, every: int
    ) -> tuple[Array, Underway, bool]:
        """The losses at the start, where the rollouts end, and whether the callback stopped."""
        solver = self.solver
        now = begin_each(solver.rule, solver.problem, self.thetas, starts, self.draws, solver.block)
        first = points_of(solver.problem, self.thetas, now)[1]
        if callback is None:
            return first, self._more(now, steps), False
        made = 0
        while True:
            x, losses = points_of(solver.problem, self.thetas, now)
            asked = callback(made, np.asarray(losses), jax.tree.map(np.asarray, x))
            if asked or made == steps:
                return first, now, bool(asked) and made < steps
            chunk = min(every, steps - made)
            now, made = self._more(now, chunk), made + chunk

    def _more(self, now: Underway, steps: int) -> Underway:
        solver = self.solver
        return continue_each(
            solver.rule,
            solver.problem,
            self.thetas,
            now,
            jnp.asarray(steps, jnp.int32),
            self.targets,
            self.draws,
            solver.block,
        )


def _statuses(
    diverged: np.ndarray, loss: np.ndarray, tolerance: float | None, stopped: bool
) -> np.ndarray:
    end = Status.FINISHED if tolerance is None else Status.LIMIT
    status = np.full(loss.shape, int(Status.STOPPED if stopped else end))
    if tolerance is not None:
        status[loss < tolerance] = Status.REACHED
    status[diverged] = Status.DIVERGED
    return status


def _stacked(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: np.asarray(leaf)[None], tree)
