"""What is wrong or slow with a user's problem, in words that say what to change.

The same examination comes before a run, before any work is done.
"""

import time
from collections.abc import Iterator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array

from surestep.auto import programs
from surestep.auto.files import open_file, title
from surestep.auto.guarded import guarded
from surestep.base.errors import ProblemError
from surestep.base.keys import named_key
from surestep.problem import (
    CompositeProblem,
    Problem,
    Programme,
    StockedProblem,
    Theta,
    as_instances,
    check_problem,
    count,
    find_structure,
    instance,
    working_precision,
)
from surestep.problem.draw import draw
from surestep.rollout.batched import rollouts
from surestep.rules import ProximalGradient
from surestep.train import Experiment

FEW = 16
"""Instances that are looked at."""
_SLOW = 0.05  # seconds of a gradient that are worth a word
_LARGE = 50_000_000  # bytes of constants that are worth a word


def check_file(spec: str, seed: int) -> Iterator[str]:
    """The lines that `surestep check` prints; raises `ProblemError` at what is wrong."""
    found = open_file(spec)
    problem = found.problem if isinstance(found, Experiment) else found
    yield f"{title(spec)}: {_kind(problem)}"
    for note in (*examine(problem, seed), *structure_of(problem, seed)):
        yield f"- {note}"
    yield "nothing is wrong with it"


def _kind(problem: Problem) -> str:
    parts = "a smooth part and a part that is not" if _composite(problem) else "a smooth loss"
    stocked = isinstance(problem, StockedProblem)
    data = f", on {problem.about_data}" if stocked else ""
    bound = "" if problem.nonnegative else ", without a lower bound"
    return f"{parts}{bound}, computed in {problem.precision}{data}"


def examine(problem: Problem, seed: int = 0) -> list[str]:
    """Look at everything a problem promises; what was seen, one sentence each."""
    with working_precision(problem):
        thetas = _instances(problem, seed)
        notes = [_starts(problem, thetas)]
        slow = _traced(problem, thetas)
        check_problem(problem, thetas, FEW)
        notes.append("losses and gradients at the start are finite, and the loss depends on x")
        if _composite(problem):
            notes.append(_proximal(problem, thetas))
        if not isinstance(problem, Programme):  # nobody follows the gradient of residuals
            notes.append(_short_run(problem, thetas))
        notes += [*_speed(problem, thetas), *slow]
    return notes


def structure_of(problem: Problem, seed: int = 0) -> tuple[str, ...]:
    """What a problem has that rules can use, one sentence each."""
    return guarded("loss", lambda: find_structure(problem, _instances(problem, seed)).words)


def _composite(problem: Problem) -> bool:
    return isinstance(problem, CompositeProblem)


def _instances(problem: Problem, seed: int) -> Theta:
    """A few instances; `sample` must draw different ones, of one form, and only numbers."""
    if isinstance(problem, StockedProblem):
        problem.require_steady()
        most, rows = problem.drawable, count(problem.stock)
        if most < 60:
            grouped = "" if most == rows else f" in {most} groups, of which each counts once"
            raise ProblemError(
                f"the data hold {rows} instances{grouped}: at least 60 are needed to train on "
                "some, to certify on others and to test on the rest (several hundred make a "
                "certificate worth having)"
            )
        return instance(problem.stock, np.arange(min(FEW, rows)))
    _sampled(problem, named_key(seed, "check"))
    thetas = guarded("sample", lambda: draw(problem, FEW, named_key(seed, "check")))
    for leaf in jax.tree.leaves(thetas):
        if not np.all(np.isfinite(np.asarray(leaf, np.float64))):
            raise ProblemError("sample returns numbers that are not finite")
        wanted = jnp.dtype(problem.precision)
        if jnp.issubdtype(leaf.dtype, jnp.floating) and leaf.dtype != wanted:
            raise ProblemError(
                f"sample returns {leaf.dtype}, but the problem's precision is {wanted}: draw with "
                f"that type (jax.random functions take dtype=), or set precision='{leaf.dtype}'"
            )
    same = [bool(jnp.all(leaf == leaf[:1])) for leaf in jax.tree.leaves(thetas)]
    if all(same):
        raise ProblemError(
            "sample returns the same instance for every key: draw with jax.random and the key "
            "(jax.random.normal(key, ...)), and split the key where you draw twice"
        )
    return thetas


def _sampled(problem: Problem, key: Array) -> None:
    """`sample` returns arrays of numbers, and is the same program whenever it is traced."""
    returned: list[Theta] = []

    def leaves(key: Array) -> list[Any]:
        returned.append(problem.sample(key))
        return [leaf for leaf in jax.tree.leaves(returned[-1]) if eqx.is_array(leaf)]

    first = guarded("sample", lambda: programs.program(leaves, key))
    found = jax.tree.leaves(returned[0])
    if not found:
        raise ProblemError(
            "sample returns no arrays: return what varies from instance to instance, as an array "
            "or a pytree of arrays"
        )
    for leaf in found:
        if not eqx.is_array_like(leaf) or _dtype(leaf).kind not in "fiub":
            raise ProblemError(
                f"sample returns a {type(leaf).__name__}: instances are arrays of numbers, or "
                "pytrees of them"
            )
    again = guarded("sample", lambda: programs.program(leaves, key))
    if not programs.same(first, again) or _form(returned[0]) != _form(returned[1]):
        raise ProblemError(
            "sample returns another instance (or one of another shape or type) when it is called "
            "again with the same key: all of its randomness must come from the key, by jax.random, "
            "and it must not keep anything between calls"
        )


def _dtype(leaf: Any) -> np.dtype:
    return np.dtype(leaf.dtype) if hasattr(leaf, "dtype") else np.asarray(leaf).dtype


def _form(theta: Theta) -> object:
    """What two instances have in common: structure, and numbers that are not arrays."""
    numbers = [leaf for leaf in jax.tree.leaves(theta) if not eqx.is_array(leaf)]
    return jax.tree.structure(theta), [np.asarray(number).tolist() for number in numbers]


def _starts(problem: Problem, thetas: Theta) -> str:
    """Every start is made of finite numbers of the problem's precision."""
    start = guarded("start", lambda: problem.start(instance(thetas, 0)))
    leaves = jax.tree.leaves(start)
    if not leaves:
        raise ProblemError("the start holds no numbers: return an array or a pytree of arrays")
    for leaf in leaves:
        kind = np.asarray(leaf).dtype
        if kind.kind != "f":
            raise ProblemError(
                f"the start holds {kind}: x is what is optimized and must hold floating-point "
                "numbers (jnp.zeros(n), not an array of whole numbers)"
            )
        if kind != np.dtype(problem.precision):
            raise ProblemError(
                f"the start is {kind}, but the problem's precision is {problem.precision}: make "
                "them agree (jnp.zeros follows the precision by itself)"
            )
    flat = guarded("start", lambda: jax.vmap(lambda t: ravel_pytree(problem.start(t))[0])(thetas))
    if not np.all(np.isfinite(np.asarray(flat))):
        raise ProblemError("the start holds numbers that are not finite")
    if flat.shape[1] == 0:
        raise ProblemError("the start is empty: x must hold at least one number")
    shapes = ", ".join(str(np.shape(leaf)) for leaf in leaves)
    return f"x has {flat.shape[1]} numbers (shapes {shapes})"


def _traced(problem: Problem, thetas: Theta) -> list[str]:
    """The loss can be compiled, batched and differentiated, and gives the same number twice.

    It is one program, and not a very long one. What is slow about it is handed back, in words.
    """
    theta = instance(thetas, 0)
    start = problem.start(theta)
    traced = guarded("loss", lambda: programs.program(problem.loss, start, theta))
    programs.require_short("loss", traced)
    first = guarded("loss", lambda: problem.loss(start, theta))
    if isinstance(first, tuple | list | dict) or first is None:
        raise ProblemError(
            f"loss returns a {type(first).__name__}: it must return a single number and nothing "
            "else"
        )
    again = np.asarray(guarded("loss", lambda: problem.loss(start, theta)))
    if again.shape == () and not np.array_equal(np.asarray(first), again, equal_nan=True):
        raise ProblemError(
            "loss returns another number when it is called again with the same x and theta: it "
            "must not draw random numbers or change anything; what is random belongs into theta"
        )
    programs.require_same("loss", traced, programs.program(problem.loss, start, theta))
    shape = guarded("loss", lambda: eqx.filter_eval_shape(problem.loss, start, theta))
    if jnp.issubdtype(shape.dtype, jnp.complexfloating):
        raise ProblemError("loss returns a complex number: take its real part or absolute value")
    if shape.shape == ():
        guarded("loss", lambda: eqx.filter_eval_shape(eqx.filter_grad(problem.loss), start, theta))
    guarded(
        "loss",
        lambda: eqx.filter_eval_shape(
            jax.vmap(lambda t: problem.loss(problem.start(t), t)), thetas
        ),
    )
    return programs.notes("loss", traced)


def _proximal(problem: Problem, thetas: Theta) -> str:
    """The proximal map belongs to the non-smooth part: no nearby point has a smaller objective."""
    assert isinstance(problem, CompositeProblem)
    theta = instance(thetas, 0)
    start, unravel = ravel_pytree(problem.start(theta))
    random = np.random.default_rng(0)
    scale = 1 + float(np.max(np.abs(start)))
    points = jnp.asarray(start + scale * random.normal(size=(4, start.size)), start.dtype)
    step = jnp.asarray(0.1 * scale, start.dtype)
    for x in points:
        found = guarded("prox", lambda x=x: problem.prox(unravel(x), step, theta))
        same = jax.tree.structure(found) == jax.tree.structure(unravel(x))
        flat = ravel_pytree(found)[0] if same else jnp.zeros(0)
        if flat.shape != x.shape:
            raise ProblemError("prox must return a point of the same form as the one it is given")

        def objective(z: Any, x: Any = x) -> float:
            inside = problem.nonsmooth(unravel(z), theta)
            return float(inside + jnp.sum((z - x) ** 2) / (2 * step))

        best = objective(flat)
        if not np.isfinite(best):
            raise ProblemError(
                "nonsmooth is not finite at a point that prox returns: prox must end where "
                "nonsmooth is finite (inside the constraint)"
            )
        slack = 1e-5 * (1 + abs(best))
        others = [flat + 0.01 * scale * random.normal(size=flat.size) for _ in range(16)]
        nearer = [flat + share * (x - flat) for share in (0.1, 0.5)]
        if min(objective(z) for z in (*others, *nearer)) < best - slack:
            raise ProblemError(
                "prox is not the proximal map of nonsmooth: a point near the one it returns has a "
                "smaller nonsmooth(z) + norm(z - x)^2 / (2 step). Check the step (it multiplies "
                "the weight) and the sign"
            )
    return "prox belongs to nonsmooth"


def _short_run(problem: Problem, thetas: Theta) -> str:
    """A few careful steps: losses stay finite and above the bound."""

    @eqx.filter_jit
    def sizes(problem: Problem, theta: Theta) -> Any:
        part = problem.smooth if isinstance(problem, CompositeProblem) else problem.loss
        start, unravel = ravel_pytree(problem.start(theta))
        slope = jax.grad(lambda x: part(unravel(x), theta))
        gradient, bent = jax.jvp(slope, (start,), (slope(start),))
        return jnp.linalg.norm(gradient), jnp.linalg.norm(bent)

    size, bent = map(float, sizes(problem, instance(thetas, 0)))
    curvature = bent / max(size, 1e-30)
    moved = 0.1 / curvature if np.isfinite(curvature) and curvature > 0 else 1e-3
    shown = rollouts(ProximalGradient(moved), problem, thetas, 10, FEW)
    losses = np.asarray(shown.losses, np.float64)
    finite = np.all(np.isfinite(losses), axis=1)
    if not finite.all():
        bad = int(np.argmin(finite))
        when = int(np.argmin(np.isfinite(losses[bad])))
        raise ProblemError(
            f"the loss is not finite after {when} small gradient steps on instance {bad}: guard "
            "logarithms, roots and divisions (jnp.where inside, not outside), or scale the data"
        )
    if problem.nonnegative and losses.min() < 0:
        raise ProblemError(
            f"the loss falls to {losses.min():.4g} within ten small steps, below its lower bound: "
            "declare a bound that holds (lower=), or lower=None if you know none"
        )
    before, after = losses[:, 0].mean(), losses[:, -1].mean()
    return f"ten small gradient steps take the mean loss from {before:.4g} to {after:.4g}"


def _speed(problem: Problem, thetas: Theta) -> list[str]:
    """How long a gradient takes, and what makes compilation slow or has it done again."""
    traces = 0

    @eqx.filter_jit
    def gradients(problem: Problem, thetas: Theta) -> Any:
        nonlocal traces
        traces += 1

        def one(theta: Theta) -> Any:
            start, unravel = ravel_pytree(problem.start(theta))
            return jax.value_and_grad(lambda x: problem.loss(unravel(x), theta))(start)

        return jax.vmap(one)(thetas)

    began = time.perf_counter()
    jax.block_until_ready(gradients(problem, thetas))
    compiled = time.perf_counter() - began
    began = time.perf_counter()
    jax.block_until_ready(gradients(problem, thetas))
    each = (time.perf_counter() - began) / count(thetas)
    notes = [f"a gradient takes {_time(each)} (compiling it {_time(compiled)})"]
    # The same numbers from elsewhere, as a solver in production gets them.
    gradients(problem, as_instances(problem, jax.tree.map(np.asarray, thetas)))
    if traces > 1:
        notes.append(
            "programs are compiled again for instances that do not come from sample: a number in "
            "theta has no type of its own (a Python number, or jnp.asarray of one); give it one, "
            "jnp.asarray(0.1, dtype=...)"
            if programs.weak(thetas)
            else "programs are compiled again when they are given equal arguments: a field of the "
            "problem that is no array does not equal itself (make it an array, a number or a "
            "function)"
        )
    if each > _SLOW:
        notes.append(
            "that is slow, and training takes hundreds of thousands: are there Python loops that "
            "jax.lax.scan or an array operation could replace, or data that float32 would do for?"
        )
    if compiled > 20:
        notes.append(
            "compiling is slow: Python loops are unrolled into the program; use jax.lax.scan or "
            "array operations instead"
        )
    theta = instance(thetas, 0)
    closed = jax.make_jaxpr(lambda x: problem.loss(x, theta))(problem.start(theta)).consts
    size = sum(np.asarray(const).nbytes for const in closed)
    if size > _LARGE:
        notes.append(
            f"loss carries {size / 1e6:.0f} MB of constants into every compiled program: make them "
            "fields of a Problem, which are passed instead"
        )
    return notes


def _time(seconds: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1e6:.3g} microseconds"
