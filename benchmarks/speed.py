"""Speed of the hot paths, as ratios measured in one run.

Compares locating steps and rollouts of the learned quadratics rule with a plain NumPy
transcription of the same rule, run one instance at a time in the same process, and with this
machine's rate of float64 matrix products. Absolute times depend on the machine and on what else it
does; the ratios are what to look at.

    python benchmarks/speed.py
"""

import time

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from surestep import problems
from surestep.problem import instance, working_precision
from surestep.provenance import provenance
from surestep.randomness import named_key
from surestep.rollout import losses_at
from surestep.rule import hyper_of, with_hyper
from surestep.rules import Coordinatewise
from surestep.split import PriorSet
from surestep.stages.locate import LocateSettings
from surestep.training import enrol, train
from surestep.trajectory import (
    Material,
    TrainingSettings,
    follow,
    piece_objective,
    start_trajectory,
)

HORIZON = 350
CHUNK = 5_000


def best_of(times, call):
    """The shortest of several runs: what the machine does when it is not disturbed."""
    shortest = np.inf
    for _ in range(times):
        began = time.perf_counter()
        jax.block_until_ready(call())
        shortest = min(shortest, time.perf_counter() - began)
    return shortest


class NumpyRule:
    """The rule as the paper draws it, layer by layer, with its derivative by hand."""

    def __init__(self, rule):
        self.direction = [np.array(w) for group in rule.direction.groups for w in group]
        self.scale = [np.array(w) for group in rule.scale.groups for w in group]

    @staticmethod
    def forward(layers, h):
        """The output, and what the way back needs."""
        kept = []
        for i, w in enumerate(layers):
            kept.append(h)
            h = w @ h
            if i in (0, 2, 4):
                h = np.maximum(h, 0)
        return h, kept

    @staticmethod
    def backward(layers, kept, cotangent):
        """Gradients of all layers."""
        gradients = [np.empty(0)] * len(layers)
        for i in reversed(range(len(layers))):
            if i in (0, 2, 4):
                following = kept[i + 1]
                cotangent = cotangent * (following > 0)
            gradients[i] = cotangent @ kept[i].T
            cotangent = layers[i].T @ cotangent
        return gradients

    def features(self, x, previous, value, value_before, gradient):
        momentum = x - previous
        n1, n2 = np.sqrt(gradient @ gradient), np.sqrt(momentum @ momentum)
        d1 = gradient / n1 if n1 > 0 else gradient
        d2 = momentum / n2 if n2 > 0 else momentum
        directions = np.stack([d1, d2, d1 * d2])
        return directions, np.log1p(np.array([[n1], [n2], [value], [value_before]]))

    def rollout(self, diagonal, target, iterations):
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
        return value

    def train(self, diagonal, target, steps, learning_rate=1e-4):
        """The ratio of consecutive losses and Adam, one step at a time."""
        layers = self.direction + self.scale
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
        return value


def check_transcription(rule, problem, thetas):
    """The opponent computes the same thing, or the ratio means nothing."""
    theta = instance(thetas, 0)
    diagonal, target = np.asarray(theta.diagonal), np.asarray(theta.target)
    ours = losses_at(rule, problem, instance(thetas, jnp.array([0])), (20,), 1)[0, 0]
    np.testing.assert_allclose(NumpyRule(rule).rollout(diagonal, target, 20), ours, rtol=1e-8)
    hyper = hyper_of(rule)

    def objective(h):
        start = start_trajectory(rule, problem, thetas, jnp.asarray(0))
        return piece_objective(follow(with_hyper(rule, h), problem, thetas, start, 1)[0], "ratio")

    expected = np.asarray(jax.grad(objective)(hyper))
    plain = NumpyRule(rule)
    before = [w.copy() for w in plain.direction + plain.scale]
    plain.train(diagonal, target, 1)
    moved = np.concatenate(
        [(w - b).ravel() for w, b in zip(plain.direction + plain.scale, before, strict=True)]
    )
    # Adam's first step is minus the learning rate times the sign of the gradient.
    clear = np.abs(expected) > 1e-5
    np.testing.assert_array_equal(np.sign(moved[clear]), -np.sign(expected[clear]))


def matrix_product_rate():
    """Float64 operations per second in a large matrix product."""
    a = jax.random.normal(jax.random.key(0), (2048, 2048))
    product = jax.jit(lambda m: m @ m)
    jax.block_until_ready(product(a))
    return 2 * 2048**3 / best_of(5, lambda: product(a))


def main():
    config = problems.preset("quadratics", "paper")
    problem = problems.build(config).problem
    with working_precision(problem):
        prior = PriorSet.draw(problem, 250, 0)
        thetas = prior.thetas
        rule = Coordinatewise.create(named_key(0, "rule"))
        check_transcription(rule, problem, thetas)
        plain = NumpyRule(rule)
        diagonal, target = np.asarray(thetas.diagonal[0]), np.asarray(thetas.target[0])
        n = target.size

        rate = matrix_product_rate()
        jax.block_until_ready(losses_at(rule, problem, thetas, (HORIZON,), 256))
        ours = 250 / best_of(3, lambda: losses_at(rule, problem, thetas, (HORIZON,), 256))
        numpys = 1 / best_of(3, lambda: plain.rollout(diagonal, target, HORIZON))
        # Multiplications and additions once adjacent linear maps are one matrix.
        work = HORIZON * n * 2 * (3 * 16 + 16 * 16 + 16 * 16 + 16)

        material = Material.of(TrainingSettings(), prior)
        pupil = enrol(rule, problem, material, hyper_of(rule), named_key(0, "bench"))
        rates = LocateSettings().rates(0, CHUNK)
        arguments = (rule, problem, material, named_key(1, "bench"), rates, 1, HORIZON, "random")
        trained = eqx.filter_jit(train)
        jax.block_until_ready(trained(pupil, *arguments))
        our_steps = CHUNK / best_of(3, lambda: trained(pupil, *arguments))
        numpy_steps = 500 / best_of(3, lambda: plain.train(diagonal, target, 500))

    for name, value in provenance().items():
        print(f"{name}: {value}")
    print(f"float64 matrix product: {rate / 1e9:.1f} GFLOP/s")
    print(
        f"rollouts of {HORIZON} iterations: {ours:.0f}/s ({1e3 / ours:.2f} ms each), "
        f"{ours / numpys:.1f} times NumPy's {numpys:.1f}/s, "
        f"{ours * work / rate:.0%} of the matrix-product rate"
    )
    print(
        f"locating steps: {our_steps:.0f}/s ({1e6 / our_steps:.0f} microseconds each), "
        f"{our_steps / numpy_steps:.1f} times NumPy's {numpy_steps:.0f}/s"
    )


if __name__ == "__main__":
    main()
