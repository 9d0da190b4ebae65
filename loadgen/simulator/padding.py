"""What the rows of a step are rounded up to: a step costs what its CUDA graph was captured for."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from typing import Any

from loadgen.simulator.step_shape import StepShape


@dataclass(frozen=True, slots=True)
class Padding:
    """As the step log's header tells it (`Runner.padding`). Sizes ascend; without any, nothing is rounded."""

    decode_sizes: list[int] = field(default_factory=list)  # rows of steps that only decode
    sizes: list[int] = field(default_factory=list)  # rows of steps with chunks; larger ones are not padded
    decode_rooms: list[int] = field(default_factory=list)  # rows that such a step keeps for its decodes
    rows_per_chunk: int = 0  # at least, in such a step

    @classmethod
    def from_json(cls, value: dict[str, Any] | None) -> Padding:
        return cls(**(value or {}))

    def rows_of(self, shape: StepShape) -> int:
        """The token rows that the device computes."""
        if not shape.num_chunks:
            return _size(self.decode_sizes, shape.decode_rows) or shape.decode_rows
        return _size(self.sizes, self._needed(shape)) or shape.total_rows

    def is_eager(self, shape: StepShape) -> bool:
        """Whether a step with chunks is too large for every graph, and launched kernel by kernel."""
        return bool(self.sizes and shape.num_chunks) and self._needed(shape) > self.sizes[-1]

    def room_of(self, decode_rows: int) -> int:
        """Which room decodes beside chunks take, from 1 on; 0 for none. Without rooms all take the first."""
        return bisect_left(self.decode_rooms, decode_rows) + 1 if decode_rows else 0

    def _needed(self, shape: StepShape) -> int:
        """For a step with chunks."""
        room = _size(self.decode_rooms, shape.decode_rows) if shape.decode_rows else 0
        return max(shape.total_rows, room, shape.num_chunks * self.rows_per_chunk)


def _size(sizes: list[int], rows: int) -> int:
    """The first that holds so many rows; 0 if none does."""
    place = bisect_left(sizes, rows)
    return sizes[place] if place < len(sizes) else 0
