"""What a step sends and replays by the driver alone, from a thread that has not used the device before."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch

from engine.runner.capture import CudaGraphCapture
from engine.runner.step_buffers import step_buffers

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]


def test_a_step_uploads_replays_and_receives() -> None:
    device = torch.device("cuda")
    given = torch.zeros(4096, dtype=torch.int64, device=device)
    replay, doubled = CudaGraphCapture(device)(lambda: given * 2)
    buffers = step_buffers(device, max_tokens=8192)
    received = []

    def run_steps() -> None:
        for step in range(50):
            buffers.begin()
            for part in range(4):  # together more than the buffers have room for at first
                array = np.arange(part, part + 4096, dtype=np.int64) * (step + 1)
                buffers.upload(array, given)
                replay()
                buffers.receive(doubled, 1000 + part)
            buffers.end()
            received.append(buffers.wait())

    thread = threading.Thread(target=run_steps)
    thread.start()
    thread.join()
    assert len(received) == 50
    for step, (tokens, device_ns) in enumerate(received):
        parts = [np.arange(part, part + 1000 + part) * 2 * (step + 1) for part in range(4)]
        np.testing.assert_array_equal(tokens, np.concatenate(parts))
        assert device_ns > 0
