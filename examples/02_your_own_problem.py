"""Bring your own family: regularised logistic regression, refitted for every data set.

python examples/02_your_own_problem.py
"""

import dataclasses

import jax
import jax.numpy as jnp

import surestep as ss


class Logistic(ss.Problem):
    """Fit 10 weights to 40 labelled points; every data set has its own true weights."""

    def sample(self, key):
        points_key, truth_key, label_key = jax.random.split(key, 3)
        points = jax.random.normal(points_key, (40, 10))
        chance = jax.nn.sigmoid(points @ jax.random.normal(truth_key, (10,)))
        labels = jax.random.bernoulli(label_key, chance).astype(points.dtype)
        return points, labels

    def start(self, theta):
        return jnp.zeros(10)

    def loss(self, x, theta):
        points, labels = theta
        scores = points @ x
        fit = jnp.mean(jnp.logaddexp(0.0, scores) - labels * scores)
        return fit + 0.05 * jnp.sum(x**2)


smoothness = 1.0  # of a typical instance: largest eigenvalue of points' points / 160, plus 0.1
experiment = ss.Experiment(
    problem=Logistic(),
    create_rule=ss.rules.Coordinatewise.create,
    teacher=ss.rules.GradientDescent(1 / smoothness),
    baselines={"Nesterov": ss.rules.Nesterov(1 / smoothness), "L-BFGS": ss.rules.LBFGS()},
    accuracies=ss.Accuracies((0.5,)),
)
# Numbers of a run are independent of the problem; start from a preset's.
config = dataclasses.replace(
    ss.paper.preset("quadratics", "tiny"),
    name="logistic",
    problem=None,
    goal=ss.Goal(scale=0.9, exponent=1.0),
    horizon=20,
    evaluate=dataclasses.replace(ss.paper.preset("quadratics", "tiny").evaluate, baselines=()),
)

if __name__ == "__main__":
    learned = ss.learn(config, experiment)
    print(learned.certificate)
    print()
    print(ss.report.summary(learned))
