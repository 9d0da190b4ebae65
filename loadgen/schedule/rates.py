"""How the rate of arrivals changes over the run: constant, ramps, steps, waves, and random bursts."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

GRID_POINTS = 20_000
DEFAULT_SPAN_S = 60.0  # of a ramp in a run without a duration

FORMS = """R (constant), linear:FROM:TO, exponential:FROM:TO, step:R1,R2,..., sine:MEAN:AMPLITUDE:PERIOD_S,
burst:LOW:HIGH:LOW_S:HIGH_S (two states, each of random length with the given mean)"""


@dataclass(frozen=True, slots=True)
class RateProfile:
    """Expected arrivals up to each point of a grid in time; beyond the grid the last rate goes on."""

    times_s: np.ndarray  # float64, from 0, ascending
    cumulated: np.ndarray  # float64, likewise
    last_rate: float

    @classmethod
    def of_rates(cls, times_s: np.ndarray, rates: np.ndarray) -> RateProfile:
        """`rates` at the points of the grid, linear between them."""
        steps = np.diff(times_s) * (rates[:-1] + rates[1:]) / 2
        return cls(times_s, np.concatenate([[0.0], steps.cumsum()]), float(rates[-1]))

    def expected(self, at_s: float) -> float:
        """Expected arrivals within the first `at_s` seconds."""
        beyond = max(0.0, at_s - float(self.times_s[-1]))
        return float(np.interp(at_s, self.times_s, self.cumulated)) + beyond * self.last_rate

    def when(self, arrivals: np.ndarray) -> np.ndarray:
        """The inverse of `expected`, in seconds."""
        beyond = np.maximum(0.0, arrivals - self.cumulated[-1])
        within = np.interp(arrivals, self.cumulated, self.times_s)
        times_s: np.ndarray = within + beyond / self.last_rate
        return times_s


def parse_rate(
    text: str, duration_s: float | None, rng: np.random.Generator, *, count: int = 0
) -> RateProfile:
    """Read a form of `FORMS`. Ramps and steps fill the duration, or a minute; waves and bursts go on for that
    of `count` requests. Raises ValueError."""
    name, *cells = text.split(":")
    span_s = duration_s or DEFAULT_SPAN_S
    times_s = np.linspace(0.0, span_s, GRID_POINTS)
    try:
        if not cells:
            name, cells = "constant", [name]
        if name == "step":
            return _steps(_positive(cells[0].split(",")), span_s)
        numbers = _positive(cells)
        if name == "constant":
            (rate,) = numbers
            return RateProfile.of_rates(np.array([0.0, span_s]), np.array([rate, rate]))
        if name == "linear":
            first, last = numbers
            return RateProfile.of_rates(times_s, np.linspace(first, last, GRID_POINTS))
        if name == "exponential":
            first, last = numbers
            return RateProfile.of_rates(times_s, np.geomspace(first, last, GRID_POINTS))
        if name == "sine":
            mean, amplitude, period_s = numbers
            if amplitude >= mean:
                raise ValueError("the amplitude must be below the mean")
            times_s = np.linspace(0.0, duration_s or _long_enough_s(count, mean), GRID_POINTS)
            return RateProfile.of_rates(times_s, mean + amplitude * np.sin(2 * math.pi * times_s / period_s))
        if name == "burst":
            low, high, low_s, high_s = numbers
            mean = (low * low_s + high * high_s) / (low_s + high_s)
            return _bursts(numbers, duration_s or _long_enough_s(count, mean), rng)
    except ValueError as error:
        raise ValueError(f"rate {text!r}: {error}; expected {FORMS}") from None
    raise ValueError(f"rate {text!r}: expected {FORMS}")


def _long_enough_s(count: int, mean_rate: float) -> float:
    return max(DEFAULT_SPAN_S, 2 * count / mean_rate)


def _positive(cells: Sequence[str]) -> list[float]:
    numbers = [float(cell) for cell in cells]
    if not all(0 < number < math.inf for number in numbers):
        raise ValueError("every number must be above 0")
    return numbers


def _steps(rates: list[float], span_s: float) -> RateProfile:
    """Equally long stretches, one for each rate."""
    ends = np.linspace(0.0, span_s, len(rates) + 1)
    cumulated = np.concatenate([[0.0], (np.array(rates) * span_s / len(rates)).cumsum()])
    return RateProfile(ends, cumulated, rates[-1])


def _bursts(numbers: list[float], span_s: float, rng: np.random.Generator) -> RateProfile:
    """A two-state Markov-modulated rate: the stays in each state are exponential."""
    low, high, low_s, high_s = numbers
    ends, cumulated = [0.0], [0.0]
    states = itertools.cycle([(low, low_s), (high, high_s)])
    while ends[-1] < span_s:
        rate, mean_s = next(states)
        stay_s = float(rng.exponential(mean_s))
        ends.append(ends[-1] + stay_s)
        cumulated.append(cumulated[-1] + rate * stay_s)
    return RateProfile(np.array(ends), np.array(cumulated), low)
