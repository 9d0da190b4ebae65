"""Non-negative least squares, robust against steps that something else on the machine held up."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

_HUBER = 1.5  # residuals beyond so many typical ones count linearly
_ROUNDS = 4


def nonnegative(design: np.ndarray, target: np.ndarray) -> np.ndarray:
    """The x >= 0 [N] that minimises |design [M, N] x - target [M]|.

    The active-set method of Lawson and Hanson ("Solving Least Squares Problems", 1974, chapter 23), on the
    normal equations.
    """
    scale = np.linalg.norm(design, axis=0)
    scale[scale == 0] = 1.0
    design = design / scale
    gram, projected = design.T @ design, design.T @ target
    count = len(projected)
    x, free = np.zeros(count), np.zeros(count, dtype=bool)
    tolerance = 1e-10 * max(float(np.abs(projected).max(initial=0.0)), 1e-300)
    for _ in range(3 * count):
        gradient = np.where(free, -np.inf, projected - gram @ x)
        best = int(gradient.argmax())
        if gradient[best] <= tolerance:
            break
        free[best] = True
        x = _solve_free(gram, projected, x, free)
    result: np.ndarray = x / scale
    return result


def _solve_free(gram: np.ndarray, projected: np.ndarray, x: np.ndarray, free: np.ndarray) -> np.ndarray:
    """Move `x` towards the optimum of its free variables; those that would turn negative are held at 0."""
    while free.any():
        optimum = np.zeros_like(x)
        optimum[free] = np.linalg.lstsq(gram[np.ix_(free, free)], projected[free], rcond=1e-12)[0]
        if (optimum[free] > 0).all():
            return optimum
        falling = free & (optimum <= 0)
        distance = x[falling] / np.maximum(x[falling] - optimum[falling], 1e-300)
        x = x + distance.min() * (optimum - x)
        free &= x > 1e-15
        x = np.where(free, x, 0.0)
    return x


def robust_nonnegative(design: np.ndarray, seconds: np.ndarray) -> np.ndarray:
    """As `nonnegative`, of relative errors, with outliers weighed down by Huber's rule, reweighted.

    Errors are relative to the prediction of the round before: relative to the measurement, too low a curve
    would fit best.
    """
    weights = np.ones(len(seconds))
    floor = max(float(np.median(seconds)) / 100, 1e-9)
    expected = np.maximum(seconds, floor)
    x = np.zeros(design.shape[1])
    for _ in range(_ROUNDS):
        row_scale = np.sqrt(weights) / expected
        x = nonnegative(design * row_scale[:, None], seconds * row_scale)
        expected = np.maximum(design @ x, floor)
        residuals = np.abs(expected - seconds) / expected
        typical = max(float(np.median(residuals)) / 0.6745, 1e-6)
        weights = np.minimum(1.0, _HUBER * typical / np.maximum(residuals, 1e-12))
    return x


def robust_line(counts: Sequence[float], seconds: Sequence[float]) -> tuple[float, float]:
    """Constant and slope of seconds over counts, neither negative."""
    design = np.stack([np.ones(len(counts)), np.asarray(counts, dtype=np.float64)], axis=1)
    constant, slope = robust_nonnegative(design, np.asarray(seconds, dtype=np.float64)).tolist()
    return constant, slope
