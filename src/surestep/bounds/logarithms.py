"""Sums of exponentials, safe from overflow."""

import numpy as np
from jaxtyping import Float


def log_sum_exp(terms: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."] | np.float64:
    """The logarithm of the sum of exponentials along the first axis.

    Infinite terms are allowed: minus infinity adds nothing, infinity is the sum.
    """
    terms = np.asarray(terms, np.float64)
    largest = np.max(terms, axis=0)
    shift = np.where(np.isfinite(largest), largest, 0.0)
    with np.errstate(divide="ignore", over="ignore"):
        return shift + np.log(np.sum(np.exp(terms - shift), axis=0))
