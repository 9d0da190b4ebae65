"""Settles what the configuration leaves to the model and the machine. Needs no torch."""

from __future__ import annotations

from dataclasses import replace

from engine.config import ConfigError, EngineConfig, SchedulerConfig
from engine.device_defaults import DEVICE_DEFAULTS
from model.config import ModelConfig


def resolve_defaults(config: EngineConfig, device_type: str) -> EngineConfig:
    """`config` with every limit that depends on the device alone filled in."""
    defaults = DEVICE_DEFAULTS[device_type]
    budget = config.max_num_batched_tokens  # of which each sequence that decodes takes one
    max_num_seqs = config.max_num_seqs or min(defaults.max_num_seqs, budget or defaults.max_num_seqs)
    return replace(
        config,
        block_size=config.block_size or defaults.block_size,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=budget or max(defaults.max_num_batched_tokens, max_num_seqs),
        pipeline_depth=config.pipeline_depth or defaults.pipeline_depth,
        itl_target_ms=defaults.itl_target_ms if config.itl_target_ms is None else config.itl_target_ms,
    )


def context_limit(config: EngineConfig, model_config: ModelConfig) -> int:
    """The longest sequence that the model and the flag allow. Raises `ConfigError`."""
    limit = model_config.num_positions
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
