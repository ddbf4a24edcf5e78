"""The paper's rule for quadratics in plain NumPy: what rollouts and training are measured against.

Written layer by layer, one instance at a time, with its derivative by hand, as a person would do it
who has read the paper. `check_transcription` compares it with the real thing.
"""

from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from surestep.paper.quadratics import Quadratic, Quadratics
from surestep.problem.base import instance
from surestep.rollout.batched import losses_at
from surestep.rules import Coordinatewise
from surestep.rules.base import hyper_of, with_hyper
from surestep.train.trajectory import follow, piece_objective, start_trajectory

Matrix = Float[np.ndarray, "out in"]
Columns = Float[np.ndarray, "channel n"]
Vector = Float[np.ndarray, " n"]


class NumpyRule:
    """The rule as the paper draws it."""

    def __init__(self, rule: Coordinatewise) -> None:
        self.direction = [np.array(w) for group in rule.direction.groups for w in group]
        self.scale = [np.array(w) for group in rule.scale.groups for w in group]

    @property
    def layers(self) -> list[Matrix]:
        """All matrices, in the order of the hyper."""
        return self.direction + self.scale

    @staticmethod
    def forward(layers: list[Matrix], h: Columns) -> tuple[Columns, list[Columns]]:
        """The output, and what the way back needs."""
        kept = []
        for i, w in enumerate(layers):
            kept.append(h)
            h = w @ h
            if i in (0, 2, 4):
                h = np.maximum(h, 0)
        return h, kept

    @staticmethod
    def backward(layers: list[Matrix], kept: list[Columns], cotangent: Columns) -> list[Matrix]:
        """Gradients of all layers."""
        gradients = [np.empty(0)] * len(layers)
        for i in reversed(range(len(layers))):
            if i in (0, 2, 4):
                cotangent = cotangent * (kept[i + 1] > 0)
            gradients[i] = cotangent @ kept[i].T
            cotangent = layers[i].T @ cotangent
        return gradients

    def features(
        self, x: Vector, previous: Vector, value: Any, before: Any, gradient: Vector
    ) -> tuple[Columns, Columns]:
        """What direction and scale are computed from."""
        momentum = x - previous
        n1, n2 = np.sqrt(gradient @ gradient), np.sqrt(momentum @ momentum)
        d1 = gradient / n1 if n1 > 0 else gradient
        d2 = momentum / n2 if n2 > 0 else momentum
        directions = np.stack([d1, d2, d1 * d2])
        return directions, np.log1p(np.array([[n1], [n2], [value], [before]]))

    def rollout(self, diagonal: Vector, target: Vector, iterations: int) -> float:
        """The loss after some iterations."""
        x = previous = np.zeros_like(target)
        residual = diagonal * x - target
        value = value_before = 0.5 * residual @ residual
        for _ in range(iterations):
            directions, scales = self.features(
                x, previous, value, value_before, diagonal * residual
            )
            step = self.forward(self.scale, scales)[0][0, 0]
            move = self.forward(self.direction, directions)[0][0]
            x, previous, value_before = x + step * move, x, value
            residual = diagonal * x - target
            value = 0.5 * residual @ residual
        return float(value)

    def train(
        self, diagonal: Vector, target: Vector, steps: int, learning_rate: float = 1e-4
    ) -> float:
        """The ratio of consecutive losses and Adam, one step at a time; the last loss."""
        layers = self.layers
        first = [np.zeros_like(w) for w in layers]
        second = [np.zeros_like(w) for w in layers]
        x = previous = np.zeros_like(target)
        residual = diagonal * x - target
        value = value_before = 0.5 * residual @ residual
        for t in range(1, steps + 1):
            directions, scales = self.features(
                x, previous, value, value_before, diagonal * residual
            )
            step, kept_scale = self.forward(self.scale, scales)
            move, kept_direction = self.forward(self.direction, directions)
            x, previous, value_before = x + step[0, 0] * move[0], x, value
            residual = diagonal * x - target
            value = 0.5 * residual @ residual
            slope = diagonal * residual / value_before
            gradients = self.backward(self.direction, kept_direction, step[0, 0] * slope[None])
            gradients += self.backward(self.scale, kept_scale, np.array([[move[0] @ slope]]))
            for i, g in enumerate(gradients):
                first[i] += 0.1 * (g - first[i])
                second[i] += 0.001 * (g * g - second[i])
                mean, square = first[i] / (1 - 0.9**t), second[i] / (1 - 0.999**t)
                layers[i] -= learning_rate * mean / (np.sqrt(square) + 1e-8)
        return float(value)


def check_transcription(rule: Coordinatewise, problem: Quadratics, thetas: Quadratic) -> None:
    """Both compute the same thing, or a ratio of their times means nothing."""
    theta = cast(Quadratic, instance(thetas, 0))
    diagonal, target = np.asarray(theta.diagonal), np.asarray(theta.target)
    ours = losses_at(rule, problem, instance(thetas, jnp.array([0])), (20,), 1)[0, 0]
    np.testing.assert_allclose(NumpyRule(rule).rollout(diagonal, target, 20), ours, rtol=1e-8)

    def objective(h: jax.Array) -> jax.Array:
        start = start_trajectory(rule, problem, thetas, jnp.asarray(0))
        return piece_objective(follow(with_hyper(rule, h), problem, thetas, start, 1)[0], "ratio")

    expected = np.asarray(jax.grad(objective)(hyper_of(rule)))
    plain = NumpyRule(rule)
    before = [w.copy() for w in plain.layers]
    plain.train(diagonal, target, 1)
    changes = [(w - b).ravel() for w, b in zip(plain.layers, before, strict=True)]
    # Adam's first step is minus the learning rate times the sign of the gradient.
    clear = np.abs(expected) > 1e-5
    moved = np.concatenate(changes)
    np.testing.assert_array_equal(np.sign(moved[clear]), -np.sign(expected[clear]))
