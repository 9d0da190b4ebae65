"""Fields of one memory, changed by one upload, hold what a host's copy of each of them does."""

from __future__ import annotations

import numpy as np
import torch

from engine.runner.capture import EagerCapture
from engine.runner.device_fields import DeviceFields
from engine.runner.step_buffers import StepBuffers

FIELDS: dict[str, tuple[tuple[int, ...], torch.dtype]] = {
    "table": ((7, 300), torch.int32),
    "length": ((7,), torch.int64),
    "seed": ((7,), torch.int64),
    "temperature": ((7,), torch.float32),
}


def test_what_is_noted_is_there_once_it_is_sent() -> None:
    rng = np.random.default_rng(0)
    device = torch.device("cpu")
    fields, buffers = DeviceFields(FIELDS, device), StepBuffers(1)
    fields.capture(EagerCapture())
    copies = {name: fields[name].numpy().copy() for name in FIELDS}
    assert not any(copy.any() for copy in copies.values())
    for _ in range(40):
        for row in rng.permutation(7)[: rng.integers(7)].tolist():
            begin, end = sorted(rng.integers(0, 301, 2).tolist())  # of all rows together more than one upload
            blocks = rng.integers(0, 1 << 31, end - begin)
            fields.note("table", row * 300 + begin, blocks.tolist())
            copies["table"][row, begin:end] = blocks
            copies["length"][row] = rng.integers(1 << 31)
            fields.note("length", row, [int(copies["length"][row])])
            copies["seed"][row] = rng.integers(-(1 << 63), (1 << 63) - 1)
            fields.note_bits("seed", row, np.int64(copies["seed"][row]))
            copies["temperature"][row] = rng.random()
            fields.note_bits("temperature", row, np.float32(copies["temperature"][row]))
        fields.send(buffers)
        for name, copy in copies.items():
            np.testing.assert_array_equal(fields[name].numpy(), copy)
