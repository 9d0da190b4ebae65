"""The device that an engine runs on, and how much KV it holds."""

from __future__ import annotations

import torch

from engine.config import ConfigError, EngineConfig
from kernels.attention.interface import AttentionShape, kv_bytes_per_block


def resolve_device(config: EngineConfig) -> torch.device:
    """The device that `config` names or, for auto, a GPU if torch sees one. Raises `ConfigError`."""
    if config.device == "cpu" or (config.device == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise ConfigError("--device cuda: torch finds no CUDA device here")
    return torch.device("cuda", torch.cuda.current_device())


def cpu_pool_blocks(config: EngineConfig, shape: AttentionShape) -> int:
    """Blocks of the KV pool on a CPU."""
    num_blocks = config.kv_cache_bytes // kv_bytes_per_block(shape)
    if num_blocks < 1:
        raise ConfigError(f"--kv-cache-bytes of {config.kv_cache_bytes} holds not even one KV block")
    return num_blocks


def gpu_pool_blocks(config: EngineConfig, shape: AttentionShape, peak_bytes: int) -> int:
    """Blocks that fill --gpu-memory-utilization, beside `peak_bytes`: torch's peak in a worst-case step."""
    free, total = torch.cuda.mem_get_info(shape.device)
    used_by_others = total - free - torch.cuda.memory_reserved(shape.device)
    room = int(total * config.gpu_memory_utilization) - used_by_others - peak_bytes
    num_blocks = room // kv_bytes_per_block(shape)
    if num_blocks < 1:
        raise ConfigError(
            f"--gpu-memory-utilization of {config.gpu_memory_utilization} leaves no memory for KV blocks: "
            f"weights and one step take {peak_bytes / 2**30:.1f} GiB, others {used_by_others / 2**30:.1f} GiB"
        )
    return num_blocks
