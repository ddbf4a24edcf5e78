"""Classical first-order rules: the teachers of learned rules and their opponents."""

import abc
from typing import Any, ClassVar

import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Scalar

from surestep.problem import Oracle, Vector
from surestep.rules.base import GradientRule, Need, Rule, State


class GradientDescent(GradientRule):
    """Gradient descent: `x - step_size * gradient`.

    **Arguments:**

    - `step_size`: a number, or a scalar array if it is to be learned. It converges below `2 / L` on
      losses with an `L`-Lipschitz gradient.

    ```python
    import surestep as ss

    rule = ss.rules.GradientDescent(step_size=0.01)
    ```
    """

    watches_loss: ClassVar[bool] = False

    step_size: float | Float[Array, ""]

    def remember(self, x: Vector, value: Scalar, gradient: Vector) -> None:
        """Nothing to remember."""

    def update(
        self, x: Vector, value: Scalar, gradient: Vector, memory: None
    ) -> tuple[Vector, None]:
        """One step against the gradient."""
        return x - self.step_size * gradient, None


class HeavyBall(GradientRule):
    """Polyak's heavy ball method: a gradient step plus a share of the last move.

    **Arguments:**

    - `step_size`: a number, or a scalar array if it is to be learned.
    - `momentum`: the share of the last move, between 0 and 1; it may be learned too.

    ```python
    import surestep as ss

    rule = ss.rules.HeavyBall.for_constants(smoothness=100.0, convexity=0.1)
    ```
    """

    watches_loss: ClassVar[bool] = False

    step_size: float | Float[Array, ""]
    momentum: float | Float[Array, ""]

    @classmethod
    def for_constants(cls, smoothness: float, convexity: float) -> "HeavyBall":
        """The step and momentum that are best in the worst case for these two constants."""
        root_l, root_m = smoothness**0.5, convexity**0.5
        return cls(
            step_size=(2 / (root_l + root_m)) ** 2,
            momentum=((root_l - root_m) / (root_l + root_m)) ** 2,
        )

    def remember(self, x: Vector, value: Scalar, gradient: Vector) -> Vector:
        """The previous point is the start itself."""
        return x

    def update(
        self, x: Vector, value: Scalar, gradient: Vector, memory: Vector
    ) -> tuple[Vector, Vector]:
        """A gradient step plus momentum."""
        return x - self.step_size * gradient + self.momentum * (x - memory), x


class Adam(GradientRule):
    """Adam (Kingma and Ba), as Optax implements it.

    **Arguments:**

    - `learning_rate`: a number, or a scalar array if it is to be learned.
    - `decay_mean`: how slowly the mean of gradients forgets (the beta 1 of the literature).
    - `decay_square`: the same for their squares (beta 2).
    - `epsilon`: added to the denominator.

    ```python
    import surestep as ss

    rule = ss.rules.Adam(learning_rate=0.01)
    ```
    """

    learning_rate: float | Float[Array, ""]
    decay_mean: float = 0.9
    decay_square: float = 0.999
    epsilon: float = 1e-8

    def _transformation(self) -> optax.GradientTransformation:
        return optax.adam(self.learning_rate, self.decay_mean, self.decay_square, self.epsilon)

    def remember(self, x: Vector, value: Scalar, gradient: Vector) -> Any:
        """Optax's moments, at zero."""
        return self._transformation().init(x)

    def update(self, x: Vector, value: Scalar, gradient: Vector, memory: Any) -> tuple[Vector, Any]:
        """Optax's update, applied."""
        change: Any
        change, memory = self._transformation().update(gradient, memory, x)
        return x + change, memory


class ProximalPoint(State):
    """The point."""

    x: Vector


class ProximalGradient(Rule):
    """The proximal gradient method (ISTA): a gradient step, then the penalty's proximal map.

    The gradient is the smooth part's. With the step `1 / L` the loss never rises. Without a
    non-smooth part it is gradient descent.

    **Arguments:**

    - `step_size`: the step of both.

    ```python
    import surestep as ss

    rule = ss.rules.ProximalGradient(step_size=0.01)
    ```
    """

    step_size: float

    def init(self, oracle: Oracle, x: Vector) -> ProximalPoint:
        """At rest in `x`."""
        return ProximalPoint(x)

    def step(self, oracle: Oracle, state: ProximalPoint) -> ProximalPoint:
        """One step."""
        moved = state.x - self.step_size * oracle.smooth_gradient(state.x)
        return ProximalPoint(oracle.prox(moved, self.step_size))


class ExtrapolatedState(State):
    """Two points in a row and how far the next gradient is taken beyond them."""

    x: Vector
    previous: Vector
    momentum: Scalar
    scalar: Scalar


class _Extrapolated(Rule):
    """Nesterov's scheme: a (proximal) gradient step from a point beyond the current one.

    The scalar starts at 1 and the previous point is the start itself, so the first step is a
    plain one.
    """

    @abc.abstractmethod
    def step_size_for(self, oracle: Oracle) -> float | Scalar | Vector:
        """The step size on an instance, or one for each coordinate."""

    def init(self, oracle: Oracle, x: Vector) -> ExtrapolatedState:
        """At rest in `x`."""
        one = jnp.ones((), x.dtype)
        return ExtrapolatedState(x, x, 0 * one, one)

    def step(self, oracle: Oracle, state: ExtrapolatedState) -> ExtrapolatedState:
        """Extrapolate, step, and find the momentum of the next extrapolation."""
        beyond = state.x + state.momentum * (state.x - state.previous)
        step_size = self.step_size_for(oracle)
        moved = beyond - step_size * oracle.smooth_gradient(beyond)
        x = oracle.prox(moved, step_size)
        momentum, scalar = self.next_momentum(state, beyond, x)
        return ExtrapolatedState(x, state.x, momentum, scalar)

    def next_momentum(
        self, state: ExtrapolatedState, beyond: Vector, x: Vector
    ) -> tuple[Scalar, Scalar]:
        """FISTA's sequence: `(t - 1) / t_next` with `t_next = (1 + sqrt(1 + 4 t^2)) / 2`."""
        scalar = (1 + jnp.sqrt(1 + 4 * state.scalar**2)) / 2
        return (state.scalar - 1) / scalar, scalar

    def relocate(self, oracle: Oracle, state: ExtrapolatedState, x: Vector) -> ExtrapolatedState:
        """Keep the momentum, move the point."""
        return ExtrapolatedState(x, state.previous, state.momentum, state.scalar)


class _ExtrapolatedOneStep(_Extrapolated):
    """With one step size for all instances."""

    step_size: float | Float[Array, ""]

    def step_size_for(self, oracle: Oracle) -> float | Scalar:
        """The same for all."""
        return self.step_size


class Nesterov(_ExtrapolatedOneStep):
    """Nesterov's accelerated gradient method, for smooth convex losses.

    **Arguments:**

    - `step_size`: `1 / L`, with `L` the largest smoothness of all instances; a number, or a scalar
      array if it is to be learned.

    ```python
    import surestep as ss

    rule = ss.rules.Nesterov(step_size=0.01)
    ```
    """

    needs: ClassVar[tuple[Need, ...]] = ("smooth",)


class NesterovPerInstance(_Extrapolated):
    """Nesterov's method with the step `1 / L` of the instance itself.

    It has no arguments: the problem's method `smoothness` says how large `L` is.

    ```python
    import surestep as ss

    rule = ss.rules.NesterovPerInstance()
    ```
    """

    needs: ClassVar[tuple[Need, ...]] = ("smooth", "smoothness")

    def step_size_for(self, oracle: Oracle) -> Scalar:
        """One over the instance's own constant."""
        return 1 / oracle.smoothness()


class Fista(_ExtrapolatedOneStep):
    """FISTA (Beck and Teboulle): Nesterov's method with a proximal step, for composite losses.

    **Arguments:**

    - `step_size`: `1 / L`, with `L` the smoothness of the smooth part; a number, or a scalar array
      if it is to be learned.

    ```python
    import surestep as ss

    rule = ss.rules.Fista(step_size=0.01)
    ```
    """


class FistaWithRestart(_ExtrapolatedOneStep):
    """FISTA that drops its momentum when the last move points uphill.

    The gradient test of O'Donoghue and Candès: it costs no evaluation.

    **Arguments:**

    - `step_size`: as for `Fista`.

    ```python
    import surestep as ss

    rule = ss.rules.FistaWithRestart(step_size=0.01)
    ```
    """

    def next_momentum(
        self, state: ExtrapolatedState, beyond: Vector, x: Vector
    ) -> tuple[Scalar, Scalar]:
        """FISTA's sequence, begun anew where momentum and step disagree."""
        uphill = jnp.vdot(beyond - x, x - state.x) > 0
        return _unless(uphill, super().next_momentum(state, beyond, x))


class ScaledFista(_Extrapolated):
    """FISTA with restart in a diagonal metric: one step size for each coordinate.

    It is FISTA with restart in the variables `x / sqrt(step_sizes)`, so it converges where
    `diag(1 / step_sizes) - A'A` is positive semidefinite; `surestep.train.metric` scales them so.

    **Arguments:**

    - `step_sizes`: a vector of positive numbers, one for each coordinate of the flattened variable.

    ```python
    import jax.numpy as jnp
    import surestep as ss

    rule = ss.rules.ScaledFista(jnp.full(20, 0.01))
    ```
    """

    step_sizes: Float[Array, " n"]

    def step_size_for(self, oracle: Oracle) -> Vector:
        """The same for all instances."""
        return self.step_sizes

    def next_momentum(
        self, state: ExtrapolatedState, beyond: Vector, x: Vector
    ) -> tuple[Scalar, Scalar]:
        """As `FistaWithRestart`, with angles measured in the metric of the step sizes."""
        uphill = jnp.vdot((beyond - x) / self.step_sizes, x - state.x) > 0
        return _unless(uphill, super().next_momentum(state, beyond, x))


def _unless(uphill: Array, following: tuple[Scalar, Scalar]) -> tuple[Scalar, Scalar]:
    momentum, scalar = following
    return jnp.where(uphill, 0.0, momentum), jnp.where(uphill, 1.0, scalar)
