"""The calls of the CUDA driver that make up a decode step, made without giving up the interpreter's lock.

torch has the same calls and gives the lock up in each. While the event loop is in Python, every time it takes
up to the switch interval to get it back, longer than the call itself. None of these waits for the device, but
if its queue is full.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import torch


def _check(code: int) -> None:
    if code:
        raise RuntimeError(f"the CUDA driver reports error {code}")


class CudaDriver:
    """Calls on the stream that is torch's current one when this is made."""

    def __init__(self, device: torch.device) -> None:
        """Made by a thread that has used the device by torch."""
        library = ctypes.PyDLL("libcuda.so.1")  # which keeps the lock, unlike ctypes.CDLL
        pointer, size = ctypes.c_void_p, ctypes.c_size_t

        def function(name: str, *types: Any) -> Callable[..., None]:
            found = getattr(library, name)
            found.argtypes, found.restype = types, _check
            return found  # type: ignore[no-any-return]

        self._set_context = function("cuCtxSetCurrent", pointer)
        self._launch_graph = function("cuGraphLaunch", pointer, pointer)
        self._record_event = function("cuEventRecord", pointer, pointer)
        self._copy_to_device = function("cuMemcpyHtoDAsync_v2", pointer, pointer, size, pointer)
        self._copy_to_host = function("cuMemcpyDtoHAsync_v2", pointer, pointer, size, pointer)
        self._stream = torch.cuda.current_stream(device).cuda_stream
        self._context = ctypes.c_void_p()
        function("cuCtxGetCurrent", ctypes.POINTER(pointer))(self._context)

    def enter(self) -> None:
        """To be called before the others by a thread that may not have used the device."""
        self._set_context(self._context)

    def replay_of(self, graph: torch.cuda.CUDAGraph) -> Callable[[], None]:
        """What replays a graph that draws nothing by torch's generators."""
        return partial(self._replay, graph, graph.raw_cuda_graph_exec())

    def _replay(self, graph: torch.cuda.CUDAGraph, executable: int) -> None:
        self._launch_graph(executable, self._stream)  # which is there as long as `graph`

    def record(self, event: torch.cuda.Event) -> None:
        """Record an event that torch has recorded before."""
        self._record_event(event.cuda_event, self._stream)

    def copy_to_device(self, target: torch.Tensor, pinned: int, num_bytes: int) -> None:
        """From that address of pinned memory, which has to stay as it is until the copy has been made."""
        self._copy_to_device(target.data_ptr(), pinned, num_bytes, self._stream)

    def copy_to_host(self, pinned: int, source: torch.Tensor, num_bytes: int) -> None:
        """To that address of pinned memory."""
        self._copy_to_host(pinned, source.data_ptr(), num_bytes, self._stream)


@lru_cache
def cuda_driver(device: torch.device) -> CudaDriver:
    """The one of a device, in this process."""
    return CudaDriver(device)
