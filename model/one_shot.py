"""All-reduce of small tensors between GPUs of one host: each reads the others' memory, in one kernel.

NCCL's fixed time is most of what a few rows take. This is torch's kernel over symmetric memory; it can be
captured in CUDA graphs.
"""

from __future__ import annotations

import torch
import torch.distributed as dist

_ALIGNMENT = 16  # bytes
_DTYPES = (torch.bfloat16, torch.float32)  # what torch's kernel adds

ONE_SHOT_BYTES = 256 * 1024
"""Larger tensors go through the library, which moves fewer bytes over each link."""


class OneShotAllReduce:
    """Calls go one after the other on one stream: they share a buffer for each type."""

    def __init__(
        self, group: dist.ProcessGroup, device: torch.device, max_bytes: int = ONE_SHOT_BYTES
    ) -> None:
        """All ranks call this alike. Raises RuntimeError where the GPUs cannot read each other's memory."""
        import torch.distributed._symmetric_memory as symmetric_memory

        self._group = group
        self._device = device
        self._max_bytes = max_bytes
        self._buffers: dict[torch.dtype, torch.Tensor] = {}
        for dtype in _DTYPES:
            buffer = symmetric_memory.empty(max_bytes // dtype.itemsize, dtype=dtype, device=device)
            symmetric_memory.rendezvous(buffer, group)
            self._buffers[dtype] = buffer

    def shared_int32(self, *shape: int, fill: int) -> tuple[torch.Tensor, torch.Tensor]:
        """A tensor that the other GPUs can write to, and the addresses of all ranks' [ranks] int64.

        All ranks call this alike, and meet before the first of them writes.
        """
        import torch.distributed._symmetric_memory as symmetric_memory

        own = symmetric_memory.empty(*shape, dtype=torch.int32, device=self._device)
        handle = symmetric_memory.rendezvous(own, self._group)
        own.fill_(fill)
        torch.cuda.synchronize(self._device)
        ranks = range(handle.world_size)
        addresses = [handle.get_buffer(rank, shape, torch.int32).data_ptr() for rank in ranks]
        return own, torch.tensor(addresses, device=self._device)

    def takes(self, x: torch.Tensor) -> bool:
        return x.dtype in self._buffers and x.nbytes <= self._max_bytes and x.nbytes % _ALIGNMENT == 0

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """The sum of every rank's `x`, a new tensor of its shape."""
        buffer = self._buffers[x.dtype][: x.numel()]
        total: torch.Tensor = torch.ops.symm_mem.one_shot_all_reduce_copy(
            buffer, x.reshape(-1), "sum", self._group.group_name
        )
        return total.view(x.shape)
