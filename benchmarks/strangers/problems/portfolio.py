"""Portfolios of 60 assets: little risk and much return, for changing expectations of returns."""

import jax
import numpy as np

import surestep as ss

ASSETS, FACTORS = 60, 6
AVERSION = 5.0

_rng = np.random.default_rng(60)
_exposure = 0.08 * _rng.normal(size=(ASSETS, FACTORS)) + 0.12 * (np.arange(FACTORS) == 0)
COVARIANCE = _exposure @ _exposure.T + np.diag(_rng.uniform(0.05, 0.3, ASSETS) ** 2)
USUAL = 0.04 + 0.5 * _exposure[:, 0] + 0.03 * _rng.normal(size=ASSETS)


def sample(key):
    """Returns as they are expected today."""
    return USUAL + 0.04 * jax.random.normal(key, (ASSETS,))


def loss(x, theta):
    """Risk less return."""
    return 0.5 * AVERSION * x @ COVARIANCE @ x - theta @ x


problem = ss.make_problem(
    loss,
    x0=np.full(ASSETS, 1 / ASSETS),
    sample=sample,
    penalty=ss.penalties.Simplex(),
    lower=None,
    name="portfolio",
)
