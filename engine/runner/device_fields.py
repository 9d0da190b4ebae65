"""Small tensors that stay on the device and of which the host changes some elements, by one upload a step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Protocol

import numpy as np
import torch

from engine.runner.capture import Capture

_ALIGNED = 4  # words: kernels like a tensor to begin at a multiple of 16 bytes
_AT_ONCE = 1024  # words that one upload changes


class Uploads(Protocol):
    def upload(self, array: np.ndarray, target: torch.Tensor) -> None:
        """Overwrite `target`, of the array's shape and dtype, without waiting for the device."""
        ...


class DeviceFields:
    """Tensors one behind the other in one piece of memory, which is changed in words of 32 bits.

    Changes are noted, and `send` makes all of them. The first word belongs to no tensor: whatever pads an
    upload is written there.
    """

    def __init__(
        self, fields: Mapping[str, tuple[tuple[int, ...], torch.dtype]], device: torch.device
    ) -> None:
        """`fields`: (shape, dtype) by name; all begin as zeros."""
        self._places_of: dict[str, tuple[int, int]] = {}  # (where a field begins, words of an element)
        end = _ALIGNED
        for name, (shape, dtype) in fields.items():
            num_words = dtype.itemsize // 4
            self._places_of[name] = (end, num_words)
            end += -(-prod(shape) * num_words // _ALIGNED) * _ALIGNED
        self._memory = torch.zeros(end, dtype=torch.int32, device=device)
        self._fields = fields
        self._places: list[np.ndarray] = []
        self._words: list[np.ndarray] = []
        # An upload: `_AT_ONCE` places, int64 as torch likes them, and as many words.
        self._packed = np.zeros(3 * _AT_ONCE, dtype=np.int32)
        self._packed_places = self._packed[: 2 * _AT_ONCE].view(np.int64)
        self._packed_words = self._packed[2 * _AT_ONCE :]
        self._sent = torch.zeros(3 * _AT_ONCE, dtype=torch.int32, device=device)
        self._sent_places = self._sent[: 2 * _AT_ONCE].view(torch.int64)
        self._sent_words = self._sent[2 * _AT_ONCE :]
        self._change: Callable[[], object] = self._scatter

    def __getitem__(self, name: str) -> torch.Tensor:
        """A field: a view of the memory."""
        (begin, num_words), (shape, dtype) = self._places_of[name], self._fields[name]
        return self._memory[begin : begin + prod(shape) * num_words].view(dtype).view(shape)

    def note(self, name: str, first: int, values: Sequence[int] | np.ndarray) -> None:
        """Change elements of a field from number `first` on, to integers from 0 to 2^31 - 1.

        Before they are sent, nothing is noted of these elements again.
        """
        begin, stride = self._places_of[name]
        begin += first * stride
        self._places.append(np.arange(begin, begin + len(values) * stride, stride))
        self._words.append(np.asarray(values, np.int32))  # of 64 bits the upper word is 0 and stays so

    def note_bits(self, name: str, index: int, value: np.generic) -> None:
        """Likewise one element, to a value of the field's own type."""
        begin, num_words = self._places_of[name]
        begin += index * num_words
        self._places.append(np.arange(begin, begin + num_words))
        self._words.append(np.frombuffer(value.tobytes(), np.int32))

    def capture(self, capture: Capture) -> None:
        """From now on make changes by a replay."""
        self._change, _ = capture(self._scatter)

    def send(self, uploads: Uploads) -> None:
        """Make the changes noted since the last call, behind what is enqueued already."""
        if not self._places:
            return
        places, words = np.concatenate(self._places), np.concatenate(self._words)
        self._places.clear()
        self._words.clear()
        for begin in range(0, len(places), _AT_ONCE):
            part = slice(begin, begin + _AT_ONCE)
            self._packed_places[:] = 0
            self._packed_places[: len(places[part])] = places[part]
            self._packed_words[: len(places[part])] = words[part]
            uploads.upload(self._packed, self._sent)
            self._change()

    def _scatter(self) -> torch.Tensor:
        self._memory.scatter_(0, self._sent_places, self._sent_words)
        return self._sent
