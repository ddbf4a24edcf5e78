"""A predictor of solutions from instances: a ridge regression, if cross-validation prefers it."""

import numpy as np
from jaxtyping import Float

MOST_WEIGHTS = 200_000
"""The largest number of weights of a predictor."""
_FOLDS = 5  # of the cross-validation that decides about the predictor
_RIDGES = 10.0 ** np.arange(-10, 1)
_WORTHWHILE = 0.7  # a predictor must leave at most this share of the squared distances


def fit_predictor(
    features: Float[np.ndarray, "instance feature"], moves: Float[np.ndarray, "instance n"]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Ridge regression of solutions on the instances' numbers, if that predicts unseen ones."""
    number, width = features.shape
    mean = moves.mean(axis=0)
    nothing = np.zeros((moves.shape[1], 0)), np.zeros(0, np.int32)
    if width == 0 or width * moves.shape[1] > MOST_WEIGHTS or number < 2 * _FOLDS:
        return mean, *nothing
    spread = np.max(np.abs(features), axis=0)
    exponents = np.ceil(np.log2(np.where(spread > 0, spread, 1.0))).astype(np.int32)
    scaled = np.ldexp(features, -exponents)
    errors = np.zeros(len(_RIDGES))
    for fold in range(_FOLDS):
        out = np.arange(number) % _FOLDS == fold
        for r, (bias, weights) in enumerate(_ridge(scaled[~out], moves[~out])):
            errors[r] += np.sum((moves[out] - bias - scaled[out] @ weights.T) ** 2)
    best = int(np.argmin(errors))
    if errors[best] > _WORTHWHILE * np.sum((moves - mean) ** 2):
        return mean, *nothing
    bias, weights = _ridge(scaled, moves)[best]
    return bias, weights, exponents


def _ridge(features: np.ndarray, moves: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    """Bias and weights for every strength of the ridge."""
    centre, mean = features.mean(axis=0), moves.mean(axis=0)
    left, sizes, right = np.linalg.svd(features - centre, full_matrices=False)
    projected = left.T @ (moves - mean)
    found = []
    for ridge in _RIDGES * (sizes[0] or 1.0) ** 2:
        weights = ((right.T * (sizes / (sizes**2 + ridge))) @ projected).T
        found.append((mean - weights @ centre, weights))
    return found
