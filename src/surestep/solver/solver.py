"""The solver: a trained rule, ready for production, with the certificate that speaks about it."""

import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import Array

from surestep.base.errors import ConfigurationError
from surestep.base.keys import named_key
from surestep.certify import Certificate
from surestep.problem import (
    Goal,
    Instances,
    Point,
    Problem,
    Theta,
    as_points,
    instance,
    theta_form,
    working_precision,
)
from surestep.problem.draw import draw
from surestep.rollout.batched import BLOCK
from surestep.rollout.program import Program
from surestep.rollout.watched import Given
from surestep.rules.base import Rule, require_fit
from surestep.solver.call import Call, Callback, checked_steps, statuses
from surestep.solver.coverage import Guarantee, Looks, feed
from surestep.solver.export import as_function, export_solver
from surestep.solver.familiar import Familiar
from surestep.solver.file import Stored, write_solver
from surestep.solver.monitor import Monitor
from surestep.solver.policy import Draws, Policy, checked_policy, drawn
from surestep.solver.posterior import Posterior
from surestep.solver.signature import PROBES
from surestep.solver.solution import Coverage, Solution


@dataclasses.dataclass(frozen=True)
class Solver:
    """A rule for a family of problems, and what is certified of it.

    `learn(...).solver` makes one, `save` and `surestep.load` carry it to where it is needed. A
    classical rule makes one too, without a certificate.

    **Raises:** `surestep.errors.ConfigurationError` if the rule needs more than the problem offers,
    or if a number is out of its range.

    **Example:**

    ```python
    rule = ss.rules.GradientDescent(1e-3)
    plain = ss.Solver(problem, rule, horizon=20, goal=ss.Goal(scale=0.5, exponent=1.0))
    print(plain.solve(thetas).loss)
    ```
    """

    problem: Problem
    rule: Rule
    """The deployed rule."""
    horizon: int
    """How many iterations the certificate is about, and `solve` makes by default."""
    goal: Goal
    """What counts as success on an instance."""
    block: int = BLOCK
    """How many instances are iterated as one batch."""
    certificate: Certificate | None = None
    posterior: Posterior | None = None
    """The weighted rules that the policy `posterior` draws from."""
    probes: Theta = None
    """A few stacked instances in the file by which `load` knows the problem; drawn if not given."""
    familiar: Familiar | None = None
    """What instances usually look like, for monitors."""

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
        policy: Policy = "deployed",
        key: Array | None = None,
        monitor: Monitor | None = None,
    ) -> Solution:
        """Solve a stacked set of instances (`solve_one` takes a single one).

        All iterations are made in one compiled program, and the loss is computed once, at the end.
        With a tolerance, instances that are done leave the batch, and those that are left are
        gathered into batches of 4, 16, 64, ... Calls with the same number of instances share their
        compiled programs, whatever the iterations, the tolerance and the weights; one for a smaller
        batch is compiled when it is first needed.

        **Arguments:**

        - `thetas`: the instances, stacked along their first axis.
        - `iterations`: as many as the certificate is about, unless said otherwise.
        - `tolerance`: an instance is left alone once its loss is seen to be below. A rule that
          knows its loss is looked at after every iteration. Where a look takes an evaluation, it
          is after each of the first 16, then eight times while the iterations double, and at
          callbacks and the end.
        - `x0`: other starts, stacked like the instances, in the form that the loss takes.
        - `callback`: called with the iterations made, the losses and the points; True stops.
        - `every`: after how many iterations it is called; by default a tenth of the horizon.
        - `policy`: `"deployed"`, or `"posterior"` to draw a rule from the posterior, afresh for
          each instance, so that outcomes stay independent. `"point"` is an older word for the
          first.
        - `key`: decides the draws of the policy `"posterior"`, which needs it.
        - `monitor`: comes back as `Solution.monitor`, fed if the certificate covers the call.

        **Returns:** a `Solution`, whose arrays have one entry an instance.

        **Raises:** `surestep.errors.ConfigurationError` if the instances do not fit the problem or
        an argument cannot work.

        **Example:**

        ```python
        solution = solver.solve(thetas)
        print(solution.loss, solution.covered)
        longer = solver.solve(thetas, iterations=100, tolerance=1e-6)
        drawn = solver.solve(thetas, policy="posterior", key=jax.random.key(0))
        ```
        """
        steps = checked_steps(self.horizon, iterations, tolerance, every)
        policy = checked_policy(policy, self.posterior, key)
        with working_precision(self.problem):
            given = Instances.of(self.problem, self._form, thetas)
            reasons = self._guarantee.reasons(steps, tolerance, x0, policy, given.differences)
            self._guarantee.require_monitor(monitor, policy)
            starts = None if x0 is None else as_points(self.problem, given.thetas, x0)
            draws = drawn(self.rule, self.posterior, key, given.size)
            stopped, first = False, None
            try:
                if draws is None and tolerance is None and callback is None:
                    ended = self._program.solve(given.thetas, steps, starts)
                else:
                    pause = every or max(1, self.horizon // 10)
                    call = self._call(given.thetas, starts, draws, tolerance)
                    first, ended, stopped = call.go(steps, callback, pause)
            except (TypeError, ValueError) as error:
                if not given.reshaped:
                    raise
                raise ConfigurationError(
                    f"the rule cannot run on instances of these shapes: {given.differences[0]} "
                    f"({error})"
                ) from error
            loss = ended.loss
            if stopped:
                reasons += ("the callback asked to stop",)
            covered = Coverage(reasons)
            fed, note = feed(monitor, covered, self.goal, self._looks, given.thetas, loss)
            return Solution(
                x=ended.x,
                loss=loss,
                iterations=ended.iterations,
                gradients=ended.gradients,
                status=statuses(loss, tolerance, stopped),
                covered=covered,
                sample=None if draws is None else draws.chosen,
                monitor=fed,
                monitor_note=note,
                starts=functools.partial(self._start_losses, given.thetas, starts, first),
            )

    def _start_losses(
        self, thetas: Theta, starts: Point | None, known: np.ndarray | None
    ) -> np.ndarray:
        if known is not None:
            return known
        with working_precision(self.problem):
            return self._call(thetas, starts, None, None).first()

    def _call(
        self, thetas: Theta, starts: Point | None, draws: Draws | None, tolerance: float | None
    ) -> Call:
        given = Given(thetas, None if draws is None else draws.hypers, starts, None)
        return Call(self._program, self.rule, self.problem, given, tolerance)

    def solve_one(
        self,
        theta: Theta,
        *,
        iterations: int | None = None,
        tolerance: float | None = None,
        x0: Point | None = None,
        callback: Callback | None = None,
        every: int | None = None,
        policy: Policy = "deployed",
        key: Array | None = None,
        monitor: Monitor | None = None,
    ) -> Solution:
        """Solve one instance: as `solve` for a set, without the axis of instances.

        There are two methods because a set of one is not an instance: what comes back has the
        form that the method's name says, not one that is guessed from shapes.

        **Arguments:**

        - `theta`: the instance.
        - `iterations`, `tolerance`, `x0`, `callback`, `every`, `policy`, `key`, `monitor`: as for
          `solve`, for one instance.

        **Returns:** a `Solution` of single numbers.

        **Raises:** what `solve` raises.

        **Example:**

        ```python
        theta = jax.tree.map(lambda leaf: leaf[0], thetas)
        print(float(solver.solve_one(theta).loss))
        ```
        """

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
        return Solution(
            x=instance(found.x, 0),
            loss=found.loss[0],
            iterations=found.iterations[0],
            gradients=found.gradients[0],
            status=found.status[0],
            covered=found.covered,
            sample=None if found.sample is None else found.sample[0],
            monitor=found.monitor,
            monitor_note=found.monitor_note,
            starts=lambda: found.start_loss[0],
        )

    def function(self, iterations: int | None = None) -> Callable[[Theta], Point]:
        """The deployed rule as a JAX function from one instance to its solution.

        It can be compiled, batched with `jax.vmap` and made part of a larger program. Nothing is
        looked at around it, so a call takes as little time as JAX can make it: no instance is
        checked for its form, and no certificate is consulted.

        **Arguments:**

        - `iterations`: as many as the certificate is about, unless said otherwise.

        **Returns:** a function of `theta`. Call it inside `jax.enable_x64(True)` where the
        problem's precision is float64.

        **Raises:** `surestep.errors.ConfigurationError` if there are no iterations to make.

        **Example:**

        ```python
        minimise = jax.jit(solver.function())
        theta = jax.tree.map(lambda leaf: leaf[0], thetas)
        with jax.enable_x64(True):
            x = minimise(theta)
        ```
        """
        steps = checked_steps(self.horizon, iterations)
        return as_function(self._program.rule, self.problem, steps)

    def monitor(self, delta: float = 0.01, policy: Policy = "deployed") -> Monitor:
        """A monitor of the certified probability of missing the goal, and of the instances.

        A run's solver knows what instances usually look like: half of `delta` is for them then.

        **Arguments:**

        - `delta`: the probability of a false alarm in all time.
        - `policy`: which rule is going to solve, as for `solve`.

        **Returns:** a `Monitor` that has seen nothing yet.

        **Raises:** `surestep.errors.ConfigurationError` if no such probability is certified.

        **Example:**

        ```python
        solution = solver.solve(thetas, monitor=solver.monitor(delta=0.01))
        assert solution.monitor is not None
        print(solution.monitor.alarm, solution.monitor_note)
        ```
        """
        return self._looks.monitor(self._guarantee.failure(policy), delta)

    def save(self, path: Path | str) -> None:
        """Write the solver into a file, all but its problem; `surestep.load` reads it.

        **Arguments:**

        - `path`: the file; one that is there is replaced.

        **Example:**

        ```python
        solver.save("solver.safetensors")
        again = ss.load("solver.safetensors", problem)
        ```
        """
        probes = self.probes
        if probes is None:
            probes = draw(self.problem, PROBES, named_key(0, "probes"))
        stored = Stored(
            *(self.rule, self.horizon, self.goal, self.block, self.certificate, self.posterior),
            *(probes, self.familiar),
        )
        write_solver(Path(path), self.problem, stored)

    def export(
        self,
        path: Path | str,
        batch: int | None = None,
        iterations: int | None = None,
        platforms: tuple[str, ...] | None = None,
    ) -> None:
        """Write the compiled deployed rule into a file that runs with JAX alone, without surestep.

        Instances and points have the names that `surestep solve` uses in its .npz files. Reading
        such a file takes the small package `flatbuffers` beside JAX.

        **Arguments:**

        - `path`: the file; one that is there is replaced.
        - `batch`: how many instances a call takes; any number of them if it is not given.
        - `iterations`: how many it makes; by default the horizon.
        - `platforms`: what it is to run on (`"cpu"`, `"cuda"`); by default what this process
          computes on.

        **Raises:** `surestep.errors.ConfigurationError` if an operation of the problem or the rule
        cannot be exported, or needs a fixed batch.

        **Example:**

        ```python
        import pathlib

        solver.export("solver.jax")
        alone = jax.export.deserialize(bytearray(pathlib.Path("solver.jax").read_bytes()))
        instances = {"diagonal": np.ones((3, 8)), "target": np.ones((3, 8))}
        with jax.enable_x64(True):  # where the problem's precision is float64
            solved = alone.call(instances)  # stacked, by name
        print(solved["x"], solved["loss"], solved["status"])  # 0: finished, 3: diverged
        ```
        """
        steps = checked_steps(self.horizon, iterations)
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
    def _program(self) -> Program:
        with working_precision(self.problem):
            return Program.of(self.rule, self.problem, self.block)

    @property
    def _looks(self) -> Looks:
        return Looks(self.problem, self.familiar, self.block)

    @functools.cached_property
    def _guarantee(self) -> Guarantee:
        return Guarantee(self.certificate, self.rule, self.posterior)


def _stacked(tree: Any) -> Any:
    if isinstance(tree, np.ndarray):  # the shorter way
        return tree[None]
    return jax.tree.map(lambda leaf: np.asarray(leaf)[None], tree)
