"""What a step in flight needs for itself: memory for what goes to the device and for its tokens, and events.

They are used again by later steps: making them anew took longer than the rest of the launch of a decode step.
"""

from __future__ import annotations

import time

import numpy as np
import torch

from engine.runner.cuda_driver import cuda_driver

_UPLOAD_BYTES = 1 << 16
_ALIGNED = 16  # bytes


class StepBuffers:
    """Of one step at a time, from `begin` to `wait`. This is for a device that computes at once."""

    def __init__(self, max_tokens: int, *, pinned: bool = False) -> None:
        self._tokens = torch.empty(max_tokens, dtype=torch.int64, pin_memory=pinned)
        self._host_tokens = self._tokens.numpy()
        self._num_tokens = 0
        self._began_ns = self._ended_ns = 0

    def begin(self) -> None:
        """Of a step whose work is enqueued from here on."""
        self._num_tokens = 0
        self._began_ns = time.monotonic_ns()

    def receive(self, token_ids: torch.Tensor, num_tokens: int) -> None:
        """Send the first of these to the host, [R] int64 on the device, to stand behind those sent before."""
        begin, self._num_tokens = self._num_tokens, self._num_tokens + num_tokens
        self._copy(token_ids, begin, num_tokens)

    def upload(self, array: np.ndarray, target: torch.Tensor) -> None:
        """Overwrite `target`, which is of the array's shape and dtype; both are one piece of memory."""
        target.copy_(torch.from_numpy(array))

    def end(self) -> None:
        """Nothing more is enqueued."""
        self._ended_ns = time.monotonic_ns()

    @property
    def has_ended(self) -> bool:
        """Whether the device has come to the end."""
        return True

    def wait(self) -> tuple[np.ndarray, int]:
        """Until the device has come to the end: all tokens received [R] int64, and the step's nanoseconds."""
        device_ns = self._wait_for_end()
        return self._host_tokens[: self._num_tokens].copy(), device_ns

    def _copy(self, token_ids: torch.Tensor, begin: int, num_tokens: int) -> None:
        self._host_tokens[begin : begin + num_tokens] = token_ids.numpy()[:num_tokens]

    def _wait_for_end(self) -> int:
        """The step's nanoseconds."""
        return self._ended_ns - self._began_ns


class _PinnedBytes:
    def __init__(self, size: int) -> None:
        self._tensor = torch.empty(size, dtype=torch.uint8, pin_memory=True)
        self.array = self._tensor.numpy()
        self.address = self._tensor.data_ptr()


class CudaStepBuffers(StepBuffers):
    """Nothing but `wait` waits for the device: from pageable memory, CUDA waits for all that is enqueued."""

    def __init__(self, max_tokens: int, device: torch.device) -> None:
        super().__init__(max_tokens, pinned=True)
        self._began, self._ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        for event in (self._began, self._ended):
            event.record(torch.cuda.current_stream(device))  # or it does not exist yet
        self._driver = cuda_driver(device)
        self._uploads = [_PinnedBytes(_UPLOAD_BYTES)]  # the last one has room; the others are full
        self._num_uploaded = 0  # of its bytes

    def begin(self) -> None:
        super().begin()
        del self._uploads[:-1]
        self._num_uploaded = 0
        self._driver.enter()
        self._driver.record(self._began)

    def upload(self, array: np.ndarray, target: torch.Tensor) -> None:
        size = array.nbytes
        if self._num_uploaded + size > len(self._uploads[-1].array):
            self._uploads.append(_PinnedBytes(2 * (len(self._uploads[-1].array) + size)))
            self._num_uploaded = 0
        pinned, begin = self._uploads[-1], self._num_uploaded
        pinned.array[begin : begin + size] = array.view(np.uint8)
        self._driver.copy_to_device(target, pinned.address + begin, size)
        self._num_uploaded = -(-(begin + size) // _ALIGNED) * _ALIGNED

    def end(self) -> None:
        self._driver.record(self._ended)

    @property
    def has_ended(self) -> bool:
        return bool(self._ended.query())

    def _copy(self, token_ids: torch.Tensor, begin: int, num_tokens: int) -> None:
        size = token_ids.element_size()
        self._driver.copy_to_host(self._tokens.data_ptr() + begin * size, token_ids, num_tokens * size)

    def _wait_for_end(self) -> int:
        self._ended.synchronize()
        return int(self._began.elapsed_time(self._ended) * 1e6)


def step_buffers(device: torch.device, max_tokens: int) -> StepBuffers:
    """New ones for steps on that device that sample up to `max_tokens` tokens."""
    return CudaStepBuffers(max_tokens, device) if device.type == "cuda" else StepBuffers(max_tokens)
