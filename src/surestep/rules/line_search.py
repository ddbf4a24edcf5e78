"""A line search for the strong Wolfe conditions: one loop, whose length is bounded.

The method is that of Nocedal and Wright's algorithms 3.5 and 3.6 (Numerical Optimization, 2006),
with the approximate conditions of Hager and Zhang (2005) where values are told apart by rounding
alone. An interval is kept whose lower end falls enough and still descends, and whose upper end
does not. So an acceptable step lies inside, and cubic interpolation looks for it.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, Scalar

from surestep.problem import Vector

_FALL = 1e-4  # the share of the fall that the first slope promises which is enough
_FLAT = 0.9  # the share of the first slope that a step's end may have
_ULPS = 4.0  # a difference of values of so many roundings says nothing
_STRETCH = (2.0, 20.0)  # how many times the last step the next one is, while all of them fall
_INSIDE = 0.05  # the share of the interval that its ends are not approached by
_CALM = 4  # so often the interval is halved while its upper end is not finite, then it is cut more
_SHRINKS = 0.66  # two steps leave at most this share of the interval, else it is halved

Evaluate = Callable[[Vector], tuple[Scalar, Vector]]
"""The loss and its gradient at a point."""


class Sample(NamedTuple):
    """A step along the line: its length, the loss at its end and the slope there."""

    length: Scalar
    value: Scalar
    slope: Scalar


class Found(NamedTuple):
    """Where a line search ended; at length 0 if no step lowers the loss."""

    length: Scalar
    value: Scalar
    gradient: Vector
    evaluations: Int[Array, ""]
    shortest: Scalar
    """The shortest step that does not do: what to begin below, if none was found."""


class _Search(NamedTuple):
    low: Sample
    high: Sample
    before: Sample  # what was `low` before, for extrapolation
    widths: tuple[Scalar, Scalar]  # of the interval, after the last two evaluations
    best: Sample
    gradient: Vector  # at the best step
    trial: Scalar
    turns: Int[Array, ""]
    done: Bool[Array, ""]


def search(
    evaluate: Evaluate, x: Vector, start: tuple[Scalar, Vector], direction: Vector,
    slope: Scalar, first: Scalar, most: int,
) -> Found:  # fmt: skip
    """A step along a direction that lowers the loss and leaves less of its slope.

    It never ends above the loss it begins with. It ends after `most` evaluations; as soon as a
    step does; or when rounding hides what could still be gained. Then the best step is taken, or
    none. A slope that does not descend is not followed at all.

    **Arguments:**

    - `evaluate`: the loss and its gradient at a point.
    - `x`: where the line begins.
    - `start`: loss and gradient there.
    - `direction`: a vector of norm 1.
    - `slope`: the derivative of the loss along it at `x`.
    - `first`: the length that is tried first.
    - `most`: how often to evaluate, at most.
    """
    value, gradient = start
    epsilon = jnp.finfo(x.dtype).eps
    noise = _ULPS * epsilon * jnp.abs(value)
    # Steps that differ by less than this end in the same point.
    sizes = jnp.abs(direction)
    apart = epsilon / 2 * jnp.min(jnp.where(sizes > 0, jnp.abs(x) / sizes, jnp.inf))
    zero = jnp.zeros_like(slope)
    origin = Sample(zero, value, slope)
    nowhere = Sample(zero + jnp.inf, zero + jnp.inf, zero + jnp.inf)

    # The loop ends by its count, which is exact. A condition that is computed twice in a compiled
    # program may be rounded in two ways, and two flags that exclude each other on paper may not.
    def unfinished(now: _Search) -> Array:
        return (now.turns < most) & ~now.done

    def turn(now: _Search) -> _Search:
        found, there = evaluate(x + now.trial * direction)
        tried = Sample(now.trial, found, jnp.vdot(there, direction))
        sound = jnp.isfinite(tried.value) & jnp.isfinite(tried.slope)
        falls = tried.value <= value + _FALL * tried.length * slope
        level = jnp.abs(tried.value - value) <= noise
        flat = jnp.abs(tried.slope) <= _FLAT * jnp.abs(slope)
        accepted = sound & flat & (falls | level) & (tried.value <= value)
        better = accepted | (sound & (tried.value < now.best.value))
        rises = ~(sound & (falls | level) & (tried.slope < 0))
        low, high = _where(rises, now.low, tried), _where(rises, tried, now.high)
        before = _where(rises, now.before, now.low)
        width = high.length - low.length
        steepest = jnp.maximum(
            jnp.abs(low.slope), jnp.where(jnp.isfinite(high.slope), jnp.abs(high.slope), 0.0)
        )
        smallest = jnp.maximum(apart, _ULPS * epsilon * high.length)
        hidden = (width <= smallest) | (steepest * width <= epsilon / 4 * jnp.abs(value))
        turns = now.turns + 1
        # Where nothing has been found yet, it goes back ever faster.
        retreat = 0.5 ** jnp.where(low.length > 0, 1, jnp.maximum(1, turns - _CALM))
        longest_wanted = _SHRINKS * now.widths[0]
        return _Search(
            low=low,
            high=high,
            before=before,
            widths=(now.widths[1], width),
            best=_where(better, tried, now.best),
            gradient=jnp.where(better, there, now.gradient),
            trial=jnp.where(
                jnp.isfinite(width),
                _between(low, high, noise, width > longest_wanted, retreat),
                _beyond(before, low),
            ),
            turns=turns,
            done=accepted | (hidden & jnp.isfinite(width)),
        )

    begun = _Search(
        low=origin,
        high=nowhere,
        before=origin,
        widths=(zero + jnp.inf, zero + jnp.inf),
        best=origin,
        gradient=gradient,
        trial=first,
        turns=jnp.zeros((), jnp.int32),
        done=~((slope < 0) & jnp.isfinite(slope) & jnp.isfinite(value)),
    )
    end = jax.lax.while_loop(unfinished, turn, begun)
    return Found(
        end.best.length, end.best.value, end.gradient, end.turns,
        jnp.where(jnp.isfinite(end.high.length), end.high.length, first),
    )  # fmt: skip


def _where(which: Array, one: Sample, other: Sample) -> Sample:
    return Sample(*(jnp.where(which, a, b) for a, b in zip(one, other, strict=True)))


def _beyond(before: Sample, low: Sample) -> Scalar:
    """A longer step: to where the slope would be 0 if it went on changing as it has."""
    bend = (low.slope - before.slope) / (low.length - before.length)
    wanted = low.length - low.slope / jnp.where(bend > 0, bend, 1.0)
    shortest, longest = (factor * low.length for factor in _STRETCH)
    return jnp.where(bend > 0, jnp.clip(wanted, shortest, longest), longest)


def _between(low: Sample, high: Sample, noise: Scalar, halve: Array, retreat: Array) -> Scalar:
    """A step inside the interval: to the minimum of a cubic, or to a safer place.

    If the upper end is not finite, `retreat` is the share of the interval to try.
    """
    width = high.length - low.length
    cubic = _cubic_minimum(low, high, width)
    # Slopes are still right where the difference of the values is rounding.
    turning = low.slope / (low.slope - high.slope)
    hidden = jnp.abs(high.value - low.value) <= noise
    share = jnp.where(hidden & (high.slope > 0), turning, cubic)
    share = jnp.where(jnp.isfinite(share) & ~halve, share, 0.5)
    share = jnp.clip(share, _INSIDE, 1 - _INSIDE)
    sound = jnp.isfinite(high.value) & jnp.isfinite(high.slope)
    return low.length + width * jnp.where(sound, share, retreat.astype(width.dtype))


def _cubic_minimum(low: Sample, high: Sample, width: Scalar) -> Scalar:
    """Where the cubic with these values and slopes has its minimum, as a share of the interval.

    Not finite if it has none.
    """
    mixed = low.slope + high.slope - 3 * (high.value - low.value) / width
    # Divided by the largest of them, squares neither overflow nor vanish.
    size = jnp.maximum(jnp.abs(mixed), jnp.maximum(jnp.abs(low.slope), jnp.abs(high.slope)))
    mixed, first, last = mixed / size, low.slope / size, high.slope / size
    root = jnp.sqrt(mixed**2 - first * last)
    return 1 - (last + root - mixed) / (last - first + 2 * root)
