"""From the host to the device without waiting for it."""

from __future__ import annotations

import numpy as np
import torch


def upload(array: np.ndarray, device: torch.device) -> torch.Tensor:
    """A copy of `array` on the device, on its way when this returns; on a CPU the array itself.

    Copies go through pinned memory: from pageable memory, CUDA first waits for all work enqueued before.
    """
    tensor = torch.from_numpy(np.ascontiguousarray(array))
    if device.type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)
