"""The families, each with fresh instances and its opponents."""

import dataclasses
import importlib
from typing import Any

import jax
import numpy as np

from benchmarks.strangers.opponents import menus
from benchmarks.strangers.opponents.menus import Menu

FRESH, TUNING = 64, 30
"""Instances that are solved, and others that opponents are tuned on."""
FRESH_KEY, TUNING_KEY = 20_640, 20_300
"""A fit derives its keys from a seed and a name; none of them is one of these."""

CONTESTED = ("sparse120", "sparse250", "portfolio", "softmax650", "control", "phase", "gamma")
"""Families with opponents."""
OTHERS = ("robust", "deblurring", "softmax20000")
"""Families whose fits are only timed and interrupted."""
ALL = CONTESTED + OTHERS


@dataclasses.dataclass(frozen=True)
class Family:
    """A stranger's problem, fresh instances of it, and who else can solve them."""

    name: str
    problem: Any
    thetas: Any
    """Fresh instances, stacked, as NumPy arrays."""
    tuning: Any
    """Others, for tuning."""
    menu: Menu


def module(name: str) -> Any:
    """A stranger's file."""
    return importlib.import_module(f"benchmarks.strangers.problems.{name}")


def family(name: str, fresh: int = FRESH, tuning: int = TUNING) -> Family:
    """One of the contested families, by its name."""
    file = module(name)
    with jax.enable_x64(True):
        return Family(
            name,
            file.problem,
            drawn(file.sample, FRESH_KEY, fresh),
            drawn(file.sample, TUNING_KEY, tuning),
            MENUS[name](file),
        )


def drawn(sample: Any, seed: int, number: int) -> Any:
    """So many instances, stacked."""
    thetas = jax.jit(jax.vmap(sample))(jax.random.split(jax.random.key(seed), number))
    return jax.tree.map(np.array, thetas)


MENUS = {
    "sparse120": lambda file: menus.sparse(file.D, file.WEIGHT),
    "sparse250": lambda file: menus.sparse(file.D, file.WEIGHT),
    "portfolio": lambda file: menus.simplex(file.AVERSION * file.COVARIANCE),
    "softmax650": lambda file: menus.softmax(file.FEATURES, file.CLASSES, file.POINTS, file.RIDGE),
    "control": lambda file: menus.control(
        file.A, file.B, file.HORIZON, file.BOUND, file.HARDNESS, file.EFFORT
    ),
    "phase": lambda file: menus.phase(file.A, file.spectral),
    "gamma": lambda file: menus.gamma(file.FEATURES, file.POINTS, file.RIDGE),
}
"""The opponents of a family, from the numbers in its file."""
