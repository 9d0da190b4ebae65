"""Puts an engine together from its configuration: model, KV pool, scheduler, runner, record."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict
from typing import Any

import torch

from engine.config import ConfigError, EngineConfig, SchedulerConfig
from engine.engine import Engine
from engine.limits import (
    cpu_pool_blocks,
    gpu_pool_blocks,
    resolve_defaults,
    resolve_device,
    scheduler_config,
)
from engine.record import EngineCounters, EventLog, RecentRequests, StepLog
from engine.recorder import Recorder
from engine.runner.captured import CudaGraphCapture
from engine.runner.graph_runner import GraphModelRunner
from engine.runner.model_runner import ModelRunner
from engine.scheduler import Scheduler
from engine.warm_up import warm_up
from kernels.attention.interface import GraphAttentionBackend, kv_bytes_per_block
from kernels.attention.registry import attention_backend
from model.config import ModelConfig
from model.config_reader import read_model_config
from model.decoder import Decoder, attention_shape
from model.loading import load_model, resolve_dtype
from model.source import ModelSource, resolve_model

Progress = Callable[[str, int, int], None]
"""(phase, done, total); total 0 where there is nothing to count."""


def build_engine(
    config: EngineConfig,
    progress: Progress | None = None,
    source: ModelSource | None = None,
    eos_token_ids: Iterable[int] = (),
) -> Engine:
    """Load the model and size everything; the engine is not started yet.

    `source` spares resolving `config.model` a second time. `eos_token_ids` are the tokenizer's; those of the
    model's configuration end a sequence too. Raises `ConfigError` or `ModelError` with one line
    to show, before anything is served.
    """
    tell = progress or (lambda phase, done, total: None)
    device = resolve_device(config)
    config = resolve_defaults(config, device)
    if source is None:
        tell("finding the model", 0, 0)
        source = resolve_model(config.model, config.revision, with_weights=config.load_format != "dummy")
    model_config = read_model_config(source)
    dtype = resolve_dtype(config.dtype, model_config, device)
    assert config.block_size is not None
    shape = attention_shape(model_config, block_size=config.block_size, dtype=dtype, device=device)
    try:
        attention = attention_backend(config.attention_backend, shape)
    except ValueError as error:
        raise ConfigError(f"--attention-backend: {error}") from None
    decoder = load_model(
        source,
        model_config,
        dtype=dtype,
        device=device,
        load_format=config.load_format,
        seed=config.seed,
        attention=attention,
        progress=progress,
    )
    # A tokenizer may know tokens that its model has no logit for.
    all_eos = frozenset(
        token_id
        for token_id in (*model_config.eos_token_ids, *eos_token_ids)
        if token_id < model_config.vocab_size
    )
    return _assemble(config, model_config, decoder, all_eos, tell)


def _assemble(
    config: EngineConfig,
    model_config: ModelConfig,
    decoder: Decoder,
    eos_token_ids: frozenset[int],
    tell: Progress,
) -> Engine:
    tell("sizing the KV pool", 0, 0)
    limits = scheduler_config(config, model_config, _pool_blocks(config, model_config, decoder))
    decoder.attention.allocate(limits.num_blocks)
    runner = _runner(config, limits, decoder, eos_token_ids, tell)
    tell("warming up", 0, 0)
    warm_up(runner, limits, num_seqs=1, num_tokens=min(32, limits.max_model_len - 2))
    return Engine(config, model_config, Scheduler(limits, eos_token_ids), runner, _recorder(config))


def _runner(
    config: EngineConfig,
    limits: SchedulerConfig,
    decoder: Decoder,
    eos_token_ids: frozenset[int],
    tell: Progress,
) -> ModelRunner:
    """Decodes are captured in CUDA graphs where the device and the attention backend have them."""
    attention = decoder.attention
    device = attention.shape.device
    captures = device.type == "cuda" and isinstance(attention, GraphAttentionBackend)
    if config.enforce_eager or not captures:
        return ModelRunner(decoder, attention, limits, eos_token_ids, config.seed)
    runner = GraphModelRunner(
        decoder, attention, limits, eos_token_ids, config.seed, CudaGraphCapture(device)
    )
    runner.capture_all(lambda done, total: tell("capturing CUDA graphs", done, total))
    return runner


def _pool_blocks(config: EngineConfig, model_config: ModelConfig, decoder: Decoder) -> int:
    if config.num_kv_blocks is not None:
        return config.num_kv_blocks
    shape = decoder.attention.shape
    if shape.device.type == "cpu":
        return cpu_pool_blocks(config, shape)
    return gpu_pool_blocks(config, shape, _peak_bytes_of_a_step(config, model_config, decoder))


def _peak_bytes_of_a_step(config: EngineConfig, model_config: ModelConfig, decoder: Decoder) -> int:
    """What torch held at most, KV blocks aside, while the largest step ran: full budget, all rows sampled."""
    assert config.block_size and config.max_num_seqs and config.max_num_batched_tokens
    num_seqs = config.max_num_seqs
    num_tokens = max(config.max_num_batched_tokens // num_seqs, 1)
    blocks = num_seqs * (num_tokens // config.block_size + 1)
    limits: SchedulerConfig = scheduler_config(config, model_config, max(blocks, _context_blocks(config)))
    device = decoder.attention.shape.device
    decoder.attention.allocate(blocks)
    runner = ModelRunner(decoder, decoder.attention, limits, frozenset(), config.seed)
    torch.cuda.reset_peak_memory_stats(device)
    warm_up(runner, limits, num_seqs=num_seqs, num_tokens=num_tokens)
    torch.cuda.synchronize(device)
    peak = torch.cuda.max_memory_allocated(device) - blocks * kv_bytes_per_block(decoder.attention.shape)
    decoder.attention.allocate(0)
    torch.cuda.empty_cache()
    return peak


def _context_blocks(config: EngineConfig) -> int:
    assert config.block_size is not None
    return -(-(config.max_model_len or 1) // config.block_size)


def _recorder(config: EngineConfig) -> Recorder:
    settings: dict[str, Any] = asdict(config)
    return Recorder(
        counters=EngineCounters(),
        recent=RecentRequests(),
        event_log=EventLog(config.event_log, settings) if config.event_log else None,
        step_log=StepLog(config.step_log, settings) if config.step_log else None,
    )
