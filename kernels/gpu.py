"""What GPU a device is. Tensors on "meta" may stand for one that this process cannot see."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class Gpu:
    name: str
    major: int  # of the compute capability
    minor: int
    num_sms: int

    @property
    def architecture(self) -> str:
        return f"sm_{self.major}{self.minor}"


_stand_in: list[Gpu] = []


def let_meta_stand_for(gpu: Gpu) -> None:
    """From now on kernels called with tensors on "meta" choose what they would for this GPU."""
    _stand_in[:] = [gpu]
    gpu_of.cache_clear()


@lru_cache
def gpu_of(device: torch.device) -> Gpu | None:
    """The GPU that computes on this device; None for a CPU."""
    if device.type == "meta" and _stand_in:
        return _stand_in[0]
    if device.type != "cuda":
        return None
    import torch

    properties = torch.cuda.get_device_properties(device)
    return Gpu(properties.name, properties.major, properties.minor, properties.multi_processor_count)


def find_gpu() -> Gpu | None:
    """The first visible one, as the driver tells, without torch; None without a driver or a GPU."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    device, name = ctypes.c_int(), ctypes.create_string_buffer(256)
    if driver.cuInit(0) or driver.cuDeviceGet(ctypes.byref(device), 0):
        return None
    if driver.cuDeviceGetName(name, len(name), device):
        return None
    values = []
    # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, _MINOR and CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT
    for attribute in (75, 76, 16):
        value = ctypes.c_int()
        if driver.cuDeviceGetAttribute(ctypes.byref(value), attribute, device):
            return None
        values.append(value.value)
    return Gpu(name.value.decode(), *values)
