"""Random arrivals at a rate that may change: a renewal process of rate 1, stretched by the wanted rate.

If points come at rate 1 on an axis of "expected arrivals so far", then mapping each through the inverse of
the cumulated rate gives points that come at that rate. For a Poisson process this is exactly the process with
intensity rate(t), the same that thinning gives (Devroye, Non-Uniform Random Variate Generation, VI.1.3); for
the others it keeps the shape of the gaps while the rate changes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import numpy as np

from loadgen.schedule.rates import RateProfile
from loadgen.schedule.request import NS_PER_S

Process = Literal["constant", "poisson", "gamma", "weibull"]
PROCESSES: tuple[Process, ...] = ("constant", "poisson", "gamma", "weibull")


def unit_gaps(process: Process, shape: float, count: int, rng: np.random.Generator) -> np.ndarray:
    """`count` float64 gaps of mean 1. `shape` is that of gamma and Weibull gaps: below 1 they come in bursts,
    and 1 is Poisson. Gamma gaps have the coefficient of variation 1 / sqrt(shape)."""
    draws: dict[Process, Callable[[], np.ndarray]] = {
        "constant": lambda: np.ones(count),
        "poisson": lambda: rng.exponential(size=count),
        "gamma": lambda: rng.gamma(shape, 1 / shape, size=count),
        "weibull": lambda: rng.weibull(shape, size=count) / math.gamma(1 + 1 / shape),
    }
    return draws[process]()


def arrivals_ns(
    process: Process,
    profile: RateProfile,
    rng: np.random.Generator,
    *,
    shape: float = 1.0,
    count: int | None = None,
    duration_s: float | None = None,
) -> np.ndarray:
    """int64 times from the start: `count` of them, or all within `duration_s`, or whichever ends first."""
    if count is None and duration_s is None:
        raise ValueError("arrivals need a number of requests or a duration")
    expected = math.inf if duration_s is None else profile.expected(duration_s)
    points = np.empty(0)
    while len(points) < (math.inf if count is None else count) and points[-1:].max(initial=0.0) < expected:
        more = unit_gaps(process, shape, count or int(expected * 1.1) + 100, rng)
        points = np.concatenate([points, points[-1:].max(initial=0.0) + more.cumsum()])
    points = points[:count]
    times_s = profile.when(points[points < expected])
    return np.round(times_s * NS_PER_S).astype(np.int64)
