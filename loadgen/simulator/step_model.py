"""How long the device computes a step, from its shape and from what it did before.

Steps with and without prompt chunks are different machines (other kernels, other graphs), so each kind has a
cost of its own: a monotone curve over rows, which are padded as the server pads them, what the decodes'
attention takes, straight lines over the rest, and a slowdown where the device has just computed prompts. What
decodes cost beside chunks depends on the room that the graph of the step keeps for them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import asdict, dataclass, field
from typing import Any, TypeVar

import numpy as np

from loadgen.simulator.padding import Padding
from loadgen.simulator.step_shape import StepShape

_Seconds = TypeVar("_Seconds", float, np.ndarray)

_NOISE_PERIOD = 1 << 14  # draws before they repeat
LEAST_SPEED = 0.5  # of a device that has computed prompts for long

PADDED_ROWS = "padded_rows"
SLOPES = ("decode_context", "num_chunks", "chunk_work")
DECODE_CONTEXT, NUM_CHUNKS, CHUNK_WORK = SLOPES
LONGEST_CONTEXT = "longest_context"


def attention_s(all_s: _Seconds, longest_s: _Seconds) -> _Seconds:
    """How long decodes attend, if the memory brings all contexts in `all_s`, and one multiprocessor goes
    through its part of the longest one in `longest_s`: the longer of both, and more where they are alike.
    """
    seconds: _Seconds = (all_s * all_s * all_s + longest_s * longest_s * longest_s) ** (1 / 3)
    return seconds


@dataclass(frozen=True, slots=True)
class Curve:
    """Seconds over rows, linear between points. Beyond the last one the slope of the upper half goes on."""

    rows: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    def level_table(self, size: int) -> list[float]:
        """As `table`, but level outside of the points."""
        table: list[float] = [0.0] * (size + 1)
        if self.rows:
            table = np.interp(np.arange(size + 1), self.rows, self.seconds).tolist()
        return table

    def table(self, size: int) -> list[float]:
        """The seconds of 0, 1, ... size rows; nothing for none."""
        if not self.rows:
            return [0.0] * (size + 1)
        last = self.rows[-1]
        values = np.interp(np.arange(size + 1), self.rows, self.seconds)
        if size > last:
            half, end = np.interp([last / 2, last], self.rows, self.seconds)
            values[last + 1 :] += (end - half) / (last / 2) * np.arange(1, size - last + 1)
        values[0] = 0.0
        table: list[float] = values.tolist()
        return table


@dataclass(frozen=True, slots=True)
class RoomCost:
    """Seconds that decodes add to a step with chunks, beside what all contexts cost."""

    level: float = 0.0  # whatever their number
    longest_context: float = 0.0  # for each token of it, as in `StepCost`


@dataclass(frozen=True, slots=True)
class StepCost:
    """Seconds of one kind of step: a curve over padded rows, slopes by name (`SLOPES`), slowdown, noise.

    Those of `decode_context` and `longest_context` are the arguments of `attention_s`.
    """

    rows: Curve = field(default_factory=Curve)
    slopes: dict[str, float] = field(default_factory=dict)
    slowdown: float = 0.0  # share of its speed that the device loses at an `Exertion` of 1
    noise: list[float] = field(default_factory=list)  # measured over predicted, as equally likely factors
    longest_context: Curve = field(default_factory=Curve)  # for each token of it, over padded rows
    rooms: list[RoomCost] = field(default_factory=list)  # of `Padding.room_of`, but for no decodes

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> StepCost:
        return cls(
            Curve(**value["rows"]),
            value["slopes"],
            value["slowdown"],
            value["noise"],
            Curve(**value["longest_context"]),
            [RoomCost(**room) for room in value["rooms"]],
        )


@dataclass(frozen=True, slots=True)
class StepModel:
    """Both kinds of steps. `to_json` and `from_json` are each other's inverse."""

    decode_only: StepCost
    with_chunks: StepCost
    padding: Padding = field(default_factory=Padding)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> StepModel:
        return cls(
            StepCost.from_json(value["decode_only"]),
            StepCost.from_json(value["with_chunks"]),
            Padding.from_json(value["padding"]),
        )


class StepTimer:
    """A `StepModel` made into tables, so that a step is priced in about a microsecond."""

    def __init__(self, model: StepModel, *, max_rows: int, noise_seed: int | None = None) -> None:
        """Without a `noise_seed`, steps of one shape all take the same time."""
        self._model = model
        self._padding = model.padding
        self._decode = _Tables(model.decode_only, model.padding, max_rows)
        self._chunks = _Tables(model.with_chunks, model.padding, max_rows)
        self._draw_noise(noise_seed)

    def with_noise(self, noise_seed: int | None) -> StepTimer:
        """Of another device of the same kind: both share the tables."""
        timer = copy(self)
        timer._draw_noise(noise_seed)
        return timer

    def seconds(self, shape: StepShape, exertion: float = 0.0) -> float:
        """What the device takes for such a step."""
        if shape.num_chunks:
            tables, noise = self._chunks, self._chunk_noise
        else:
            tables, noise = self._decode, self._decode_noise
        seconds = tables.of_shape(shape, self._padding.rows_of(shape))
        if exertion:
            seconds /= max(1.0 - tables.slowdown * exertion, LEAST_SPEED)
        return seconds * next(noise)

    def decoding_on(self, shape: StepShape) -> Callable[[float], float]:
        """Prices a step that only decodes, given the exertion, and at each further call the step after it.

        Exactly what `seconds` says of each: the same sums in the same order.
        """
        tables, noise, padded_rows = self._decode, self._decode_noise, self._padding.rows_of(shape)
        num, context, *_, longest = shape
        level = tables.padded[padded_rows]
        of_context, of_longest, slowdown = tables.context, tables.longest[padded_rows], tables.slowdown

        def price(exertion: float) -> float:
            nonlocal context, longest
            all_s, longest_s = of_context * context, of_longest * longest
            seconds: float = (all_s * all_s * all_s + longest_s * longest_s * longest_s) ** (1 / 3)
            seconds += level
            context += num
            longest += 1
            if exertion:
                seconds /= max(1.0 - slowdown * exertion, LEAST_SPEED)
            return seconds * next(noise)

        return price

    def _draw_noise(self, seed: int | None) -> None:
        self._decode_noise = _factors(self._model.decode_only.noise, seed)
        self._chunk_noise = _factors(self._model.with_chunks.noise, seed)


def _factors(levels: list[float], seed: int | None) -> Iterator[float]:
    """An endless row of them, drawn with that seed; of ones without a seed."""
    if not levels or seed is None:
        return itertools.repeat(1.0)
    places = np.random.default_rng(seed).integers(0, len(levels), size=_NOISE_PERIOD)
    return itertools.cycle([levels[place] for place in places.tolist()])


class _Tables:
    def __init__(self, cost: StepCost, padding: Padding, max_rows: int) -> None:
        self.padded = cost.rows.table(max_rows)
        self.context, self.chunk, self.work = (cost.slopes.get(name, 0.0) for name in SLOPES)
        self.longest = cost.longest_context.level_table(max_rows)
        self.slowdown = cost.slowdown
        self._rooms = [RoomCost(), *cost.rooms]
        self._padding = padding

    def of_shape(self, shape: StepShape, padded_rows: int) -> float:
        decode_rows, decode_context, num_chunks, _, chunk_work, longest_context = shape
        room = self._rooms[min(self._padding.room_of(decode_rows), len(self._rooms) - 1)]
        of_longest = self.longest[padded_rows] + room.longest_context
        attention: float = attention_s(self.context * decode_context, of_longest * longest_context)
        return (
            self.padded[padded_rows]
            + room.level
            + attention
            + self.chunk * num_chunks
            + self.work * chunk_work
        )
