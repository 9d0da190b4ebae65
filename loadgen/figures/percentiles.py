"""Percentiles, and how sure one can be of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

NS_PER_MS = 1_000_000
SHARES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
MIN_SAMPLES_FOR_P99 = 500
MAX_DRAWS = 4_000_000  # of a bootstrap, so that long runs cost seconds and not minutes
RESAMPLES = 400
CONFIDENCE = 0.95

Percentiles = dict[str, float | int | None]


def percentiles(values: Iterable[float | None], scale: float = NS_PER_MS) -> Percentiles:
    """n, mean, p50, p90, p99 and max of the values that are there, divided by `scale`."""
    data = np.array([value for value in values if value is not None], dtype=float) / scale
    if not len(data):
        return {"n": 0, "mean": None, "p50": None, "p90": None, "p99": None, "max": None}
    found = np.percentile(data, [100 * share for share in SHARES.values()]).tolist()
    return {
        "n": len(data),
        "mean": float(data.mean()),
        **dict(zip(SHARES, found, strict=True)),
        "max": data.max().item(),
    }


def percentiles_with_failures(values: Iterable[float | None], scale: float = NS_PER_MS) -> Percentiles:
    """The same with None as endless: None in the result means that so many failed that it is endless."""
    data = np.array([np.inf if value is None else value for value in values], dtype=float) / scale
    if not len(data):
        return {"n": 0, **dict.fromkeys(SHARES)}
    found = np.quantile(data, list(SHARES.values()), method="higher").tolist()
    finite = [value if np.isfinite(value) else None for value in found]
    return {"n": len(data), **dict(zip(SHARES, finite, strict=True))}


def resample(count: int, rng: np.random.Generator) -> np.ndarray:
    """Places [resamples, count] of a moving-block bootstrap (Kuensch, Annals of Statistics 17, 1989).

    Neighbouring requests share a queue, so their latencies are alike; drawing blocks of about n^(1/3) keeps
    that, where drawing single ones would make every interval too narrow.
    """
    block = max(1, round(count ** (1 / 3)))
    blocks = -(-count // block)
    resamples = max(40, min(RESAMPLES, MAX_DRAWS // max(count, 1)))
    starts = rng.integers(max(1, count - block + 1), size=(resamples, blocks))
    places = starts[:, :, None] + np.arange(block)
    return places.reshape(resamples, -1)[:, :count]


def confidence_intervals(values: Iterable[float | None], scale: float = NS_PER_MS) -> dict[str, Any]:
    """{"p50": [low, high], ...}: 95 % intervals of the percentiles; the values in order of time."""
    data = np.array([value for value in values if value is not None], dtype=float) / scale
    if len(data) < 2:
        return dict.fromkeys(SHARES)
    drawn = data[resample(len(data), np.random.default_rng(0))]
    return {name: interval(np.quantile(drawn, share, axis=1)) for name, share in SHARES.items()}


def interval(estimates: np.ndarray) -> list[float]:
    """The middle 95 % of bootstrap estimates."""
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(estimates, [tail, 1 - tail]).tolist()
    return [low, high]
