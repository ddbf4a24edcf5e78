"""How long solves take: one by one and as a batch, and those of other libraries' solvers."""

import time

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from surestep.problem import TestSet, Theta, instance
from surestep.rollout.program import Program
from surestep.train import External, Task

ALONE, _FEWEST = 20, 3  # instances that are timed one by one, and how many at least
_LONG = 1.0  # seconds that timing one by one may take, for each solver and accuracy


def timed(
    program: Program,
    data: TestSet,
    needed: Int[np.ndarray, "accuracy instance"],
    passed: np.ndarray | bool,
) -> dict[str, np.ndarray]:
    """How long so many iterations take, unwatched.

    First one by one, a few instances, each with as many iterations as it needs; then all as one
    batch, with as many as nine of ten of them need.
    """
    seconds, together = np.full(needed.shape, np.nan), np.zeros(len(needed))
    few = min(data.size, ALONE)
    single = [instance(data.thetas, slice(i, i + 1)) for i in range(few)]
    most = np.quantile(needed, 0.9, axis=1, method="inverted_cdf")
    # The batch has been solved before; what is compiled for one instance depends on its fate.
    wanted = needed[:, :few].max(axis=0)
    failed = np.flatnonzero(~np.broadcast_to(passed, (data.size,))[:few])
    for i in {int(wanted.argmax()), *failed[:1].tolist()}:
        program.solve(single[i], int(wanted[i]), None)
    for a in range(len(needed)):
        for i, theta in enumerate(single):
            # Who does not come closer takes as long to one accuracy as to another.
            same = a and needed[a, i] == needed[a - 1, i] and np.isfinite(seconds[a - 1, i])
            seconds[a, i] = (
                seconds[a - 1, i] if same else seconds_of(program, theta, int(needed[a, i]))
            )
            if i + 1 >= _FEWEST and np.nansum(seconds[a]) > _LONG:
                break
        same = a and most[a] == most[a - 1]
        together[a] = together[a - 1] if same else seconds_of(program, data.thetas, int(most[a]))
    return {"seconds": seconds, "seconds_batch": together}


def seconds_of(program: Program, thetas: Theta, iterations: int) -> float:
    """Seconds of a call; of a short one the faster of two, because machines are busy."""
    took = [one_call(program, thetas, iterations)]
    if took[0] < 0.05:
        took.append(one_call(program, thetas, iterations))
    return min(took)


def one_call(program: Program, thetas: Theta, iterations: int) -> float:
    """Seconds of a call, compiling included."""
    began = time.perf_counter()
    program.solve(thetas, iterations, None)
    return time.perf_counter() - began


def timed_outside(
    solver: External,
    task: Task,
    data: TestSet,
    targets: Float[np.ndarray, "accuracy instance"],
    above: Float[np.ndarray, "accuracy instance"],
) -> tuple[Float[np.ndarray, "2 accuracy instance"], list[str]]:
    """Losses and seconds of a solver of another library, one instance at a time.

    Where it raises an error its loss is infinite; how often that was, and the first error, is said.
    """
    few = min(data.size, ALONE)
    thetas = [jax.tree.map(np.asarray, instance(data.thetas, i)) for i in range(few)]
    loss = eqx.filter_jit(task.problem.loss)
    errors: list[str] = []

    def solved(a: int, i: int) -> tuple[float, float]:
        began = time.perf_counter()
        try:
            point = solver(thetas[i], float(targets[a, i]), float(above[a, i]))
            took = time.perf_counter() - began
            return float(loss(jax.tree.map(jnp.asarray, point), thetas[i])), took
        except Exception as error:  # it may be anybody's code
            errors.append(named(error))
            return np.inf, time.perf_counter() - began

    found, calls, failed = np.full((2, len(targets), data.size), np.nan), 0, list[str]()
    for a in range(len(targets)):
        # Warms up; solvers whose tolerances are fixed once are set up for each accuracy.
        solved(a, 0)
        errors.clear()
        for i in range(few):
            found[:, a, i] = solved(a, i)
            calls += 1
            if i + 1 >= _FEWEST and np.nansum(found[1, a]) > _LONG:
                break
        failed += errors
    return found, [f"in {len(failed)} of {calls} solves: {failed[0]}"] if failed else []


def named(error: Exception) -> str:
    """An error in one line, with its kind."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
