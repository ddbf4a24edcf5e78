"""The compiled programs behind `solve`: one call for a whole set, dispatched in microseconds."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array

from surestep.problem import Oracle, Point, Problem, Theta, count, instance
from surestep.rollout.loop import unwatched
from surestep.rules import Checked
from surestep.rules.base import Rule
from surestep.rules.checked import Verdict

_TOGETHER = 8  # instances that are helped at a time


class Solved(NamedTuple):
    """Where a set of instances ended, as NumPy arrays."""

    x: Point
    loss: np.ndarray
    iterations: np.ndarray
    gradients: np.ndarray
    passed: np.ndarray | bool = True
    """Which ones passed the check, where a rule has one; the others were helped."""


@dataclasses.dataclass(frozen=True)
class Program:
    """A rule for a problem, prepared once, and the programs that are compiled for it."""

    arrays: list[Any]
    rest: Any
    rule: Rule
    block: int

    @classmethod
    def of(cls, rule: Rule, problem: Problem, block: int) -> "Program":
        """Prepare a rule; in the problem's working precision."""
        prepared = _prepared(rule)
        return cls(*split((prepared, problem)), prepared, block)

    @functools.cached_property
    def _at(self) -> int | None:
        """When a rule with a check is checked."""
        return self.rule.at if isinstance(self.rule, Checked) else None

    @functools.cached_property
    def _head(self) -> Callable[..., Any]:
        # Looking it up takes as long as a small solve.
        return _run(self.rest, self.block)

    @functools.cached_property
    def _tail(self) -> Callable[..., Any]:
        return _tail(self.rest, self.block)

    def solve(self, thetas: Theta, steps: int, x: Point | None) -> Solved:
        """So many iterations on every instance of a stacked set."""
        at = self._at
        early = steps if at is None else min(steps, at)
        points, loss, counts = self._head(self.arrays, thetas, _number(early), x)
        loss, counts = np.asarray(loss), np.asarray(counts)
        simple = isinstance(points, jax.Array)
        points = np.asarray(points) if simple else jax.tree.map(np.asarray, points)
        found = Solved(points, loss, counts[:, 0], counts[:, 1])
        if at is None:
            return found
        passed = counts[:, 2]
        if not (passed[0] if len(passed) == 1 else passed.all()):
            found = self.helped(thetas, found, np.flatnonzero(passed == 0))
            found = found._replace(passed=passed != 0)
        if steps > at:
            late = self._tail(self.arrays, thetas, _number(steps - at), found.x)
            points, loss, more = jax.tree.map(np.asarray, late)
            made = np.full(loss.shape, steps)
            found = Solved(points, loss, made, found.gradients + more, found.passed)
        return found

    def helped(self, thetas: Theta, found: Solved, failed: np.ndarray) -> Solved:
        """Those that failed the check are gathered, and go on with the fallback, a few at a time.

        So few that the slow ones hold up no others, and filled up, so that two programs serve for
        any number of them.
        """
        size = 1 if failed.size == 1 else _TOGETHER
        helped = []
        for first in range(0, failed.size, size):
            places = np.resize(failed[first : first + size], size)

            def gathered(leaf: Any, at: np.ndarray = places) -> Any:
                return np.asarray(leaf)[at]

            helped.append(
                _help(self.rest)(
                    self.arrays, jax.tree.map(gathered, thetas), jax.tree.map(gathered, found.x)
                )
            )
        part = jax.tree.map(lambda *some: np.concatenate(some), *helped)

        def put(whole: Any, new: Any) -> np.ndarray:
            changed = np.array(whole)
            changed[failed] = new[: failed.size]
            return changed

        x, loss, iterations, gradients = part
        spent = put(np.zeros_like(found.gradients), gradients)
        return Solved(
            jax.tree.map(put, found.x, x),
            put(found.loss, loss),
            found.iterations + put(np.zeros_like(found.iterations), iterations),
            found.gradients + spent,
        )


@functools.lru_cache(maxsize=4096)
def _number(value: int) -> Array:
    """A number of iterations, where programs are given it from."""
    return jax.device_put(np.asarray(value, np.int32))


@eqx.filter_jit
def _prepared(rule: Rule) -> Rule:
    return rule.prepare()


def split(tree: Any) -> tuple[list[Any], tuple[Any, tuple[Any, ...]]]:
    """A pytree's arrays, and the rest of it as something hashable."""
    leaves, structure = jax.tree.flatten(tree)
    arrays = [leaf if eqx.is_array(leaf) else None for leaf in leaves]
    return arrays, (structure, tuple(None if eqx.is_array(leaf) else leaf for leaf in leaves))


def joined(rest: Any, arrays: list[Any]) -> Any:
    """What `split` took apart."""
    structure, static = rest
    leaves = [s if a is None else a for a, s in zip(arrays, static, strict=True)]
    return jax.tree.unflatten(structure, leaves)


@functools.lru_cache(maxsize=64)
def _run(rest: Any, block: int) -> Callable[..., Any]:
    @jax.jit
    def run(arrays: list[Any], thetas: Theta, number: Array, starts: Point | None) -> Any:
        rule, problem = joined(rest, arrays)

        def one(theta: Theta, start: Point | None) -> Any:
            x = None if start is None else ravel_pytree(start)[0]
            end = unwatched(rule, problem, theta, number, x)
            unravel = ravel_pytree(problem.start(theta))[1]
            # As one array: what comes out of a program takes time, however small it is.
            counts = jnp.stack([number, end.gradients, end.passed.astype(jnp.int32)])
            return unravel(end.point), end.loss, counts

        return _each(one, thetas, starts, block)

    return run


@functools.lru_cache(maxsize=64)
def _tail(rest: Any, block: int) -> Callable[..., Any]:
    """The fallback's iterations after the check."""

    @jax.jit
    def tail(arrays: list[Any], thetas: Theta, number: Array, points: Point) -> Any:
        rule, problem = joined(rest, arrays)

        def one(theta: Theta, point: Point) -> Any:
            x = ravel_pytree(point)[0]
            end = unwatched(rule.fallback, problem, theta, number, x)
            return ravel_pytree(problem.start(theta))[1](end.x), end.loss, end.gradients

        return _each(one, thetas, points, block)

    return tail


@functools.lru_cache(maxsize=64)
def _help(rest: Any) -> Callable[..., Any]:
    @jax.jit
    def help_them(arrays: list[Any], thetas: Theta, points: Point) -> Any:
        rule, problem = joined(rest, arrays)

        def one(theta: Theta, point: Point) -> Any:
            oracle = Oracle(problem, theta)
            x = ravel_pytree(point)[0]
            value = oracle.unmetered_value(x)
            failed = Verdict(value, jnp.asarray(jnp.inf, x.dtype), jnp.zeros((), bool))
            end = rule.help(oracle, x, failed, rule.rescue)
            return oracle.unravel(end.x), end.value, end.iterations, end.gradients

        return jax.vmap(one)(thetas, points)

    return help_them


def _each(one: Callable[..., Any], thetas: Theta, others: Any, block: int) -> Any:
    """A function of every instance: alone, as one batch, or in batches of equal size."""
    size = count(thetas)
    if size == 1:
        # A batch of one would compile to other, slower products.
        alone = one(instance(thetas, 0), jax.tree.map(lambda leaf: leaf[0], others))
        return jax.tree.map(lambda leaf: leaf[None], alone)
    if size <= block:
        return jax.vmap(one)(thetas, others)
    batches = -(-size // block)
    return jax.lax.map(lambda given: one(*given), (thetas, others), batch_size=-(-size // batches))
