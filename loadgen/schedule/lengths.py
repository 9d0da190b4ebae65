"""Random lengths of prompts and outputs, in tokens."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

FORMS = "N (fixed), uniform:LOW:HIGH, normal:MEAN:DEVIATION, lognormal:MEAN:CV, exponential:MEAN"


def parse_lengths(text: str) -> Callable[[int, np.random.Generator], np.ndarray]:
    """Read a form of `FORMS`; the result draws so many int64 lengths of at least 1. Raises ValueError."""
    name, *cells = text.split(":")
    try:
        if not cells:
            name, cells = "fixed", [name]
        numbers = [float(cell) for cell in cells]
        if not all(0 < number < 1e7 for number in numbers):
            raise ValueError("every number must be above 0 and below ten million")
        draw = _DRAWS[name](*numbers)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"length {text!r}: {error}; expected {FORMS}") from None
    return lambda count, rng: np.maximum(1, np.round(draw(count, rng))).astype(np.int64)


Draw = Callable[[int, np.random.Generator], np.ndarray]


def _lognormal(mean: float, cv: float) -> Draw:
    """By mean and coefficient of variation, which a user knows, rather than by those of the logarithm."""
    variance = np.log1p(cv * cv)
    return lambda count, rng: rng.lognormal(np.log(mean) - variance / 2, np.sqrt(variance), count)


def _uniform(low: float, high: float) -> Draw:
    return lambda count, rng: rng.integers(int(low), int(high) + 1, count).astype(float)


_DRAWS: dict[str, Callable[..., Draw]] = {
    "fixed": lambda length: lambda count, rng: np.full(count, length),
    "uniform": _uniform,
    "normal": lambda mean, deviation: lambda count, rng: rng.normal(mean, deviation, count),
    "lognormal": _lognormal,
    "exponential": lambda mean: lambda count, rng: rng.exponential(mean, count),
}
