"""Functions over fixed device tensors, recorded once and replayed."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

import torch

from engine.runner.cuda_driver import cuda_driver


class Capture(Protocol):
    def __call__(self, function: Callable[[], torch.Tensor]) -> tuple[Callable[[], None], torch.Tensor]:
        """(replay, the tensor that holds the function's result after each replay)."""
        ...


class CudaGraphCapture:
    """Records CUDA graphs that share one memory pool: they run one after another, never side by side.

    So a graph's result is there only until the next replay of any of them.
    """

    def __init__(
        self, device: torch.device, shortened: Callable[[], AbstractContextManager[None]] = nullcontext
    ) -> None:
        """In `shortened()`, functions leave out what they do again and again."""
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream(device)
        self._shortened = shortened

    def __call__(self, function: Callable[[], torch.Tensor]) -> tuple[Callable[[], None], torch.Tensor]:
        """Runs the function once beforehand: kernels load and libraries set themselves up outside."""
        self._stream.wait_stream(torch.cuda.current_stream())
        with self._shortened(), torch.cuda.stream(self._stream):
            function()
        torch.cuda.current_stream().wait_stream(self._stream)
        graph = torch.cuda.CUDAGraph()
        # Other threads may go on using the device, as NCCL's own does, which watches collectives.
        mode = "thread_local"
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode=mode):
            result = function()
        return cuda_driver(self._device).replay_of(graph), result


class EagerCapture:
    """Runs the function at every replay: for devices without graphs, and to debug what a graph holds."""

    def __call__(self, function: Callable[[], torch.Tensor]) -> tuple[Callable[[], None], torch.Tensor]:
        result = function()

        @torch.inference_mode()
        def replay() -> None:
            result.copy_(function())

        return replay, result
