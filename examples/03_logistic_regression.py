"""Logistic regression on the breast-cancer data, refitted for every reweighting of the patients.

    surestep run examples/03_logistic_regression.py --budget 1m

An instance is a vector of weights, one for each patient (a Bayesian bootstrap). Thousands of such
refits are what confidence intervals of the coefficients are made from.
"""

import jax
import jax.numpy as jnp
import numpy as np
from sklearn.datasets import load_breast_cancer

import surestep as ss

features, labels = load_breast_cancer(return_X_y=True)
features = (features - features.mean(axis=0)) / features.std(axis=0)
features = np.column_stack([features, np.ones(len(labels))])


def sample(key):
    return jax.random.exponential(key, (len(labels),))


def loss(x, weights):
    scores = features @ x
    misfit = jnp.logaddexp(0.0, scores) - labels * scores
    return jnp.mean(weights * misfit) + 1e-3 * jnp.sum(x**2)


problem = ss.make_problem(loss, x0=np.zeros(features.shape[1]), sample=sample, name="logistic")

if __name__ == "__main__":
    learned = ss.fit(problem, budget="1m")
    print(learned.certificate)
    print(ss.report.summary(learned))
