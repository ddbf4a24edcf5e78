"""The file that `surestep new` writes."""

from pathlib import Path

from surestep.base.errors import ConfigurationError
from surestep.storage.files import write_text

STARTER = '''\
"""A family of problems of your own.

    surestep check {name}      what is wrong or slow, in seconds
    surestep run {name}        learn a solver, certify it, write a report

An instance is what differs from one problem to the next (here: a data set). All instances share
the loss, and the form of x and of the data.
"""

import jax
import jax.numpy as jnp

import surestep as ss

FEATURES, POINTS = 20, 100


def sample(key):
    """One random instance: a data set. If you have data instead, see the last lines."""
    key_inputs, key_truth, key_labels = jax.random.split(key, 3)
    steps = jax.random.normal(key_inputs, (POINTS, FEATURES))
    inputs = jnp.cumsum(steps, axis=1) / FEATURES**0.5  # neighbouring features are alike
    truth = jax.random.normal(key_truth, (FEATURES,))
    chances = jax.nn.sigmoid(inputs @ truth)
    return {{"inputs": inputs, "labels": 1.0 * jax.random.bernoulli(key_labels, chances)}}


def loss(x, theta):
    """A single number, at least 0, written with jax.numpy; x has the form of x0."""
    scores = theta["inputs"] @ x
    misfit = jnp.logaddexp(0.0, scores) - theta["labels"] * scores
    return jnp.mean(misfit) + 1e-3 * jnp.sum(x**2)


problem = ss.make_problem(
    loss=loss,
    x0=jnp.zeros(FEATURES),  # where every solver starts; any array or pytree of arrays
    sample=sample,
    # thetas="data.npz",     # instead of sample: instances you have, one row each
    # penalty=ss.penalties.L1(0.1),  # a part that is not smooth, or a constraint: Box(0, 1)
    # lower=-10.0,           # a bound below which the loss never falls, if it can be negative;
    #                          lower=None if you know none: fewer statements are then certified
)
'''


def write_starter(path: Path) -> None:
    """Write the file; one that exists is left alone."""
    if path.suffix != ".py":
        raise ConfigurationError(f"{path} must be a Python file, like my_problem.py")
    if path.exists():
        raise ConfigurationError(f"{path} exists already, and is left as it is")
    if not path.parent.is_dir():
        raise ConfigurationError(f"there is no folder {path.parent}")
    write_text(path, STARTER.format(name=path.name))
