"""Settles what the configuration leaves to the model and the machine."""

from __future__ import annotations

from dataclasses import replace

import torch

from engine.config import ConfigError, EngineConfig, SchedulerConfig
from engine.device_defaults import DEVICE_DEFAULTS
from kernels.attention.interface import AttentionShape, kv_bytes_per_block
from model.config import ModelConfig
from model.rotary import num_positions


def resolve_device(config: EngineConfig) -> torch.device:
    """The device that `config` names or, for auto, a GPU if torch sees one. Raises `ConfigError`."""
    if config.device == "cpu" or (config.device == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise ConfigError("--device cuda: torch finds no CUDA device here")
    return torch.device("cuda", torch.cuda.current_device())


def resolve_defaults(config: EngineConfig, device: torch.device) -> EngineConfig:
    """`config` with every limit that depends on the device alone filled in."""
    defaults = DEVICE_DEFAULTS[device.type]
    max_num_seqs = config.max_num_seqs or defaults.max_num_seqs
    return replace(
        config,
        block_size=config.block_size or defaults.block_size,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens
        or max(defaults.max_num_batched_tokens, max_num_seqs),
        pipeline_depth=config.pipeline_depth or defaults.pipeline_depth,
        itl_target_ms=defaults.itl_target_ms if config.itl_target_ms is None else config.itl_target_ms,
    )


def context_limit(config: EngineConfig, model_config: ModelConfig) -> int:
    """The longest sequence that the model and the flag allow."""
    limit = num_positions(model_config)
    if config.max_model_len is None:
        return limit
    if config.max_model_len > limit:
        raise ConfigError(
            f"--max-model-len of {config.max_model_len} is more than the model's {limit} positions"
        )
    return config.max_model_len


def scheduler_config(config: EngineConfig, model_config: ModelConfig, num_blocks: int) -> SchedulerConfig:
    """`config` has its defaults resolved. Without --max-model-len the pool may shorten the context."""
    assert config.block_size and config.max_num_seqs and config.max_num_batched_tokens
    max_model_len = context_limit(config, model_config)
    pool_tokens = num_blocks * config.block_size
    if config.max_model_len is None:
        max_model_len = min(max_model_len, pool_tokens)
    elif max_model_len > pool_tokens:
        raise ConfigError(
            f"--max-model-len of {max_model_len} tokens does not fit the KV pool of {pool_tokens}; "
            "lower it, or enlarge the pool (--num-kv-blocks, --kv-cache-bytes, --gpu-memory-utilization)"
        )
    return SchedulerConfig(
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        max_model_len=max_model_len,
        block_size=config.block_size,
        num_blocks=num_blocks,
        policy=config.scheduling_policy,
        itl_target_s=(config.itl_target_ms or 0.0) / 1000,
        enable_prefix_caching=config.enable_prefix_caching,
    )


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
