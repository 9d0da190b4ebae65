"""How long a step takes, from its shape: monotone curves over its rows and straight lines over the rest.

Steps with and without prompt chunks are different machines (other kernels, other graphs), so each kind has a
cost of its own. A curve can hold the stairs that padded graph sizes make, since its points lie where data is.
"""

from __future__ import annotations

import itertools
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from loadgen.simulator.step_shape import StepShape

_NOISE_PERIOD = 1 << 14  # draws before they repeat

CURVES = ("decode_rows", "prompt_rows", "total_rows")
SLOPES = ("decode_context", "num_chunks", "chunk_work")


@dataclass(frozen=True, slots=True)
class Curve:
    """Seconds over rows, linear between points. Beyond the last one its mean slope goes on."""

    rows: list[int]
    seconds: list[float]

    def table(self, size: int) -> list[float]:
        """The seconds of 0, 1, ... size rows; nothing for none."""
        if not self.rows:
            return [0.0] * (size + 1)
        values = np.interp(np.arange(size + 1), self.rows, self.seconds)
        last = self.rows[-1]
        if size > last:
            slope = self.seconds[-1] / max(last, 1)
            values[last + 1 :] += slope * np.arange(1, size - last + 1)
        values[0] = 0.0
        table: list[float] = values.tolist()
        return table


@dataclass(frozen=True, slots=True)
class StepCost:
    """Seconds of one kind of step: constants, curves by name (`CURVES`), slopes by name (`SLOPES`), noise."""

    constant: float = 0.0
    after_idle: float = 0.0  # more, where the device was idle and the launch is not hidden
    curves: dict[str, Curve] = field(default_factory=dict)
    slopes: dict[str, float] = field(default_factory=dict)
    noise: list[float] = field(default_factory=list)  # measured over predicted, as equally likely factors

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> StepCost:
        curves = {name: Curve(**curve) for name, curve in value["curves"].items()}
        return cls(value["constant"], value["after_idle"], curves, value["slopes"], value["noise"])


@dataclass(frozen=True, slots=True)
class StepModel:
    """Both kinds of steps. `to_json` and `from_json` are each other's inverse."""

    decode_only: StepCost
    with_chunks: StepCost

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> StepModel:
        return cls(StepCost.from_json(value["decode_only"]), StepCost.from_json(value["with_chunks"]))


class StepTimer:
    """A `StepModel` made into tables, so that a step is priced in about a microsecond."""

    def __init__(self, model: StepModel, *, max_rows: int, noise_seed: int | None = None) -> None:
        """Without a `noise_seed`, steps of one shape all take the same time."""
        self._decode = _Tables(model.decode_only, max_rows, noise_seed)
        self._chunks = _Tables(model.with_chunks, max_rows, noise_seed)

    def seconds(self, shape: StepShape, after_idle: bool = False) -> float:
        """What the device takes for such a step."""
        tables = self._chunks if shape.num_chunks else self._decode
        seconds = tables.of_shape(shape)
        if after_idle:
            seconds += tables.after_idle
        return seconds * next(tables.noise)


class _Tables:
    def __init__(self, cost: StepCost, max_rows: int, noise_seed: int | None) -> None:
        self.constant, self.after_idle = cost.constant, cost.after_idle
        empty = Curve([], [])
        self.decode, self.prompt, self.total = (
            cost.curves.get(name, empty).table(max_rows) for name in CURVES
        )
        self.context, self.chunk, self.work = (cost.slopes.get(name, 0.0) for name in SLOPES)
        factors = np.ones(1)
        if cost.noise and noise_seed is not None:
            factors = np.random.default_rng(noise_seed).choice(cost.noise, size=_NOISE_PERIOD)
        self.noise = itertools.cycle(factors.tolist())

    def of_shape(self, shape: StepShape) -> float:
        decode_rows, decode_context, num_chunks, prompt_rows, chunk_work = shape
        return (
            self.constant
            + self.decode[decode_rows]
            + self.prompt[prompt_rows]
            + self.total[decode_rows + prompt_rows]
            + self.context * decode_context
            + self.chunk * num_chunks
            + self.work * chunk_work
        )
