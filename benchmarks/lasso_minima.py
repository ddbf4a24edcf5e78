"""How close the lasso's minima are: the largest duality gap on the test sets of many seeds.

`python -m benchmarks.lasso_minima 500` takes about a quarter of an hour on one core.
"""

import sys
import time

import numpy as np

from surestep.paper import lasso
from surestep.paper.coordinate_descent import RELATIVE_GAP, CoordinateDescent
from surestep.problem import TestSet


def gaps_of(seed: int, outside: CoordinateDescent, family: lasso.Lasso) -> np.ndarray:
    """The gaps on a seed's test set, divided by the losses."""
    thetas = TestSet.draw(family, lasso.BEST.sizes.test, seed).thetas
    pairs = zip(np.asarray(thetas.target, np.float64), np.asarray(thetas.weight), strict=True)
    found = np.array([outside.bracketed(target, float(weight)) for target, weight in pairs])
    return (found[:, 0] - found[:, 1]) / found[:, 0]


def main(seeds: int) -> None:
    """Print the largest gap, and how many are larger than is wanted."""
    family = lasso.family(lasso.BEST)
    outside = CoordinateDescent.of(family.matrix)
    largest, above, number, began = 0.0, 0, 0, time.perf_counter()
    for seed in range(seeds):
        gaps = gaps_of(seed, outside, family)
        largest, above = max(largest, float(gaps.max())), above + int(np.sum(gaps > RELATIVE_GAP))
        number += len(gaps)
        took = time.perf_counter() - began
        print(
            f"{seed + 1} seeds, {number} instances: largest relative gap {largest:.2g}, {above} "
            f"above {RELATIVE_GAP:g}, {1e3 * took / number:.2g} ms an instance",
            flush=True,
        )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 500)
