"""What a loop is, and the programs that are made of one.

A loop knows how an instance begins and what an iteration does. Points are flat vectors. What a
family shares, like a factorised matrix, is in `shared` and is computed before anything is timed.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

Array = Any
"""Of JAX; products with matrices of NumPy are arrays of JAX too, which type checkers do not see."""
Theta = Any
State = Any
Shared = Any


def first_of(shared: Shared, theta: Theta, state: State) -> Array:
    """The point of a state that begins with it."""
    del shared, theta
    return state[0]


@dataclasses.dataclass(frozen=True)
class Loop:
    """A method with all its numbers chosen."""

    begin: Callable[[Shared, Theta], State]
    """The first state of an instance; what is computed once for an instance is computed here."""
    step: Callable[[Shared, Theta, State], State]
    shared: Shared = ()
    """Arrays that all instances share."""
    point: Callable[[Shared, Theta, State], Array] = first_of
    chosen: str = ""
    """The chosen numbers, in words."""


@dataclasses.dataclass(frozen=True)
class Method:
    """A method, and the choices of its numbers to try."""

    name: str
    loops: tuple[Loop, ...]
    limit: int = 4000
    """More iterations are not tried."""


class Smooth(NamedTuple):
    """A smooth loss of a flat vector, as its gradient methods need it."""

    start: Callable[[Theta], Array]
    both: Callable[[Array, Theta], tuple[Array, Array]]
    """Value and gradient."""
    gradient: Callable[[Array, Theta], Array]


def smooth(loss: Callable[[Array, Theta], Array], start: Callable[[Theta], Array]) -> Smooth:
    """By automatic differentiation."""
    return Smooth(start, jax.value_and_grad(loss), jax.grad(loss))


def from_zero(size: int) -> Callable[[Theta], Array]:
    """Every instance begins at 0."""

    def start(theta: Theta) -> Array:
        del theta
        return jnp.zeros(size)

    return start


@functools.partial(jax.jit, static_argnums=0)
def begin_all(begin: Callable, shared: Shared, thetas: Theta) -> State:
    """The states that a batch begins with."""
    return jax.vmap(begin, (None, 0))(shared, thetas)


@functools.partial(jax.jit, static_argnums=(0, 1, 2, 3))
def go_on(
    step: Callable,
    point: Callable,
    loss: Callable,
    iterations: int,
    shared: Shared,
    thetas: Theta,
    states: State,
) -> tuple[State, Array]:
    """Some iterations of a batch, and the losses after each, `[iteration, instance]`."""

    def advance(states: State, _: None) -> tuple[State, Array]:
        states = jax.vmap(step, (None, 0, 0))(shared, thetas, states)
        points = jax.vmap(point, (None, 0, 0))(shared, thetas, states)
        return states, jax.vmap(loss)(points, thetas)

    return jax.lax.scan(advance, states, None, iterations)


def run(loop: Loop, iterations: int, theta: Theta) -> Array:
    """Exactly so many iterations on one instance, without a look at losses."""
    state = loop.begin(loop.shared, theta)

    def body(_: Any, state: State) -> State:
        return loop.step(loop.shared, theta, state)

    state = jax.lax.fori_loop(0, iterations, body, state)
    return loop.point(loop.shared, theta, state)


def alone(loop: Loop, iterations: int) -> Callable[[Theta], Array]:
    """The compiled program for one instance."""
    return jax.jit(lambda theta: run(loop, iterations, theta))


def together(loop: Loop, iterations: int) -> Callable[[Theta], Array]:
    """The compiled program for a batch, vectorised: a shared matrix makes one large product."""
    return jax.jit(jax.vmap(lambda theta: run(loop, iterations, theta)))


def in_turn(loop: Loop, iterations: int) -> Callable[[Theta], Array]:
    """The compiled program for a batch, one instance after the other.

    It is quicker where instances share little, or where some need many more halvings than others.
    """

    def each(thetas: Theta) -> Array:
        return jax.lax.map(lambda theta: run(loop, iterations, theta), thetas)

    return jax.jit(each)
